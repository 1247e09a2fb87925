package loader

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// Labels are read from what was copied of them, and what was not is left out; the regions of stacks are without them.
func TestGoLabels(t *testing.T) {
	const list, text = 0xc000100000, 0xc000200000
	long := strings.Repeat("x", MaxGoLabelBytes)
	pairs := []string{"a", "1", "b", "", "cut", long + "more", "exact", long, "gone", "lost", "", "nameless"}
	regions := []procstate.Region{{Addr: 0x1000, Data: make([]byte, 64)}, {Addr: 0x2000, Data: make([]byte, 8)}, {Addr: list}}
	for i, s := range pairs {
		at := uint64(text + 0x1000*i)
		regions[2].Data = binary.LittleEndian.AppendUint64(regions[2].Data, at)
		regions[2].Data = binary.LittleEndian.AppendUint64(regions[2].Data, uint64(len(s)))
		if s != "" && s != "lost" {
			regions = append(regions, procstate.Region{Addr: at, Data: []byte(s[:min(len(s), MaxGoLabelBytes)])})
		}
	}
	s := Sample{Regions: regions, FrameRegions: 1, LabelRegions: len(regions) - 2}
	var got []string
	for l := range s.GoLabels() {
		got = append(got, fmt.Sprintf("%s=%s %v", l.Key, l.Value, l.IsCut))
	}
	want := []string{"a=1 false", "b= false", "cut=" + long + " true", "exact=" + long + " false"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if stack := s.StackRegions(); len(stack) != 1 || stack[0].Addr != 0x1000 {
		t.Errorf("regions of stacks: %v", stack)
	}
	for range (&Sample{Regions: regions}).GoLabels() {
		t.Error("a label of a sample that has none")
	}
}
