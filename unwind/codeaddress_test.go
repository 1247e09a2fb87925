package unwind

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// A signed return address loses its authentication code, which begins where
// the kernel's user addresses end: bit 48, with pages of 16 KB bit 47, with
// three levels of tables for pages of 4 KB bit 39.
func TestCodeAddress(t *testing.T) {
	for _, c := range []struct{ top, signed, want uint64 }{
		{0xffff_8000_2000, 0x002a_aaaa_d555_0acc, 0xaaaa_d555_0acc},
		{0x7fff_8000_2000, 0x002a_d555_5572_0acc, 0x5555_5572_0acc},
		{0x7f_8000_2000, 0x002a_d5d5_5572_0acc, 0x55_5572_0acc},
		{0, 0x002a_d555_5572_0acc, 0xd555_5572_0acc}, // nothing is known of the process
	} {
		space := &procstate.AddressSpace{}
		space.Insert(&procstate.Mapping{Start: c.want &^ 0xfff, End: c.want&^0xfff + 0x1000})
		if c.top == 0 {
			space.Clear()
		} else {
			space.Insert(&procstate.Mapping{Start: c.top - 0x2000, End: c.top})
		}
		w := NewWalker(procstate.NewSnapshot(procstate.ARM64, 1, "", space), NewGroup(), nil)
		var regs procstate.Regs
		if _, err := w.WalkPCs(nil, &regs); err == nil {
			t.Error("a walk without steppers is complete")
		}
		if got := w.CodeAddress(c.signed); got != c.want {
			t.Errorf("mappings up to %#x: %#x of %#x, want %#x", c.top, got, c.signed, c.want)
		}
	}
}
