package variables_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// cyclicTypes are entries of .debug_info, each of a type that no compiler makes:
// it is made of itself, or of more than memory holds. Labels begin lines; R(x)
// is a reference to one, V(x) a variable x of the type x.
const cyclicTypes = `
array:     .uleb128 4; R(array); .uleb128 5; .uleb128 2; .byte 0
name:      .uleb128 6; .asciz "name"; R(name)
toname:    .uleb128 10; R(name)
reference: .uleb128 7; R(reference)
function:  .uleb128 8; R(function); .uleb128 9; R(function); .uleb128 9; R(function); .byte 0
tofunction: .uleb128 10; R(function)
nothing:   .uleb128 12; .asciz "nothing"; .uleb128 0; .byte 0
nothings:  .uleb128 4; R(nothing); .uleb128 5; .uleb128 1 << 40; .byte 0
base:      .uleb128 12; .asciz "base"; .uleb128 8; BASES .byte 0
char:      .uleb128 11; .asciz "byte"; .uleb128 1; .byte 8
grid:      .uleb128 4; R(char); DIMENSIONS .byte 0
member:    .uleb128 16; R(char); R(base); .uleb128 16
bound:     .uleb128 4; R(bound); .uleb128 13; R(bound_var); .byte 0
V(array) V(name) V(toname) V(reference) V(function) V(tofunction) V(nothings) V(base) V(grid) V(member)
bound_var: .uleb128 14; .asciz "bound"; R(bound); .byte 7
`

const cyclicAbbrevs = `
.uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 6; .byte 0, 0
.uleb128 2; .uleb128 0x2e; .byte 1; .uleb128 3; .uleb128 8; .uleb128 0x11; .uleb128 1; .uleb128 0x12; .uleb128 6; .byte 0, 0
.uleb128 3; .uleb128 0x34; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x49; .uleb128 0x13; .uleb128 2; .uleb128 0x18; .byte 0, 0
.uleb128 4; .uleb128 0x01; .byte 1; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 5; .uleb128 0x21; .byte 0; .uleb128 0x37; .uleb128 0xf; .byte 0, 0
.uleb128 6; .uleb128 0x16; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 7; .uleb128 0x10; .byte 0; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 8; .uleb128 0x15; .byte 1; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 9; .uleb128 0x05; .byte 0; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 10; .uleb128 0x0f; .byte 0; .uleb128 0x49; .uleb128 0x13; .byte 0, 0
.uleb128 11; .uleb128 0x24; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x0b; .uleb128 0xf; .uleb128 0x3e; .uleb128 0xb; .byte 0, 0
.uleb128 12; .uleb128 0x13; .byte 1; .uleb128 3; .uleb128 8; .uleb128 0x0b; .uleb128 0xf; .byte 0, 0
.uleb128 13; .uleb128 0x21; .byte 0; .uleb128 0x2f; .uleb128 0x13; .byte 0, 0
.uleb128 14; .uleb128 0x34; .byte 0; .uleb128 3; .uleb128 8; .uleb128 0x49; .uleb128 0x13; .uleb128 0x1c; .uleb128 0xb; .byte 0, 0
.uleb128 15; .uleb128 0x1c; .byte 0; .uleb128 0x49; .uleb128 0x13; .uleb128 0x38; .uleb128 0xf; .byte 0, 0
.uleb128 16; .uleb128 0x1f; .byte 0; .uleb128 0x49; .uleb128 0x13; .uleb128 0x1d; .uleb128 0x13; .uleb128 0x0b; .uleb128 0xf; .byte 0, 0
.byte 0
`

// TestCyclicTypes: types that no compiler makes are written, and come to an end.
func TestCyclicTypes(t *testing.T) {
	testenv.Needs(t, "gcc")
	const bias, stack = 0x7f0000000000, 0x7ffe00000000
	types := strings.NewReplacer("BASES", strings.Repeat(".uleb128 15; R(base); .uleb128 0; ", 40),
		"DIMENSIONS", strings.Repeat(".uleb128 5; .uleb128 2; ", 40)).Replace(cyclicTypes)
	var names []string
	for rest := types; ; {
		_, after, ok := strings.Cut(rest, "V(")
		if !ok {
			break
		}
		name, after, _ := strings.Cut(after, ")")
		names, rest = append(names, name), after
		types = strings.Replace(types, "V("+name+")",
			fmt.Sprintf(".uleb128 3; .asciz \"%s\"; R(%s); .uleb128 9; .byte 0xe; .quad %#x\n", name, name, stack), 1)
	}
	types = regexp.MustCompile(`R\((\w+)\)`).ReplaceAllString(types, ".long $1 - unit")
	source := ".text\nfn: nop; nop; nop; nop\nend:\n.section .debug_abbrev\nabbrevs:" + cyclicAbbrevs +
		".section .debug_info\nunit: .long last - first\nfirst: .short 4; .long abbrevs; .byte 8\n" +
		".uleb128 1; .quad fn; .long end - fn\n.uleb128 2; .asciz \"fn\"; .quad fn; .long end - fn\n" + types + ".byte 0, 0\nlast:\n"
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cyclic.s"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "cyclic")
	testenv.Run(t, exec.Command("gcc", "-nostdlib", "-no-pie", "-Wl,-e,0", "-o", file, filepath.Join(dir, "cyclic.s")))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImageBytes(b, file)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := im.Section(".text")
	space := new(procstate.AddressSpace)
	space.Insert(&procstate.Mapping{Start: bias + text.Vaddr&^4095, End: bias + text.Vaddr + 4096, Offset: text.Off &^ 4095, Path: file, Image: im})
	var regs procstate.Regs
	regs.Set(im.Arch().PC, bias+text.Vaddr)
	regs.Set(im.Arch().SP, stack)
	memory := make([]byte, 1<<16)
	for i := range memory {
		memory[i] = byte(i)
	}
	snap := procstate.NewSnapshot(im.Arch(), 1, file, space)
	snap.Reset(1, &regs, []procstate.Region{{Addr: stack, Data: memory}})
	sym := symbols.New(symbols.Options{DebugDirs: []string{}})
	defer sym.Close()
	w := unwind.NewWalker(snap, unwind.NewGroup(steppers.NewBottom()), sym.Process(snap))
	walk, _ := w.WalkStack(nil, procstate.DefaultThread)
	r := variables.New(w, sym)
	for _, name := range append(names, "bound") {
		_, v := find(t, r, walk, "fn", name, false)
		_ = v.Type().String()
		value, err := r.Value(walk, 0, v)
		if err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		_ = value.Aggregate()
		s := value.Format(variables.Format{Depth: 3})
		if s == "" || len(s) > 1<<18 {
			t.Errorf("%s: a text of %d bytes", name, len(s))
		}
		t.Logf("%s (%.60s) = %.100s", name, v.Type(), s)
	}
}
