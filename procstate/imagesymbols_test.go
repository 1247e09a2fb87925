package procstate

import (
	"bytes"
	"debug/elf"
	"slices"
	"strings"
	"testing"
)

// A name is found wherever it is in a table, at the ends of what is read at a time, too,
// and nowhere else.
func TestFindName(t *testing.T) {
	names := []string{"__jit_debug_descriptor", "libgcc_s.so.1", "registered_frames", "__a", "_", "x"}
	table := []byte{0}
	want := make(map[string][]uint32)
	add := func(s string) {
		for _, name := range names {
			if strings.HasSuffix(s, name) {
				want[name] = append(want[name], uint32(len(table)+len(s)-len(name)))
			}
		}
		table = append(append(table, s...), 0)
	}
	for _, name := range names {
		add(name)
		add("_Z" + name)
		add(name + "s")
		// One at each place around the end of what is read first.
		next := (len(table)/searchBlock + 1) * searchBlock
		add(strings.Repeat("y", next-len(table)-len(name)-8))
		for range 8 {
			add(name)
		}
	}
	add("__jit_debug")
	im := &Image{r: bytes.NewReader(table), size: int64(len(table))}
	for _, name := range names {
		var got []uint32
		for at := range im.findName(Section{Type: elf.SHT_STRTAB, Size: uint64(len(table))}, name) {
			got = append(got, at)
			if !bytes.HasPrefix(table[at:], append([]byte(name), 0)) {
				t.Errorf("%q is not at %d", name, at)
			}
		}
		if !slices.Equal(got, want[name]) {
			t.Errorf("%q is at %v, found %v", name, want[name], got)
		}
	}
}

// Names that begin with a prefix are found, also around the ends of what is read at a time.
func TestNamesWith(t *testing.T) {
	table := []byte{0}
	want := map[uint32]string{}
	for _, gap := range []int{0, searchBlock - 20, searchBlock - 14, searchBlock - 7, searchBlock, 3} {
		table = append(append(table, strings.Repeat("y", gap)...), 0)
		for _, name := range []string{"v8dbg_one", "x_v8dbg_two", "v8dbg_", "v8db"} {
			if strings.HasPrefix(name, "v8dbg_") {
				want[uint32(len(table))] = name
			}
			table = append(append(table, name...), 0)
		}
	}
	table = append(table, "v8dbg_without_an_end"...)
	im := &Image{r: bytes.NewReader(table), size: int64(len(table))}
	got := im.namesWith(Section{Type: elf.SHT_STRTAB, Size: uint64(len(table))}, []string{"v8dbg_"})
	for at, name := range got {
		if want[at] != string(name) {
			t.Errorf("%q at %d, want %q", name, at, want[at])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d names, want %d", len(got), len(want))
	}
}
