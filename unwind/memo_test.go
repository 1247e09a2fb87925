package unwind

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// chain walks frames of 16 bytes, the saved FP and the return address, up to the code at end.
type chain struct {
	rule *Rule
	end  uint64
}

func (c chain) Name() string       { return "chain" }
func (c chain) Priority() Priority { return PriorityDebug }
func (c chain) CallerFrame(w *Walker, in, out *Frame) (Verdict, error) {
	r, _ := c.RuleAt(w, nil, in.PC(), in.Flags&Interrupted != 0)
	return r.CallerFrame(w, in, out)
}

func (c chain) RuleAt(_ *Walker, _ *procstate.Mapping, pc uint64, _ bool) (*Rule, bool) {
	if pc>>4 == c.end>>4 {
		return RuleBottom, true
	}
	return c.rule, true
}

// A walk is spared the frames that are as they were in the last one, and no others.
func TestMemo(t *testing.T) {
	const stack, frames, end = 0x8000, 8, 0x2008
	words := make([]uint64, 2*frames)
	for i := range frames {
		words[2*i], words[2*i+1] = uint64(0x100+i), uint64(0x1108+16*i)
	}
	words[2*frames-1] = end
	mapping := func(start uint64) *procstate.Mapping {
		return &procstate.Mapping{Start: start, End: start + 0x2000, Image: testImage(t, procstate.AMD64, nil, 0, 0)}
	}
	code := mapping(0x1000)
	group := NewGroup(chain{PlainRule(procstate.AMD64, 16, -16, false), end})
	type process struct {
		space        procstate.AddressSpace
		state        *procstate.Snapshot
		plain, again *Walker
	}
	start := func() *process {
		p := &process{}
		p.space.Insert(code)
		p.state = procstate.NewSnapshot(procstate.AMD64, 1, "", &p.space)
		p.plain, p.again = NewWalker(p.state, group, nil), NewWalker(p.state, group, nil)
		return p
	}
	one, other := start(), start()
	p := one
	var memo Memo
	top := 0 // the frame that runs
	sp := func(frame int) uint64 { return stack + 16*uint64(frame) }
	for _, step := range []struct {
		name   string
		before func()
		from   uint64
		same   int
	}{
		{"first", func() {}, 0, 0},
		{"again", func() {}, 0, frames},
		{"nothing known", func() {}, math.MaxUint64, 0},
		{"nothing known, another caller", func() { words[11] = 0x1508 }, math.MaxUint64, 0},
		{"all known", func() {}, 0, frames},
		{"another return address", func() { words[5] = 0x1608 }, sp(3), frames - 3},
		{"another saved frame pointer", func() { words[4] = 0x700 }, sp(3), frames - 3},
		{"known from a frame on", func() {}, sp(4), frames - 3},
		{"known from within a frame on", func() {}, sp(4) + 8, frames - 4},
		{"functions that returned", func() { top = 2 }, 0, frames - 2},
		{"functions that were called", func() { top = 0 }, 0, frames - 2},
		{"another mapping", func() { p.space.Insert(mapping(0x5000)) }, 0, 0},
		{"the same mappings", func() {}, 0, frames},
		{"another process", func() { p = other; p.space.Insert(mapping(0x5000)) }, 0, 0},
		{"the same process", func() {}, 0, frames},
		{"another stepper", func() { group.AddStepper(&fakeStepper{name: "other", priority: PriorityWanderer}) }, 0, 0},
		{"the same steppers", func() {}, 0, frames},
		{"no bottom", func() { words[2*frames-1] = 0x7008 }, sp(frames), 0},
		{"after a walk that was not complete", func() { words[2*frames-1] = end }, 0, 0},
		{"emptied", func() { memo.Reset() }, 0, 0},
		{"few frames", func() { p.plain.MaxFrames, p.again.MaxFrames = 5, 5 }, 0, 0},
	} {
		step.before()
		var data []byte
		for _, word := range words[2*top:] {
			data = binary.LittleEndian.AppendUint64(data, word)
		}
		var regs procstate.Regs
		regs.Set(procstate.AMD64.PC, 0x1000)
		regs.Set(procstate.AMD64.SP, sp(top))
		regs.Set(procstate.AMD64.FP, 1)
		p.state.Reset(7, &regs, []procstate.Region{{Addr: sp(top), Data: data}})
		want, wantErr := p.plain.WalkPCs(nil, &regs)
		got, same, err := p.again.WalkPCsAgain(nil, &regs, &memo, step.from)
		if err != wantErr || !slices.Equal(got, want) {
			t.Errorf("%s: %x, %v, without a memo %x, %v", step.name, got, err, want, wantErr)
		}
		if same != step.same {
			t.Errorf("%s: %d frames are those of before, want %d", step.name, same, step.same)
		}
	}
}
