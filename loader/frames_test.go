package loader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// Frames that a runtime keeps of a thread are in its samples: the word that leads to them, their
// stack, or the end of it that runs, and, where they are asked for, those elsewhere and a word of what each refers to.
func TestThreadFrames(t *testing.T) {
	t.Parallel()
	const frameSize, previous, most, head, below, page, objectWord = 72, 8, 16<<10 - 128, 32, 64, 4 << 10, 24
	path := build(t, "frames.c", "-O1", "-static", "-no-pie")
	state := symbolValue(t, path, "thread_frames")
	for _, c := range []struct {
		count                     int
		follow, is, down, changes bool
		moves                     bool // the stack does, and what has its bounds is out of date
		object                    bool // words of what frames refer to are asked for
	}{
		{20, false, true, false, false, false, false}, {20, true, true, false, false, false, false}, {20, true, false, false, true, false, false},
		{20, true, true, true, true, false, false}, {20, false, true, true, true, true, false},
		{700, true, true, false, false, false, false}, {700, false, true, true, true, false, false}, {700, true, false, true, false, false, false},
		{700, false, false, true, true, false, false}, {700, false, true, true, false, true, false},
		{20, true, true, false, false, false, true}, {700, true, true, false, false, false, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			p := startTarget(t, path, strconv.Itoa(c.count))
			words := p.memory(t, state, 32)
			word := func(i int) uint64 { return binary.LittleEndian.Uint64(words[8*i:]) }
			low, high := word(1), word(2)
			frames := ThreadFrames{Current: state, Bounds: state + 8, High: 8, IsFrame: true, Previous: previous, IsDown: c.down}
			want := []uint64{state}
			if !c.is { // it leads to a cell that has the frame, and the bounds
				frames.Current, frames.IsFrame, frames.First = state+24, false, 8
				frames.Bounds, frames.High, frames.IsCounted, frames.Head = 0, 16, true, head
				want = []uint64{state + 24, word(3)}
			}
			if c.moves {
				frames.Bounds, frames.Low, frames.High, frames.Below = state+8, 8, 0, below
				low, high = high-below, high+page
			} else if c.down {
				high = min(high, low+most)
			} else {
				low = max(low, high-min(high, most))
			}
			want = append(want, low)
			values, valuesEnd := uint64(0), uint64(0)
			if !c.is && c.down { // what runs, in stack[0], has where its values end
				const at, more = 32, 16
				frames.HasValues, frames.Values, frames.ValuesEnd = true, at, more
				values = binary.LittleEndian.Uint64(p.memory(t, word(3)+at, 8))
				valuesEnd = binary.LittleEndian.Uint64(p.memory(t, low+more, 8))
				if values = max(values, valuesEnd-most); valuesEnd-values < 8 {
					t.Fatal("no values")
				}
				want = append(want, values)
			}
			s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, Changes: c.changes})
			if c.follow {
				frames.Bytes = frameSize
			}
			isObject := map[int]bool{} // by index in want
			if c.follow {              // what is not within [low, high), of the first frames
				room, objects := 127, 0
				if c.object {
					frames.Object, frames.ObjectWord, room = previous, objectWord, 126
				}
				for frame, n := word(0), 0; frame != 0 && n < 256 && len(want) < room; n++ {
					if frame-low >= high-low {
						want = append(want, frame)
					}
					frame = binary.LittleEndian.Uint64(p.memory(t, frame+previous, 8))
					if objects++; c.object && objects <= 32 && frame != 0 {
						isObject[len(want)] = true
						want = append(want, frame+objectWord)
					}
				}
			}
			if err := s.SetThreadFrames(p.pid, p.pid, frames); err != nil {
				t.Fatal(err)
			}
			seen, usual := 0, 0
			readUntil(t, s, func(smp *Sample) bool {
				if smp.FrameRegions == 0 {
					usual++ // before it was told
					return usual > 500
				}
				regions := smp.Regions[len(smp.Regions)-smp.FrameRegions:]
				var got []uint64
				for i, r := range regions {
					got = append(got, r.Addr)
					n := uint64(frameSize)
					switch {
					case i == 0, isObject[i]:
						n = 8
					case r.Addr == low:
						n = high - low
					case r.Addr == values:
						n = valuesEnd - values
					case i == 1 && !c.is:
						n = head
					}
					if uint64(len(r.Data)) != n {
						t.Errorf("region %d has %d bytes, want %d", i, len(r.Data), n)
					}
					if !bytes.Equal(r.Data, p.memory(t, r.Addr, len(r.Data))) {
						t.Errorf("region %d differs from memory", i)
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("regions at %x, want %x", got, want)
				}
				if sp := smp.Regs.Raw(smp.Arch.SP); smp.Regions[0].Addr > sp || smp.LiveBytes == 0 {
					t.Errorf("the stack is at %#x, SP %#x", smp.Regions[0].Addr, sp)
				}
				if (smp.Number != 0) != c.changes {
					t.Errorf("number %d among those of which changes were sent", smp.Number)
				}
				seen++
				return seen == 50
			})
			if seen < 50 {
				t.Errorf("%d samples have frames", seen)
			}
			if err := s.SetThreadFrames(p.pid, p.pid, ThreadFrames{}); err != nil {
				t.Error(err)
			}
			none := 0
			readUntil(t, s, func(smp *Sample) bool {
				if smp.FrameRegions == 0 {
					none++
				}
				return none == 5
			})
		})
	}
}
