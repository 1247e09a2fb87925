package oracle

import (
	"maps"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

func inst(f isa.Flow, n uint8) *isa.Inst { return &isa.Inst{Flow: f, Len: n} }

func chain(s *Shadow) (out []uint64) {
	for i := len(s.recs) - 1; i >= 0; i-- {
		out = append(out, s.recs[i].pc)
	}
	return out
}

// memory is a sparse stack.
type memory map[uint64]uint64

func (m memory) word(a uint64) (uint64, bool) { v, ok := m[a]; return v, ok }

func TestShadow(t *testing.T) {
	const sp = 0x7fff0000
	type move struct {
		in       *isa.Inst
		from, to moment
	}
	call := func(pc, sp, target uint64) move {
		return move{inst(isa.Call, 5), moment{pc, sp}, moment{target, sp - 8}}
	}
	other := uint64(0x500000000)
	for name, c := range map[string]struct {
		moves []move
		want  []uint64
		lost  bool
	}{
		"two calls": {[]move{call(0x100, sp, 0x200), call(0x200, sp-8, 0x300)}, []uint64{0x205, 0x105}, false},
		"a return": {[]move{call(0x100, sp, 0x200), call(0x200, sp-8, 0x300),
			{inst(isa.Return, 1), moment{0x300, sp - 16}, moment{0x205, sp - 8}}}, []uint64{0x105}, false},
		"a tail jump keeps the frame": {[]move{call(0x100, sp, 0x200),
			{inst(isa.Jump, 5), moment{0x200, sp - 8}, moment{0x300, sp - 8}}}, []uint64{0x105}, false},
		"a return to a pushed address is a jump": {[]move{call(0x100, sp, 0x200),
			{inst(isa.Return, 1), moment{0x210, sp - 24}, moment{0x300, sp - 16}}}, []uint64{0x105}, false},
		"SP above the frame": {[]move{call(0x100, sp, 0x200), call(0x200, sp-32, 0x300),
			{inst(isa.Next, 3), moment{0x300, sp - 40}, moment{0x303, sp - 16}}}, []uint64{0x205, 0x105}, true},
		"longjmp": {[]move{call(0x100, sp, 0x200), call(0x200, sp-32, 0x300),
			{inst(isa.Next, 3), moment{0x300, sp - 40}, moment{0x303, sp - 16}},
			{inst(isa.IndirectJump, 2), moment{0x303, sp - 16}, moment{0x208, sp - 16}}}, []uint64{0x105}, false},
		"a call on another stack": {[]move{call(0x100, sp, 0x200),
			{inst(isa.Next, 3), moment{0x200, sp - 8}, moment{0x203, other}},
			{inst(isa.Call, 5), moment{0x203, other}, moment{0x300, other - 8}}}, []uint64{0x208, 0x105}, false},
		"and back": {[]move{call(0x100, sp, 0x200),
			{inst(isa.Next, 3), moment{0x200, sp - 8}, moment{0x203, other}},
			{inst(isa.Call, 5), moment{0x203, other}, moment{0x300, other - 8}},
			{inst(isa.Return, 1), moment{0x300, other - 8}, moment{0x208, other}},
			{inst(isa.Next, 3), moment{0x208, other}, moment{0x20b, sp - 8}}}, []uint64{0x105}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var s Shadow
			for _, m := range c.moves {
				s.step(m.in, m.from, m.to, memory{}.word)
			}
			if got := chain(&s); !slices.Equal(got, c.want) || s.lost != c.lost {
				t.Errorf("chain %#x lost %v, want %#x lost %v", got, s.lost, c.want, c.lost)
			}
		})
	}
}

