package lua

import (
	"encoding/binary"
	"math/bits"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// Collector returns a Collector of what walks need of Lua; nil where none of the libraries of the process has it.
func Collector(libs procstate.LibraryState) procstate.Collector {
	if libs == nil {
		return nil
	}
	s := New(nil)
	c := &collector{}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.fields != nil {
			c.runs = append(c.runs, interpreterCode{p.fields, p.arch, mcode.Range{Start: p.execute.Start + lib.Bias, End: p.execute.End + lib.Bias}})
		}
	}
	if len(c.runs) == 0 {
		return nil
	}
	return c.collect
}

type collector struct {
	runs []interpreterCode
	pace vmread.Pace
}

// interpreterCode is where a Lua of a process runs, by run-time addresses.
type interpreterCode struct {
	fields  *fields
	arch    *procstate.Arch
	execute mcode.Range
}

const (
	luaCollected = 256 << 10 // bytes of a stack in which lua_States are looked for,
	luaPiece     = 16 << 10
	maxLuaWords  = 1 << 13 // and words that may be one
)

// collect is the Collector: it adds the calls of each lua_State to which a register or a word on the stack leads, of
// threads that run luaV_execute.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	a := c.runs[0].arch
	sp := regs.Raw(a.SP)
	words := map[uint64]bool{}
	var runs *interpreterCode
	take := func(v uint64) {
		for i := range c.runs {
			if r := &c.runs[i]; v&a.CodeMask-r.execute.Start < r.execute.End-r.execute.Start {
				runs = r
				return
			}
		}
		const least = 1 << 16
		if v >= least && v%8 == 0 && v-sp >= luaCollected && len(words) < maxLuaWords {
			words[v] = true
		}
	}
	for saved := a.CalleeSaved &^ (1 << a.SP); saved != 0; saved &= saved - 1 {
		take(regs.Raw(procstate.Reg(bits.TrailingZeros64(saved))))
	}
	take(regs.Raw(a.PC))
	if a.LR != procstate.NoReg {
		take(regs.Raw(a.LR))
	}
	piece := make([]byte, luaPiece)
	for at := sp; at-sp < luaCollected; at += luaPiece {
		n := procstate.ReadPart(m, at, piece)
		for b := piece[:max(n, 0)&^7]; len(b) > 0; b = b[8:] {
			take(binary.LittleEndian.Uint64(b))
		}
		if n < len(piece) {
			break
		}
	}
	if runs == nil {
		return
	}
	read := func(addr uint64, b []byte) bool { return c.pace.May(len(b)) && vmread.ReadAll(m, addr, b) }
	f, states := runs.fields, 0
	head := make([]byte, f.state)
	for v := range words {
		if !read(v, head) || !isState(f, head) {
			continue
		}
		add(v, len(head))
		collect(read, f, head, add)
		if states++; states == maxStates {
			return
		}
	}
}

// collect adds the calls of a lua_State.
func collect(read vmread.Reader, f *fields, head []byte, add func(addr uint64, n int)) {
	le := binary.LittleEndian
	at := le.Uint64(head[f.ci:])
	if f.previous == 0 {
		begin, stack, top := le.Uint64(head[luaCallBegin:]), le.Uint64(head[luaStack:]), le.Uint64(head[f.top:])
		if begin <= at && at-begin <= maxCalls*f.callBytes {
			add(begin, int(at-begin+f.callBytes))
		}
		const most = 16 << 20
		if stack < top && top-stack <= most {
			add(stack, int(top-stack))
		}
		return
	}
	for n := 0; at != 0 && at%8 == 0 && n < maxCalls; n++ {
		previous, ok := read.Word(at + f.previous)
		if !ok {
			return
		}
		add(at, int(f.callBytes))
		at = previous
	}
}
