package unwind

// FrameBudget bounds the frames of many stacks together, for who keeps them all: each
// stack may have DefaultMaxFrames, and what is beyond that of some is shared by all.
// The zero value leaves no more than that to any.
type FrameBudget struct {
	Each int // frames of one stack at most; 0 is DefaultMaxFrames
	Deep int // what is left of frames beyond the first DefaultMaxFrames of each stack
}

// Limit returns what Walker.MaxFrames is to be for the next stack.
func (b *FrameBudget) Limit() int {
	if b.Each <= DefaultMaxFrames {
		return max(b.Each, 0)
	}
	return min(b.Each, DefaultMaxFrames+max(b.Deep, 0))
}

// Keep counts a stack of so many frames that is kept.
func (b *FrameBudget) Keep(frames int) { b.Deep -= max(frames-DefaultMaxFrames, 0) }

// Drop takes back Keep.
func (b *FrameBudget) Drop(frames int) { b.Deep += max(frames-DefaultMaxFrames, 0) }