// A switch by a jump leaves the old stack for when the thread comes back.
func TestShadowSwitch(t *testing.T) {
	const sp, other = 0x7fff0000, 0x500000000
	const call = 0xe8 << (8 * 3) // five bytes before the end of a word
	mem := memory{other: 0x999, 0x991: call, sp - 8: 0x105}
	var s Shadow
	s.step(inst(isa.Call, 5), moment{0x100, sp}, moment{0x200, sp - 8}, mem.word)
	s.step(inst(isa.Next, 3), moment{0x200, sp - 8}, moment{0x203, other}, mem.word)
	s.step(inst(isa.IndirectJump, 2), moment{0x203, other}, moment{0x700, other}, mem.word)
	if got := chain(&s); !slices.Equal(got, []uint64{0x999}) || !s.partial {
		t.Errorf("new stack: %#x partial %v", got, s.partial)
	}
	s.step(inst(isa.Next, 3), moment{0x700, other}, moment{0x703, sp - 8}, mem.word)
	s.step(inst(isa.Return, 1), moment{0x703, sp - 16}, moment{0x210, sp - 8}, mem.word)
	if got := chain(&s); !slices.Equal(got, []uint64{0x105}) || s.partial || s.lost {
		t.Errorf("old stack: %#x partial %v lost %v", got, s.partial, s.lost)
	}
}

// Where a stack was made to begin is no caller: no call precedes it.
func TestShadowMadeStack(t *testing.T) {
	const sp, other = 0x7fff0000, 0x500000000
	mem := memory{other: 0x999, 0x991: 0}
	var s Shadow
	s.step(inst(isa.Next, 3), moment{0x200, sp - 8}, moment{0x203, other}, mem.word)
	s.step(inst(isa.IndirectJump, 2), moment{0x203, other}, moment{0x700, other}, mem.word)
	if got := chain(&s); len(got) != 0 || !s.partial {
		t.Errorf("new stack: %#x partial %v", got, s.partial)
	}
}

func TestShadowSignal(t *testing.T) {
	const sp = 0x7fff0000
	mem := memory{}
	var s Shadow
	s.step(inst(isa.Call, 5), moment{0x100, sp}, moment{0x200, sp - 8}, mem.word)
	s.signal(moment{0x200, sp - 8}, moment{0x800, sp - 0x500}, 0x900, 8)
	if got := chain(&s); !slices.Equal(got, []uint64{0x900, 0x200, 0x105}) {
		t.Errorf("in the handler: %#x", got)
	}
	s.step(inst(isa.Return, 1), moment{0x801, sp - 0x500}, moment{0x900, sp - 0x4f8}, mem.word)
	s.sigreturn(moment{0x200, sp - 8}, mem.word)
	if got := chain(&s); !slices.Equal(got, []uint64{0x105}) || s.lost {
		t.Errorf("after it: %#x lost %v", got, s.lost)
	}
}

// A signal between a switch of the stack and the call there, as in Go's
// morestack: afterwards the call is still one of a function that has switched.
func TestShadowSignalInSwitch(t *testing.T) {
	const sp, other, handler = 0x7fff0000, 0x500000000, 0x600000000
	mem := memory{}
	var s Shadow
	s.step(inst(isa.Call, 5), moment{0x100, sp}, moment{0x200, sp - 8}, mem.word)
	s.step(inst(isa.Next, 3), moment{0x200, sp - 8}, moment{0x203, other}, mem.word)
	s.signal(moment{0x203, other}, moment{0x800, handler}, 0x900, 8)
	s.step(inst(isa.Call, 5), moment{0x800, handler}, moment{0x850, handler - 8}, mem.word)
	if top := s.top(); top.switched || s.lost || !s.unsettled() {
		t.Errorf("in the handler: switched %v lost %v unsettled %v", top.switched, s.lost, s.unsettled())
	}
	s.step(inst(isa.Return, 1), moment{0x850, handler - 8}, moment{0x805, handler}, mem.word)
	s.step(inst(isa.Return, 1), moment{0x806, handler}, moment{0x900, handler + 8}, mem.word)
	s.sigreturn(moment{0x203, other}, mem.word)
	if !s.lost || !s.switched {
		t.Errorf("after it: lost %v switched %v", s.lost, s.switched)
	}
	s.step(inst(isa.Call, 5), moment{0x203, other}, moment{0x300, other - 8}, mem.word)
	if got := chain(&s); !slices.Equal(got, []uint64{0x208, 0x105}) || !s.top().switched || s.unsettled() {
		t.Errorf("called: %#x switched %v unsettled %v", got, s.top().switched, s.unsettled())
	}
}

