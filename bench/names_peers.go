package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

// notSaid is the line of a frame that a program prints no place for.
const notSaid = -1

// randomCode returns n random addresses of a file's .text, the same in every
// run.
func randomCode(file string, n int) ([]uint64, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := f.Section(".text")
	if text == nil {
		return nil, fmt.Errorf("%s has no .text", file)
	}
	random := rand.New(rand.NewSource(1))
	addrs := make([]uint64, n)
	for i := range addrs {
		addrs[i] = text.Addr + uint64(random.Int63n(int64(text.Size)))
	}
	return addrs, nil
}

// nameAll names the addresses with package symbols.
func nameAll(file string, addrs []uint64) ([][]symbols.Line, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	im, err := procstate.NewImage(f, st.Size(), file)
	if err != nil {
		return nil, err
	}
	s := symbols.New(symbols.Options{Demangle: symbols.DemangleNone})
	defer s.Close()
	all := make([][]symbols.Line, len(addrs))
	for i, a := range addrs {
		all[i] = s.Lines(nil, im, a)
	}
	for _, err := range s.Errors() {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
	return all, nil
}

// ask runs the program.
func (p *namer) ask(file string, addrs []uint64) ([][]symbols.Line, error) {
	cmd := exec.Command(p.command[0], append(p.command[1:len(p.command):len(p.command)], file)...)
	cmd.Stdin = strings.NewReader(hexLines(addrs))
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	all, err := p.parse(out)
	if err == nil && len(all) != len(addrs) {
		err = fmt.Errorf("%d answers to %d questions", len(all), len(addrs))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	return all, nil
}

func hexLines(addrs []uint64) string {
	var b strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&b, "%#x\n", a)
	}
	return b.String()
}

func parseLLVM(out []byte) (all [][]symbols.Line, err error) {
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var r struct {
			Symbol []struct {
				FunctionName, FileName string
				Line                   int
			}
		}
		if err := dec.Decode(&r); err != nil {
			return nil, err
		}
		var lines []symbols.Line
		for _, s := range r.Symbol {
			if s.FunctionName != "" || s.Line > 0 {
				lines = append(lines, symbols.Line{SystemName: s.FunctionName, File: s.FileName, Line: s.Line})
			}
		}
		all = append(all, lines)
	}
	return all, nil
}

// parseAddr2line reads what addr2line and eu-addr2line print with -a -f -i: a
// line with the address, then a function and its place for each frame.
func parseAddr2line(out []byte) (all [][]symbols.Line, err error) {
	function, named := "", false
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "0x"):
			all, function, named = append(all, nil), "", false
		case len(all) == 0:
			return nil, fmt.Errorf("%q comes before an address", line)
		case !named:
			named = true
			function, _, _ = strings.Cut(line, " inlined ")
		default:
			file, no := splitPlace(line)
			if function != "??" {
				last := &all[len(all)-1]
				*last = append(*last, symbols.Line{SystemName: function, File: file, Line: no})
			}
			function, named = "", false
		}
	}
	return all, nil
}

// parseGoAddr2line reads pairs of lines: the function, and the place.
func parseGoAddr2line(out []byte) (all [][]symbols.Line, err error) {
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		var l []symbols.Line
		if file, no := splitPlace(lines[i+1]); lines[i] != "?" {
			l = []symbols.Line{{SystemName: lines[i], File: file, Line: no}}
		}
		all = append(all, l)
	}
	return all, nil
}

// unnamed says whether an answer has no name at all.
func unnamed(lines []symbols.Line) bool {
	return !slices.ContainsFunc(lines, func(l symbols.Line) bool { return l.SystemName != "" })
}

// splitPlace takes FILE:LINE, FILE:LINE:COLUMN and what else stands behind
// apart.
func splitPlace(s string) (file string, line int) {
	s, _, _ = strings.Cut(s, " (discriminator")
	parts := strings.Split(s, ":")
	for len(parts) > 1 {
		v, err := strconv.Atoi(parts[1])
		if err == nil || parts[1] == "?" {
			line = v
			break
		}
		parts = append([]string{parts[0] + ":" + parts[1]}, parts[2:]...)
	}
	if file = parts[0]; file == "??" {
		file = ""
	}
	return file, line
}

