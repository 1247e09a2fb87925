package v8

import (
	"bytes"
	"testing"
)

// part makes a part of a module: its length, and it.
func part(b ...byte) []byte { return append([]byte{byte(len(b))}, b...) }

// Imports of all kinds, with types that are references, and memories of 64 bits and pages of another size.
func TestWasmImports(t *testing.T) {
	imports := bytes.Join([][]byte{
		{8},
		part('m'), part('f'), {0, 0x85, 0x01}, // a function of type 133
		part('m'), part('t'), {1, 0x70, 1, 1, 0x80, 0x01}, // a table of at most 128
		part('m'), part('r'), {1, 0x63, 0x02, 0, 1}, // of references to a type
		part('m'), part('m'), {2, 0x0c, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 16}, // a memory of 64 bits, with its pages' size
		part('m'), part('s'), {2, 3, 1, 2}, // one that is shared
		part('m'), part('g'), {3, 0x7f, 1},
		part('m'), part('e'), {4, 0, 1},
		part(), part('l'), {0, 2},
	}, nil)
	r := wasmReader{b: imports}
	if n := r.importedFunctions(); n != 2 || r.bad || r.at != len(imports) {
		t.Errorf("%d functions, in %d of %d bytes, bad: %v; want 2", n, r.at, len(imports), r.bad)
	}
	for n := range imports { // cut short
		r := wasmReader{b: imports[:n]}
		if r.importedFunctions(); !r.bad {
			t.Errorf("%d bytes are not bad", n)
		}
	}
}

// A function is called what the module says, else as it is exported, else by its index.
func TestWasmNames(t *testing.T) {
	names := bytes.Join([][]byte{
		append([]byte{0}, part(part('m')...)...), // of the module
		append([]byte{1}, part(bytes.Join([][]byte{{3}, {1}, part('a'), {2}, part('\n'), {0x90, 0x01}, part(0xc3, 0x9f)}, nil)...)...),
	}, nil)
	r := wasmReader{b: names}
	m := &wasmModule{names: r.functionNames(), exports: bytes.Join([][]byte{{3}, part('x'), {0, 1}, part('y'), {3, 2}, part('z'), {0, 2}}, nil)}
	for index, want := range map[uint32]string{1: "a", 2: "z", 3: "wasm-function[3]", 144: "ß", noFunction: "wasm-stub"} {
		if got := m.function(index).Name; got != want {
			t.Errorf("function %d is %q, want %q", index, got, want)
		}
	}
	if first := m.function(1); m.function(1) != first {
		t.Error("a function is made twice")
	}
}

// FuzzWasm reads parts of modules that are anything.
func FuzzWasm(f *testing.F) {
	f.Add([]byte{2, 1, 'm', 1, 'f', 0, 0, 1, 'm', 1, 't', 1, 0x70, 0, 0})
	f.Add([]byte{1, 4, 1, 0, 1, 'a'})
	f.Fuzz(func(t *testing.T, b []byte) {
		imports, names := wasmReader{b: b}, wasmReader{b: b}
		if n := imports.importedFunctions(); int(n) > len(b) {
			t.Errorf("%d functions in %d bytes", n, len(b))
		}
		m := &wasmModule{names: names.functionNames(), exports: b}
		for index := range uint32(3) {
			if m.nameOf(index) == "" {
				t.Errorf("function %d has no name", index)
			}
		}
	})
}