// A return address that is taken off the stack unread is gone when it is overwritten;
// one that was read is not, nor one that is still there.
func TestShadowDropped(t *testing.T) {
	const sp = 0x7fff0000
	rsp := procstate.AMD64.SP
	drop := &isa.Inst{Len: 4, NumOps: 1, Ops: [isa.MaxOps]isa.Op{{Kind: isa.Set, Dst: rsp, Src: rsp, Imm: 8}}}
	pop := &isa.Inst{Len: 1, NumOps: 2, Ops: [isa.MaxOps]isa.Op{{Kind: isa.Set, Dst: rsp, Src: rsp, Imm: 8}, {Kind: isa.Load, Src: rsp, Imm: -8}}}
	for _, c := range []struct {
		name    string
		takeOff *isa.Inst
		slot    uint64 // what is where the return address was
		want    []uint64
		leftOut bool // a walk is right without it before
	}{
		{"overwritten", drop, 0x111, []uint64{0x105}, false},
		{"still there", drop, 0x205, []uint64{0x205, 0x105}, false},
		{"still there, left out", drop, 0x205, []uint64{0x205, 0x105}, true},
		{"read and overwritten", pop, 0x111, []uint64{0x205, 0x105}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := memory{sp - 16: c.slot}
			var s Shadow
			s.step(inst(isa.Call, 5), moment{0x100, sp}, moment{0x200, sp - 8}, mem.word)
			s.step(inst(isa.Call, 5), moment{0x200, sp - 8}, moment{0x300, sp - 16}, mem.word)
			var regs procstate.Regs
			regs.Set(rsp, sp-16)
			s.watch(c.takeOff, &regs)
			s.step(c.takeOff, moment{0x300, sp - 16}, moment{0x304, sp - 8}, mem.word)
			s.forget(sp-8, mem.word)
			if got := chain(&s); !slices.Equal(got, c.want) || s.lost {
				t.Errorf("chain %#x lost %v, want %#x", got, s.lost, c.want)
			}
			other := s.withoutDropped()
			if (other != nil) != (c.slot == 0x205) || other != nil && !slices.Equal(chain(other), []uint64{0x105}) {
				t.Errorf("without what was dropped: %+v", other)
			}
			if other != nil && c.leftOut {
				s.top().leftOut = true
			}
			s.step(inst(isa.Return, 1), moment{0x310, sp - 16}, moment{0x205, sp - 8}, mem.word)
			if wrong := len(c.want) == 1 || c.leftOut; (s.SeedErrors > 0) != wrong {
				t.Errorf("%d errors when it is returned to", s.SeedErrors)
			}
		})
	}
}

