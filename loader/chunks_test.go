package loader

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// Frames of a stack that are in objects are in samples of the thread, also where the objects' addresses are
// stored with marks, and so is the word that tells what these mean.
func TestFrameChunks(t *testing.T) {
	t.Parallel()
	const holderSize, chunkHead, chunkSize, link, low = 16, 16, 80, 2, 3
	path := build(t, "chunks.c", "-O1", "-static", "-no-pie")
	state, holder, chunks := symbolValue(t, path, "thread_chunks"), symbolValue(t, path, "holder"), symbolValue(t, path, "chunks")
	for _, mark := range []int{0, 12} {
		var args []string
		if mark != 0 {
			args = []string{"marked"}
		}
		p := startTarget(t, path, args...)
		s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
		err := s.SetThreadFrames(p.pid, p.pid, ThreadFrames{
			Current: state, First: 8, Head: holderSize, Chunk: 8,
			Chunks: procstate.FrameChunks{Wide: true, Mark: mark, Beside: state + 8, Head: chunkHead, Low: 8, Words: 12, Outer: 0},
		})
		if err != nil {
			t.Fatal(err)
		}
		frames := uint64(chunkHead + 8*(low-link))
		want := []uint64{state, holder, state + 8, chunks, chunks + frames, chunks + chunkSize, chunks + 2*chunkSize, chunks + 2*chunkSize + frames}
		seen, usual := 0, 0
		readUntil(t, s, func(smp *Sample) bool {
			if smp.FrameRegions == 0 {
				usual++ // before it was told
				return usual > 500
			}
			var got []uint64
			for _, r := range smp.Regions[len(smp.Regions)-smp.FrameRegions:] {
				got = append(got, r.Addr)
				if !bytes.Equal(r.Data, p.memory(t, r.Addr, len(r.Data))) {
					t.Errorf("mark %d: what is at %#x differs from memory", mark, r.Addr)
				}
				if n := uint64(len(r.Data)); r.Addr == chunks+frames && n != chunkSize-frames {
					t.Errorf("mark %d: the frames have %d bytes, want %d", mark, n, chunkSize-frames)
				}
				if r.Addr == state+8 && binary.LittleEndian.Uint64(r.Data) != 4711 {
					t.Errorf("mark %d: what is beside is %d", mark, r.Data)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("mark %d: regions at %x, want %x", mark, got, want)
			}
			seen++
			return seen == 20
		})
		if seen < 20 {
			t.Errorf("mark %d: %d samples have frames", mark, seen)
		}
	}
}
