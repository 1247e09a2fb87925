//go:build linux && amd64

package steppers

import (
	"debug/elf"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
)

// codeFixture is a library of assembly, mapped, and where its symbols are.
type codeFixture struct {
	im    *procstate.Image
	space *procstate.AddressSpace
	at    map[string]uint64 // run-time addresses
}

func newCodeFixture(t *testing.T, source string) *codeFixture {
	t.Helper()
	path := steptest.Compile(t, []string{"gcc", "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-x", "assembler"}, "code.s", source)
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
	f := &codeFixture{im: steptest.OpenImage(t, path), space: new(procstate.AddressSpace), at: map[string]uint64{}}
	for _, s := range symbols {
		f.at[s.Name] = base + s.Value
	}
	for _, s := range f.im.Segments() {
		if s.Flags&elf.PF_X != 0 {
			f.space.Insert(&procstate.Mapping{Start: base + s.Vaddr&^4095, End: base + (s.Vaddr+s.Memsz+4095)&^4095, Offset: s.Off &^ 4095, Image: f.im})
		}
	}
	return f
}