// A function that takes arguments off the stack, over which it has put its return address, has the same caller when it
// returns, or jumps to another; what the caller pushes then is no return address.
func TestShadowArguments(t *testing.T) {
	const sp = 0x7fff0000
	reg := procstate.AMD64.SP
	load := &isa.Inst{Len: 4, NumOps: 1, Ops: [isa.MaxOps]isa.Op{{Kind: isa.Load, Dst: 10, Src: reg}}}
	add := func(n int64) *isa.Inst {
		return &isa.Inst{Len: 4, NumOps: 1, Ops: [isa.MaxOps]isa.Op{{Kind: isa.Set, Dst: reg, Src: reg, Imm: n}}}
	}
	pushMemory := &isa.Inst{Len: 3, NumOps: 2, Ops: [isa.MaxOps]isa.Op{{Kind: isa.Load, Dst: isa.Temp, Src: procstate.AMD64.FP}, {Kind: isa.Set, Dst: reg, Src: reg, Imm: -8}}}
	called := func(mem memory) *Shadow {
		var s Shadow
		s.step(inst(isa.Call, 5), moment{0x100, sp}, moment{0x200, sp - 8}, mem.word)
		s.step(inst(isa.Call, 5), moment{0x200, sp - 32}, moment{0x300, sp - 40}, mem.word)
		var regs procstate.Regs
		regs.Set(reg, sp-40)
		s.watch(load, &regs)
		s.step(load, moment{0x300, sp - 40}, moment{0x304, sp - 40}, mem.word)
		return &s
	}
	t.Run("return", func(t *testing.T) {
		mem := memory{sp - 24: 0x205, sp - 16: 0x777}
		s := called(mem)
		s.step(add(24), moment{0x304, sp - 40}, moment{0x308, sp - 16}, mem.word)
		if !s.lost {
			t.Error("SP is above the frame, and the caller is taken for known")
		}
		s.step(inst(isa.Next, 2), moment{0x308, sp - 16}, moment{0x30a, sp - 24}, mem.word)
		s.step(inst(isa.Return, 1), moment{0x30a, sp - 24}, moment{0x205, sp - 16}, mem.word)
		mem[sp-24] = 0x777
		s.step(pushMemory, moment{0x205, sp - 16}, moment{0x208, sp - 24}, mem.word)
		if got := chain(s); !slices.Equal(got, []uint64{0x105}) || s.lost {
			t.Errorf("chain %#x lost %v", got, s.lost)
		}
	})
	for name, c := range map[string]struct {
		flow isa.Flow
		off  int64  // that SP is moved by before the jump
		atSP uint64 // what is there then
		want []uint64
		ends uint64 // of the frame
	}{
		"jump":                {isa.Jump, 16, 0x205, []uint64{0x205, 0x105}, sp - 16},
		"by one word":         {isa.Jump, 8, 0x205, []uint64{0x205, 0x105}, sp - 24},
		"jump out of a frame": {isa.Jump, 16, 0x777, []uint64{0x105}, sp},
		"within the function": {isa.Jump, 8, 0x777, []uint64{0x205, 0x105}, sp - 32},
		"return by a jump":    {isa.IndirectJump, 8, 0x777, []uint64{0x105}, sp},
	} {
		t.Run(name, func(t *testing.T) {
			mem := memory{sp - 40 + uint64(c.off): c.atSP}
			s, to := called(mem), sp-40+uint64(c.off)
			s.step(add(c.off), moment{0x304, sp - 40}, moment{0x308, to}, mem.word)
			s.step(inst(c.flow, 5), moment{0x308, to}, moment{0x400, to}, mem.word)
			if got := chain(s); !slices.Equal(got, c.want) || s.lost {
				t.Fatalf("chain %#x lost %v, want %#x", got, s.lost, c.want)
			}
			if top := s.top(); top.sp != c.ends {
				t.Errorf("its frame ends at %#x, not %#x", top.sp, c.ends)
			}
		})
	}
}

// An overwritten return address leads out of the frames above the function that it
// belongs to, or that it is a copy of the return address in.
func TestShadowResuming(t *testing.T) {
	recs := []record{{pc: 0x105, sp: 0x1000}, {pc: 0x205, sp: 0xf00}, {pc: 0x305, sp: 0xe00}}
	there := memory{0x1000 - 8: 0x105, 0xf00 - 8: 0x205, 0xe00 - 8: 0x305}
	for _, c := range []struct {
		name string
		at   uint64
		ra   uint64
		want []uint64
	}{
		{"a landing pad", 0xf00 - 8, 0x260, []uint64{0x260, 0x105}},
		{"a copy", 0xe00 - 8, 0x105, []uint64{0x105}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Shadow{recs: recs}
			if !s.intact(there.word) || len(s.resuming(there.word)) != 0 {
				t.Fatal("overwritten from the start")
			}
			now := maps.Clone(there)
			now[c.at] = c.ra
			others := s.resuming(now.word)
			if s.intact(now.word) || len(others) != 1 || !slices.Equal(chain(others[0]), c.want) {
				t.Errorf("intact %v, %d others, want %#x", s.intact(now.word), len(others), c.want)
			}
			if !slices.Equal(chain(&s), []uint64{0x305, 0x205, 0x105}) {
				t.Errorf("the chain has changed: %#x", chain(&s))
			}
		})
	}
}
