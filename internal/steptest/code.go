//go:build linux && amd64

package steptest

import (
	"debug/elf"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// Code is a library of assembly, mapped, and where its symbols are.
type Code struct {
	Im    *procstate.Image
	Space *procstate.AddressSpace
	At    map[string]uint64 // run-time addresses
}

func NewCode(t *testing.T, source string) *Code {
	t.Helper()
	path := Compile(t, []string{"gcc", "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-x", "assembler"}, "code.s", source)
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	const base = 0x7f0000000000
	f := &Code{Im: OpenImage(t, path), Space: new(procstate.AddressSpace), At: map[string]uint64{}}
	for _, s := range symbols {
		f.At[s.Name] = base + s.Value
	}
	for _, s := range f.Im.Segments() {
		if s.Flags&elf.PF_X != 0 {
			f.Space.Insert(&procstate.Mapping{Start: base + s.Vaddr&^4095, End: base + (s.Vaddr+s.Memsz+4095)&^4095, Offset: s.Off &^ 4095, Image: f.Im})
		}
	}
	return f
}
