package unwind

import "github.com/swbpf/swbpf/procstate"

// GCC puts code in place of an indirect branch or a return, where it is asked to
// (-mindirect-branch=thunk-inline and the like), that pushes an address by a call and
// takes it off again, and writes DW_CFA_def_cfa_offset 16 behind the push. That is
// right where nothing else is on the stack, and nothing takes it back: in
// the middle of a function it holds for all code up to the next change of SP.
//
//	call 2f
//	1: pause; lfence; jmp 1b
//	2: mov %rax,(%rsp)             LOC 2: CFA rsp+16
//	ret                            until here
//
// Or, in place of a return, where the ret finds the stack as it was:
//
//	2: lea 0x8(%rsp),%rsp          LOC 2: CFA rsp+16
//	ret

const (
	thunkPush   = "\xe8\x07\x00\x00\x00\xf3\x90\x0f\xae\xe8\xeb\xf9"
	thunkOffset = 16
	thunkPop    = "\x48\x8d\x64\x24\x08" // lea 0x8(%rsp),%rsp
	thunkEnd    = 5                      // bytes for which the CFA is higher, either way
)

// thunk is what a program knows of the thunk that it is at.
type thunk struct {
	img   *procstate.Image // whose CFI it is; nil: not looked for
	prev  uint64           // where the row before the present one began
	until uint64           // the end of what the word pushed is there for; 0: none is
	at    uint64           // the end of the row behind that; 0: not known
	cfa   int64            // the offset of the CFA there
	code  [len(thunkPush) + thunkEnd]byte
}

// push sets right the row that an offset of 16 bytes makes, from one of so many
// bytes before, where it is that of a thunk.
func (p *program) push(before int64) {
	t := &p.thunk
	t.until = 0
	if t.img == nil || p.row.CFA.Offset != thunkOffset || p.row.CFA.Reg != procstate.AMD64.SP || p.arch != procstate.AMD64 ||
		p.loc-t.prev < uint64(len(thunkPush)) || t.img.ReadVaddr(t.code[:], p.loc-uint64(len(thunkPush))) != nil {
		return
	}
	last := t.code[len(thunkPush):]
	if string(t.code[:len(thunkPush)]) != thunkPush || string(last) != thunkPop &&
		(last[0]&^4 != 0x48 || last[1] != 0x89 || last[2]&^0x38 != 0x04 || last[3] != 0x24 || last[4] != 0xc3) {
		return
	}
	p.row.CFA.Offset = before + 8
	t.until, t.at, t.cfa = p.loc+thunkEnd, 0, before
}

// split returns the end of the row that ends at end, or with the function when more
// is not set, before what is pushed there has gone.
func (t *thunk) split(end uint64, more bool) (uint64, bool) {
	if t.until == 0 || more && end <= t.until {
		return end, more
	}
	if more {
		t.at = end
	}
	return t.until, true
}
