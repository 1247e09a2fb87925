package loader

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"testing"
)

// Where each frame that a runtime keeps has a stack of entries, these are in the samples, with
// what follows the last one, and what is around the word that leads to them: of the frame that runs as
// many as there is room for, those that are last, and the same of all others together.
func TestThreadEntries(t *testing.T) {
	t.Parallel()
	const entry, entries, previous, last, frameSize = 104, 8, 16, 32, 48
	path := build(t, "entries.c", "-O1", "-static", "-no-pie")
	state := symbolValue(t, path, "thread_entries")
	for _, count := range []int{3, 120, 700} {
		for _, changes := range []bool{false, true} {
			t.Run(strconv.Itoa(count), func(t *testing.T) {
				p := startTarget(t, path, strconv.Itoa(count))
				word := func(at uint64) uint64 { return binary.LittleEndian.Uint64(p.memory(t, at, 8)) }
				type region struct {
					addr uint64
					n    int
				}
				want := []region{{state, 40}}
				var others []region
				room := 16 << 10
				for frame := word(state + 24); frame != 0; frame = word(frame + previous) {
					from, n := word(frame+entries), entry*(int(int32(word(frame+last)))+2)
					end := from + uint64(n)
					if len(want) == 1 {
						n = min(n, 16<<10-128)
						want = append(want, region{end - uint64(n), n})
						others = append(others, region{frame, frameSize})
						continue
					}
					others = append(others, region{frame, frameSize})
					n = min(n, room)
					room -= n
					if n > 0 {
						others = append(others, region{end - uint64(n), n})
					}
				}
				want = append(want, others...)
				s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, Changes: changes})
				if err := s.SetThreadFrames(p.pid, p.pid, ThreadFrames{
					Current: state + 24, Before: 24, After: 8, IsFrame: true, Bytes: frameSize, Previous: previous, Low: entries, Entry: entry, Last: last,
				}); err != nil {
					t.Fatal(err)
				}
				seen, usual := 0, 0
				readUntil(t, s, func(smp *Sample) bool {
					if smp.FrameRegions == 0 {
						usual++ // before it was told
						return usual > 500
					}
					var got []region
					for _, r := range smp.Regions[len(smp.Regions)-smp.FrameRegions:] {
						got = append(got, region{r.Addr, len(r.Data)})
						if !bytes.Equal(r.Data, p.memory(t, r.Addr, len(r.Data))) {
							t.Errorf("the region at %x differs from memory", r.Addr)
						}
					}
					if !slices.Equal(got, want) {
						t.Fatalf("regions %x, want %x", got, want)
					}
					seen++
					return seen == 50
				})
				if seen < 50 {
					t.Errorf("%d samples have entries", seen)
				}
			})
		}
	}
}