// difference says in what another answer differs, "" when it does not. Names
// of one address are the same. chain says whether theirs has inlined callers:
// a program that prints none gives the outermost function and the innermost
// place.
func difference(own, theirs []symbols.Line, chain bool, at map[string][]uint64) string {
	if !chain && len(own) > 1 {
		own = []symbols.Line{{SystemName: own[len(own)-1].SystemName, File: own[0].File, Line: own[0].Line}}
	}
	switch {
	case len(own) == 0 && unnamed(theirs):
		return ""
	case len(own) == 0:
		return "named there only"
	case len(theirs) == 0:
		return "named here only"
	case len(own) != len(theirs):
		return "chain"
	}
	noName := false
	for i := range own {
		if theirs[i].SystemName == "" {
			noName = true
		} else if !sameName(own[i].SystemName, theirs[i].SystemName, at) {
			return "name"
		}
	}
	for i := range own {
		o, t := &own[i], &theirs[i]
		switch {
		case t.Line == notSaid:
		case o.Line == 0 && t.Line == 0: // a file without a line says nothing
		case o.Line == 0:
			return "line there only"
		case t.Line == 0:
			return "line here only"
		case !sameFile(o.File, t.File):
			return "file"
		case o.Line != t.Line:
			return "line"
		}
	}
	if noName {
		return "name here only"
	}
	return ""
}

// parts says whether another answer has the same calls by names, and by places.
func parts(own, theirs []symbols.Line, chain bool, at map[string][]uint64) (names, places bool) {
	if difference(own, theirs, chain, at) == "" {
		return true, true
	}
	if len(own) != len(theirs) {
		return false, false
	}
	names, places = true, true
	for i := range own {
		o, t := own[i], theirs[i]
		names = names && t.SystemName != "" && sameName(o.SystemName, t.SystemName, at)
		places = places && o.Line == t.Line && (o.Line == 0 || sameFile(o.File, t.File))
	}
	return names, places
}

// sameFile compares paths, of which one may lack leading directories: programs
// differ in what they put before a relative path.
func sameFile(a, b string) bool {
	for _, p := range []*string{&a, &b} {
		*p = path.Clean(*p)
		for strings.HasPrefix(*p, "../") {
			*p = (*p)[3:]
		}
		*p = "/" + *p
	}
	return strings.HasSuffix(a, b) || strings.HasSuffix(b, a)
}

// sameName compares names of functions: mangled ones, aliases of one address,
// and those that one program gives without what they are qualified by.
func sameName(a, b string, at map[string][]uint64) bool {
	if a == b || slices.ContainsFunc(at[a], func(v uint64) bool { return slices.Contains(at[b], v) }) {
		return true
	}
	return baseName(a) == baseName(b)
}

// operators that functions are named after, long ones before what they begin
// with.
var operators = strings.Fields("() [] <=> ->* <<= >>= && || ++ -- += -= *= /= %= ^= &= |= << >> == != <= >= -> + - * / % ^ & | ~ ! = < > ,")

// baseName is a name without scopes, parameters and suffixes of clones.
func baseName(s string) string {
	s = symbols.Demangle(s, symbols.DemangleSimple)
	s, _, _ = strings.Cut(s, " [clone")
	if i := strings.Index(s, "operator"); i >= 0 {
		for _, op := range operators {
			if strings.HasPrefix(s[i+len("operator"):], op) {
				return "operator" + op
			}
		}
		return s[i:]
	}
	s, _, _ = strings.Cut(s, ".")
	var plain strings.Builder // without what is in brackets
	depth := 0
	for _, c := range s {
		switch {
		case strings.ContainsRune("<([", c):
			depth++
		case strings.ContainsRune(">)]", c):
			depth--
		case depth == 0:
			plain.WriteRune(c)
		}
	}
	s = strings.TrimSuffix(strings.TrimSpace(plain.String()), " const")
	return s[strings.LastIndexAny(s, ": ")+1:]
}

func chainText(lines []symbols.Line) string {
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%s %s:%d; ", l.SystemName, l.File, l.Line)
	}
	return b.String()
}
