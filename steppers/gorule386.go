package steppers

import (
	"bytes"

	"github.com/swbpf/swbpf/procstate"
)

// Registers of i386 in the DWARF numbering.
const (
	ebp procstate.Reg = 5
	esi procstate.Reg = 6
)

// rule386 completes the rule of a function of i386 that needs care, at offset at of its
// code. The goroutine that a thread serves on its own stack is not looked for: walks end
// where a function has changed over to that.
func rule386(code []byte, at uint64, spWrite bool, r *goRule) {
	switch r.kind {
	case goSystemstack:
		// mov %ebx,%esp; mov 0x1c(%eax),%esp
		r.kind = goAsm
		if between(code, at, []byte{0x89, 0xdc}, []byte{0x8b, 0x60, 0x1c}) {
			r.kind = goElsewhere
		}
	case goMcall:
		if !behind(code, at, []byte{0x8b, 0x66, 0x1c}) { // mov 0x1c(%esi),%esp
			r.kind = goAsm
		}
	case goMorestack:
		if !behind(code, at, []byte{0x89, 0xc4}) { // mov %eax,%esp
			r.kind = goAsm
		}
	case goGogo:
		r.kind = goAsm
		if behind(code, at, []byte{0x8b, 0x23}) { // mov (%ebx),%esp
			r.kind = goElsewhere
		}
	case goAsmcgocall:
		r.kind = goAsm
		if behind(code, at, []byte{0x8b, 0x66, 0x1c}) { // mov 0x1c(%esi),%esp
			r.kind = goElsewhere
		}
	case goCgocallback, goCrashStack:
		r.kind = goElsewhere
	case goCrosscall2:
		r.kind = goAsm
	case goClone:
		r.kind = cloneKind386(code, at)
	case goAsm:
		// mov %esp,%ebp; mov %ebp,%esp
		if spWrite && between(code, at, []byte{0x89, 0xe5}, []byte{0x89, 0xec}) {
			r.kind, r.reg = goSavedSP, ebp
		}
		if r.delta == -4 { // see rawVforkSyscall in ruleAMD64
			r.kind, r.reg = goPoppedRA, esi
		}
	}
}

// cloneKind386 is cloneKind for i386, where the new thread goes on behind the way out of
// the old one.
func cloneKind386(code []byte, at uint64) goKind {
	call := bytes.Index(code, []byte{0xcd, 0x80}) // int $0x80
	if call < 0 || at <= uint64(call) {
		return goAsm
	}
	switch ret := bytes.IndexByte(code[call:], 0xc3); {
	case ret < 0:
		return goElsewhere
	case at > uint64(call+ret):
		return goTop
	}
	return goClone
}
