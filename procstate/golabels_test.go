package procstate

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// Labels are read up to bounds, and are none where Go cannot have made them.
func TestReadGoLabels(t *testing.T) {
	const base, list, text = 0x10000, 0x100, 0x800
	make := func(n uint64, strs ...string) *Snapshot {
		b := make([]byte, 0x8000)
		word := binary.LittleEndian.PutUint64
		word(b, base+list)
		word(b[8:], n)
		at := text
		for i, s := range strs {
			word(b[list+goStringSize*i:], base+uint64(at))
			word(b[list+goStringSize*i+8:], uint64(len(s)))
			at += copy(b[at:], s)
		}
		s := NewSnapshot(AMD64, 1, "", nil)
		s.Reset(1, &Regs{}, []Region{{Addr: base, Data: b}})
		return s
	}
	long := strings.Repeat("ä", maxGoLabelBytes)
	for _, c := range []struct {
		m    *Snapshot
		want []GoLabel
	}{
		{make(2, "a", "1", "b", ""), []GoLabel{{"a", "1"}, {"b", ""}}},
		{make(0), nil},
		{make(2, "b", "1", "a", "2"), nil},
		{make(2, "a", "1", "a", "2"), nil},
		{make(1, "a", "\xff"), nil},
		{make(1, "a", long), []GoLabel{{"a", long[:maxGoLabelBytes]}}},
		{make(1, "a", "x"+long), []GoLabel{{"a", ("x" + long)[:maxGoLabelBytes-1]}}}, // not within a character
		{make(1<<60, "a", "1"), nil},
	} {
		if got := readGoLabels(c.m, base); !slices.Equal(got, c.want) {
			t.Errorf("%.40q, want %.40q", got, c.want)
		}
	}
	if got := readGoLabels(make(1, "a", "1"), base+0x8000); got != nil {
		t.Errorf("%q of what cannot be read", got)
	}
}
