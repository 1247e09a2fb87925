package swbpf_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declared collects the exported names of a package as "T", "F", "T.Method",
// and how a program refers to each.
func declared(t *testing.T, dir, pkg string) map[string]string {
	t.Helper()
	refs := make(map[string]string)
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					refs[d.Name.Name] = fmt.Sprintf("_ = %s.%s", pkg, d.Name.Name)
					continue
				}
				recv := d.Recv.List[0].Type
				if p, ok := recv.(*ast.StarExpr); ok {
					recv = p.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					refs[id.Name+"."+d.Name.Name] = fmt.Sprintf("_ = (*%s.%s).%s", pkg, id.Name, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						declareType(refs, pkg, s)
					case *ast.ValueSpec:
						for _, n := range s.Names {
							refs[n.Name] = fmt.Sprintf("_ = %s.%s", pkg, n.Name)
						}
					}
				}
			}
		}
	}
	return refs
}

func declareType(refs map[string]string, pkg string, s *ast.TypeSpec) {
	name := s.Name.Name
	refs[name] = fmt.Sprintf("var _ %s.%s", pkg, name)
	var fields *ast.FieldList
	format := "_ = %s.%s{}.%s"
	switch typ := s.Type.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		fields, format = typ.Methods, "_ = %s.%s.%s"
	case *ast.SelectorExpr: // an alias of a struct
		refs[name+".Object"] = fmt.Sprintf("_ = %s.%s{}.Object", pkg, name)
		return
	default:
		return
	}
	for _, f := range fields.List {
		for _, n := range f.Names {
			refs[name+"."+n.Name] = fmt.Sprintf(format, pkg, name, n.Name)
		}
	}
}

// TestManualTable compiles the Go side of docs/STACKWALKERAPI.md.
func TestManualTable(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("docs", "STACKWALKERAPI.md"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{"swbpf": ".", "unwind": "unwind", "procstate": "procstate", "steppers": "steppers", "symbols": "symbols", "variables": "variables"}
	below, err := filepath.Glob(filepath.Join("steppers", "*", "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range below {
		dir := filepath.Dir(name)
		dirs[filepath.Base(dir)] = filepath.ToSlash(dir)
	}
	refs := make(map[string]map[string]string)
	for pkg, dir := range dirs {
		refs[pkg] = declared(t, dir, pkg)
	}
	quoted := regexp.MustCompile("`([a-z0-9]+)\\.([A-Za-z0-9.]+)`")
	var lines []string
	used := make(map[string]bool)
	rows := 0
	for i, line := range strings.Split(string(b), "\n") {
		text := line
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			text = cells[2]
			rows++
			if !strings.HasPrefix(strings.TrimSpace(text), "`") && !strings.Contains(text, "---") && !strings.Contains(text, "Go") {
				t.Errorf("line %d: no Go name: %s", i+1, line)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(text, -1) {
			ref, ok := refs[m[1]][m[2]]
			if refs[m[1]] == nil {
				continue // another kind of name
			}
			if !ok {
				t.Errorf("line %d: %s.%s does not exist", i+1, m[1], m[2])
				continue
			}
			if !slices.Contains(lines, ref) {
				lines = append(lines, ref)
			}
			used[m[1]] = true
		}
	}
	if rows < 90 || len(lines) < 120 {
		t.Errorf("only %d rows and %d names in the tables", rows, len(lines))
	}
	src := "package main\n\nimport (\n"
	for pkg, dir := range dirs {
		if used[pkg] {
			path := "github.com/swbpf/swbpf"
			if dir != "." {
				path += "/" + dir
			}
			src += fmt.Sprintf("\t%s %q\n", pkg, path)
		}
	}
	src += ")\n\nfunc main() {\n\t" + strings.Join(lines, "\n\t") + "\n}\n"
	vet(t, src)
}

// vet compiles a program.
func vet(t *testing.T, src string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(name, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, src)
	}
}

// TestExamplesInText compiles the example of README.md, and that of the package's
// documentation with what it leaves out.
func TestExamplesInText(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, ok := strings.Cut(string(readme), "```go\n")
	example, _, closed := strings.Cut(example, "```")
	imports, body, parted := strings.Cut(example, ")\n\n")
	if !ok || !closed || !parted || !strings.HasPrefix(imports, "import (") {
		t.Fatalf("README.md has no example: %q", example)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(doc)) {
		if line, ok := strings.CutPrefix(line, "//\t"); ok && line != "...\n" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		t.Fatal("doc.go has no example")
	}
	imports = strings.Replace(imports, "(", "(\n\t\"fmt\"", 1)
	vet(t, "package main\n\n"+imports+")\n\nfunc readme() error {\n"+body+"return err\n}\n\nfunc doc() error {\n"+
		strings.Join(lines, "")+"return err\n}\n\nfunc main() { fmt.Println(readme(), doc()) }\n")
}

// TestLinks follows the links of the pages to each other's headings and to files.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "README.md")
	heading := regexp.MustCompile("(?m)^#+ (.*)$")
	punctuation := regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	link := regexp.MustCompile(`\]\(([^)\s]*)\)`)
	headings := make(map[string]bool) // as "docs/WALK.md#goroutines"
	texts := make(map[string]string)
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		texts[page] = string(b)
		for _, m := range heading.FindAllStringSubmatch(texts[page], -1) {
			anchor := punctuation.ReplaceAllString(strings.ToLower(m[1]), "")
			headings[page+"#"+strings.ReplaceAll(anchor, " ", "-")] = true
		}
	}
	for page, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, anchored := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
			if anchored && !headings[file+"#"+anchor] {
				t.Errorf("%s links to %s, and there is no such heading", page, m[1])
			}
		}
	}
}

