package steppers

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// TestColdParts: a part is known with its function, and symbols that make
// functions parts of each other, or of themselves, come to an end.
func TestColdParts(t *testing.T) {
	testenv.Needs(t, "gcc")
	if procstate.HostArch() != procstate.AMD64 {
		t.Skip("the assembly is of x86-64")
	}
	const source = `
	.type f, @function
	.type g.cold, @function
	.type g, @function
	.type f.cold, @function
	.type h, @function
	.type h.cold, @function
	.type none.cold, @function
	.type real, @function
	.type real.cold, @function
	.set none.cold, 0
f:
g.cold:	nop
	ret
g:
f.cold:	nop
	ret
h:
h.cold:	nop
	ret
real:	push %rbp
	mov %rsp, %rbp
	test %eax, %eax
	je real.cold
	pop %rbp
	ret
real.cold: nop
	pop %rbp
	ret
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x.s"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x")
	testenv.Run(t, exec.Command("gcc", "-nostdlib", "-static", "-Wl,-e,real", "-o", path, filepath.Join(dir, "x.s")))
	img := steptest.OpenImage(t, path)
	at := map[string]uint64{}
	img.EachSymbol(func(s *procstate.ELFSymbol) bool {
		at[string(s.Name)] = s.Value
		return true
	})
	cold := coldParts(img)
	for name, want := range map[string]uint64{"real.cold": at["real"], "f.cold": 0, "g.cold": 0, "h.cold": 0, "none.cold": 0} {
		if got, ok := cold[at[name]]; !ok || got != want {
			t.Errorf("%s is a part of %#x, %v; want %#x", name, got, ok, want)
		}
	}
	for _, looks := range []int{0, fewLooks} {
		a := NewFrameAnalyzer()
		a.framesOf(img).looks = looks
		for _, name := range []string{"f", "g", "h"} {
			if l := a.analyzeFile(img, at[name], false); l.State != UnsetFrame || l.SP != 8 {
				t.Errorf("%s: %+v", name, l)
			}
		}
		if l := a.analyzeFile(img, at["real.cold"], false); l.State != SetFrame || l.FP != 16 || l.RA != 8 {
			t.Errorf("real.cold: %+v", l)
		}
	}
	for name, v := range at {
		want, wantPart := cold[v]
		if f, isPart, known := coldPart(img, v); known && (f != want || isPart != wantPart) {
			t.Errorf("%s at %#x is a part: %t, of %#x; want %t, %#x", name, v, isPart, f, wantPart, want)
		} else if !known && name != "f" && name != "g" && name != "h" && !strings.HasSuffix(name, ".cold") {
			t.Errorf("%s at %#x is not known", name, v)
		}
	}
}

// TestColdPartsOfManyNames: more names than are in memory at a time, and two functions of
// the same name, of which the last counts.
func TestColdPartsOfManyNames(t *testing.T) {
	testenv.Needs(t, "gcc")
	if procstate.HostArch() != procstate.AMD64 {
		t.Skip("the assembly is of x86-64")
	}
	const n = 2 * namesWindow / 1000
	name := func(i int) string { return fmt.Sprintf("f%d_%s", i, strings.Repeat("long", 250)) }
	dir := t.TempDir()
	var args []string
	file := func(source string) {
		path := filepath.Join(dir, fmt.Sprintf("%d.s", len(args)))
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	const twice = ".type %s, @function\n%[1]s: nop\nret\n.type %[1]s.cold, @function\n%[1]s.cold: ret\n"
	file(".globl _start\n.type _start, @function\n_start: ret\n" + fmt.Sprintf(twice, "twice"))
	var source strings.Builder
	for i := range n {
		fmt.Fprintf(&source, ".type %s, @function\n%[1]s: nop\nret\n.type %[1]s.cold.0, @function\n%[1]s.cold.0: ret\n", name(i))
	}
	file(source.String())
	file(fmt.Sprintf(twice, "other"))
	path := filepath.Join(dir, "x")
	testenv.Run(t, exec.Command("gcc", append(args, "-nostdlib", "-static", "-o", path)...))
	renameLast(t, path, "other", "twice")
	img := steptest.OpenImage(t, path)
	if s, _ := img.Section(".strtab"); s.Size < 2*namesWindow {
		t.Fatalf("%d bytes of names", s.Size)
	}
	at := map[string]uint64{}
	img.EachSymbol(func(s *procstate.ELFSymbol) bool {
		at[string(s.Name)] = s.Value // the last one
		return true
	})
	cold := coldParts(img)
	for i := 0; i < n; i += n / 50 {
		if f, isPart, known := coldPart(img, at[name(i)+".cold.0"]); f != at[name(i)] || !isPart || !known {
			t.Errorf("part %d is one: %t, of %#x, known: %t; want %#x", i, isPart, f, known, at[name(i)])
		}
	}
	if len(cold) != n+2 || cold[at["twice.cold"]] != at["twice"] {
		t.Errorf("%d parts, twice.cold of %#x", len(cold), cold[at["twice.cold"]])
	}
	for i := range n {
		if part, f := at[name(i)+".cold.0"], at[name(i)]; f == 0 || cold[part] != f {
			t.Fatalf("part %d of %#x, want %#x", i, cold[part], f)
		}
	}
}

// renameLast gives the symbols of a function and of its part the names of others, which
// come before in the table, so that its names come before theirs.
func renameLast(t *testing.T, path, from, to string) {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	symtab, strtab := e.Section(".symtab"), e.Section(".strtab")
	names := file[strtab.Offset:][:strtab.Size]
	entry := map[string][]byte{}
	for tab := file[symtab.Offset:][:symtab.Size]; len(tab) > 0; tab = tab[elf.Sym64Size:] {
		name, _, _ := bytes.Cut(names[binary.LittleEndian.Uint32(tab):], []byte{0})
		entry[string(name)] = tab[:4]
	}
	for _, end := range []string{"", ".cold"} {
		a, b := entry[from+end], entry[to+end]
		x, y := binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)
		if x < y+2*namesWindow {
			t.Fatalf("names at %d and %d", x, y)
		}
		copy(names[x:], to)
		binary.LittleEndian.PutUint32(a, y)
		binary.LittleEndian.PutUint32(b, x)
	}
	if err := os.WriteFile(path, file, 0o700); err != nil {
		t.Fatal(err)
	}
}
