package hotspot

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// Addresses that a ZGC has marked lead to where objects are, by its tables where they have been moved.
func TestZGCAddresses(t *testing.T) {
	const (
		base, offsets   = uint64(1) << 42, uint64(1)<<42 - 1
		page            = uint64(5) << zGranule // of which objects were moved
		released        = uint64(6) << zGranule // the same, and the memory is others'
		list, forwarded = 0x10000, 0x20000
		entries         = 8
	)
	memory := map[uint64]uint64{}
	f := zgcFields{start: 0, alignment: 16, entries: 24, refs: 32, forwardingBytes: 40}
	move := func(page, at, refs uint64, objects map[uint64]uint64) {
		memory[list+8*(page>>zGranule)] = at
		memory[at+f.start], memory[at+f.alignment], memory[at+f.entries], memory[at+f.refs] = page, 3, entries, refs
		for from, to := range objects {
			number := (from - page) >> 3
			i := uint64(zHash(uint32(number)))
			for memory[at+f.forwardingBytes+8*(i%entries)] != 0 {
				i++
			}
			memory[at+f.forwardingBytes+8*(i%entries)] = 1 | to<<1 | number<<46
		}
	}
	move(page, forwarded, 1, map[uint64]uint64{page: 0x4000, page + 8: 0x5000, page + 0x88: 0x6000, page + 0x1000: 0x7000})
	move(released, forwarded+0x1000, 0, map[uint64]uint64{released + 16: 0x8000})
	read := vmread.Reader(func(addr uint64, buf []byte) bool {
		binary.LittleEndian.PutUint64(buf, memory[addr])
		return true
	})
	for _, table := range []zTable{{list, 16}, {list, 4}} {
		// The mark of bit 13 is good, and that of bit 12 one of before.
		young := &zgc{f: f, bad: 1 << 12, offsets: offsets, tables: []zTable{table}, ok: true}
		young.f.generational = true
		single := &zgc{f: f, bad: 1 << 43, good: 1 << 42, offsets: offsets, tables: []zTable{table}, ok: true}
		for offset, want := range map[uint64]uint64{
			0x40: 0x40, page: 0x4000, page + 8: 0x5000, page + 0x88: 0x6000, page + 0x1000: 0x7000,
			page + 16:     page + 16, // not yet
			released + 16: 0x8000,
			released + 24: 0, // it was of no use
		} {
			if table.len == 4 { // they end before
				want = offset
			}
			if want != 0 {
				want |= base
			}
			for name, stored := range map[string][2]uint64{
				"good": {(base|offset)<<14 | 1<<13, base | offset}, "of before": {(base|offset)<<13 | 1<<12, want},
			} {
				if got := young.address(read, stored[0]); got != stored[1] {
					t.Errorf("generational, %s: %#x is %#x, want %#x", name, offset, got, stored[1])
				}
			}
			if got := single.address(read, offset|1<<42); got != base|offset {
				t.Errorf("%#x is %#x", offset, got)
			}
			if got := single.address(read, offset|1<<43); got != want {
				t.Errorf("of before, %#x is %#x, want %#x", offset, got, want)
			}
		}
	}
}

// In what was captured addresses are read by the marks that were good then.
func TestZGCAsCaptured(t *testing.T) {
	const base, offset, at = uint64(1) << 42, uint64(0x40), 0x1000
	read := vmread.Reader(func(uint64, []byte) bool { return false }) // there are no tables
	captured := func(bad uint64) vmread.Reader {
		return func(addr uint64, buf []byte) bool {
			binary.LittleEndian.PutUint64(buf, bad)
			return addr == at && bad != 0
		}
	}
	tables := []zTable{{0x2000, 1}}
	for _, c := range []struct {
		generational            bool
		bad, then, good, stored uint64
		want                    uint64
	}{
		{true, 1 << 13, 1 << 12, 0, (base|offset)<<14 | 1<<13, base | offset}, // good then
		{true, 1 << 12, 1 << 13, 0, (base|offset)<<14 | 1<<13, 0},             // good now
		{true, 1 << 13, 0, 0, (base|offset)<<14 | 1<<13, 0},                   // not captured: as it is now
		{false, 1 << 43, 1 << 42, 1 << 42, offset | 1<<43, offset | 1<<43},
		{false, 1 << 42, 1 << 43, 1 << 43, offset | 1<<43, 0},
		{false, 1 << 42, 0, 1 << 43, offset | 1<<43, offset | 1<<43},
	} {
		z := &zgc{bad: c.bad, badAt: at, offsets: base - 1, good: c.good, tables: tables, ok: c.then == 0}
		z.f.generational = c.generational
		z.asCaptured(captured(c.then))
		if got := z.address(read, c.stored); got != c.want {
			t.Errorf("%+v: %#x", c, got)
		}
	}
}

// What a capture has by an address with other marks is found by it.
func TestZGCWhereCaptured(t *testing.T) {
	const offset, mark = uint64(0x4000), uint64(1) << 42
	for _, c := range []struct {
		generational       bool
		has, address, want uint64
	}{
		{false, offset | mark<<2, offset | mark, offset | mark<<2},
		{false, offset | mark, offset | mark<<2, offset | mark},
		{false, offset | mark<<3, offset | mark, 0},
		{false, offset | mark, 0, 0},
		{true, offset | mark, offset | mark, offset | mark},
		{true, offset | mark<<2, offset | mark, 0},
	} {
		z := &zgc{offsets: mark - 1, f: zgcFields{generational: c.generational}}
		got := z.whereCaptured(func(addr uint64, _ []byte) bool { return addr == c.has }, c.address)
		if got != c.want {
			t.Errorf("%+v: %#x", c, got)
		}
	}
}