// TestPackagesInArchitecture compares the table of packages of docs/ARCHITECTURE.md with
// what there is and what that imports.
func TestPackagesInArchitecture(t *testing.T) {
	const module = "github.com/swbpf/swbpf"
	b, err := os.ReadFile(filepath.Join("docs", "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string][]string{}
	quoted := regexp.MustCompile("`([a-z0-9/]+)`")
	_, table, _ := strings.Cut(string(b), "| package | holds | imports |\n")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			break
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			told[strings.TrimSuffix(m[1], "/")] = strings.FieldsFunc(cells[3], func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	// below adds to set what a package may import: what the table says of it, and of those.
	var below func(set map[string]bool, pkg string)
	below = func(set map[string]bool, pkg string) {
		for _, name := range told[pkg] {
			for of := range told {
				if of == name || strings.HasSuffix(of, "/"+name) {
					set[of] = true
					below(set, of)
				}
			}
		}
	}
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{range .Imports}}{{.}} {{end}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(strings.TrimPrefix(fields[0], module), "/")
		if pkg == "" {
			pkg = "swbpf"
		}
		if strings.HasPrefix(pkg, "internal/") || strings.Contains(pkg, "/cmd/") || strings.HasPrefix(pkg, "bench/") {
			continue // the table has them with what is above them
		}
		if _, ok := told[pkg]; !ok {
			t.Errorf("the table lacks %s", pkg)
			continue
		}
		direct, may := map[string]bool{}, map[string]bool{}
		below(may, pkg)
		for _, path := range fields[1:] {
			path, ours := strings.CutPrefix(path, module+"/")
			direct[path] = true
			if ours && !may[path] && !strings.HasPrefix(path, "internal/") && pkg != "cmd/swbpf" {
				t.Errorf("%s imports %s, which the table does not say", pkg, path)
			}
		}
		for _, name := range told[pkg] {
			if !direct[name] && !direct["steppers/"+name] && !direct["steppers/internal/"+name] && pkg != "cmd/swbpf" {
				t.Errorf("the table says that %s imports %s", pkg, name)
			}
		}
	}
}
