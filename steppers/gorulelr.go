package steppers

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// Instructions of arm64 as they are in memory.
var (
	moveX0ToSP  = []byte{0x1f, 0x00, 0x00, 0x91} // read only: mov sp,x0
	moveX2ToSP  = []byte{0x5f, 0x00, 0x00, 0x91} // read only: mov sp,x2
	moveX5ToSP  = []byte{0xbf, 0x00, 0x00, 0x91} // read only: mov sp,x5
	moveX13ToSP = []byte{0xbf, 0x01, 0x00, 0x91} // read only: mov sp,x13
	storeX2     = []byte{0xe2, 0x07, 0x00, 0xf9} // read only: str x2,[sp,#8]
)

// ruleARM64 completes the rule of a function of arm64 that needs care, at offset at of its
// code.
func ruleARM64(code []byte, at uint64, name string, spWrite bool, r *goRule) {
	switch r.kind {
	case goMcall, goMorestack:
		leavingARM64(code, at, r)
	case goGogo:
		if lostLR(code, at) {
			r.base = -1
		}
	case goSystemstack:
		if !onSystemstack(code, at, false) {
			r.kind = goAsm
		}
	case goCgocallback:
		if r.depth = callbackKeepsLR; !onGoroutineInCallback(code, at, false) {
			r.kind, r.base = goAsm, callbackOnG0
		}
	case goAsmcgocall:
		asmcgocallARM64(code, at, r)
	case goCrosscall2:
		if name != "crosscall2" {
			r.kind = goAsm
		} else {
			crosscall2ARM64(code, at, r)
		}
	case goClone:
		r.kind = cloneKind(code, at, false)
	case goAsm:
		if spWrite {
			savedSPRule(code, at, false, r)
		}
	}
	if r.kind == goAsm {
		r.delta = poppedDelta(code, at, r.delta)
		if r.depth = savedLR(code, at, r.delta); overwritesLR(code) {
			r.depth = -1
		}
	}
}

// savedLR returns how far above SP a function written in assembly keeps its
// return address at offset at of its code, given its SPDelta there: it is saved
// at SP by the first instruction, which makes the frame, but the code may move
// SP further.
func savedLR(code []byte, at uint64, delta int32) int32 {
	const push, operand = 0xf8000ffe, 0x1ff << 12 // str x30,[sp,#-n]!
	if len(code) < 4 || at < 4 {
		return 0
	}
	inst := binary.LittleEndian.Uint32(code)
	frame := -(int32(inst<<11) >> 23)
	if inst&^operand != push || frame <= 0 || delta <= frame {
		return 0
	}
	return delta - frame
}

// overwritesLR reports whether a function written in assembly puts something else where it
// has saved its return address, as chacha8rand.block does: it calls nothing, and returns by the
// register.
func overwritesLR(code []byte) (does bool) {
	const (
		store, operand = 0xb90003e0, 1<<30 | 0x1f // str w0,[sp], or x0
		callByReg, reg = 0xd63f0000, 0x1f << 5    // blr x0
	)
	if len(code) == maxGoAsmCode {
		return false // there may be more
	}
	for ; len(code) >= 4; code = code[4:] {
		switch inst := binary.LittleEndian.Uint32(code); {
		case inst&^ofCall == callARM64, inst&^reg == callByReg:
			return false
		case inst&^operand == store && inst&0x1f != 30:
			does = true
		}
	}
	return does
}

// poppedDelta returns what SPDelta should be at offset at of a function written in
// assembly. The table leaves out that systemstack pops its frame before it jumps
// to the function that it was to call.
func poppedDelta(code []byte, at uint64, delta int32) int32 {
	const pop, operand = 0xf84007fe, 0x1ff << 12 // ldr x30,[sp],#n
	for i := at &^ 3; i >= 4 && i <= uint64(len(code)) && delta > 0; {
		i -= 4
		switch inst := binary.LittleEndian.Uint32(code[i:]); {
		case inst == pop|uint32(delta)<<12&operand:
			return 0
		case inst>>26 == 0x14000000>>26, inst>>25 == 0xd6000000>>25, inst&^ofCall == callARM64: // b, br, ret, bl
			return delta
		}
	}
	return delta
}

// Calls and jumps, and their operand.
const (
	callARM64 = 0x94000000 // bl
	jumpARM64 = 0x14000000 // b
	ofCall    = 1<<26 - 1
)

// lostLR reports whether offset at of gogo, which keeps no return address but the
// link register, lies behind its call of save_g, which overwrites that, and
// before the goroutine's stack.
func lostLR(code []byte, at uint64) bool {
	to := bytes.Index(code, moveX0ToSP)
	for i := 0; i < to; i += 4 {
		if binary.LittleEndian.Uint32(code[i:])&^ofCall == callARM64 {
			return at > uint64(i) && at <= uint64(to)
		}
	}
	return false
}

// onlyCall finds the return address of gogo where nothing keeps it. SP is that
// of the function that called gogo, which has its own return address there: a
// call stands before that, of this very function, which calls gogo at one place
// only. Where one of that is not so it is not known.
func (f *goFrame) onlyCall() (pc uint64, ok bool) {
	const maxCode = 32 << 10
	t, img := f.s.image(f.m.Image).table, f.m.Image
	gogo, ok := t.Func(f.in.LookupPC() - f.m.Bias)
	if !ok {
		return 0, false
	}
	ra, ok := f.mem.ReadWord(f.in.SP())
	if !ok || !f.isGo(ra) {
		return 0, false
	}
	entry, ok := branchARM64(img, ra-f.m.Bias-4, callARM64)
	if !ok {
		return 0, false
	}
	caller, ok := t.Func(entry)
	if !ok || caller.Entry != entry || caller.End-entry > maxCode {
		return 0, false
	}
	for at := entry; at < caller.End; at += 4 {
		to, ok := branchARM64(img, at, callARM64)
		if !ok || to != gogo.Entry && !goesOnTo(img, t, to, gogo.Entry) {
			continue
		}
		if pc != 0 {
			return 0, false
		}
		pc = at + 4 + f.m.Bias
	}
	return pc, pc != 0
}

// goesOnTo reports whether a short function ends with a jump to another, as
// runtime.gogo does.
func goesOnTo(img *procstate.Image, t *procstate.GoTable, entry, other uint64) bool {
	const most = 64 // bytes
	fn, ok := t.Func(entry)
	if !ok || fn.Entry != entry {
		return false
	}
	for at := entry; at < fn.End && at < entry+most; at += 4 {
		if to, ok := branchARM64(img, at, jumpARM64); ok && to == other {
			return true
		}
	}
	return false
}

// branchARM64 returns where the instruction at a link-time address leads, if it
// is a call or jump as kind says.
func branchARM64(img *procstate.Image, at uint64, kind uint32) (to uint64, ok bool) {
	var code [4]byte
	if img.ReadVaddr(code[:], at) != nil {
		return 0, false
	}
	inst := binary.LittleEndian.Uint32(code[:])
	return at + uint64(int64(int32(inst<<6))>>4), inst&^ofCall == kind
}

// leavingARM64 tells mcall and morestack before they go over to g0, where r.kind
// becomes goLeaving. A little before, the call of save_g overwrites the link
// register; then where the goroutine goes on is in its sched already, as
// afterwards. In morestack X3 is the link register of its caller.
func leavingARM64(code []byte, at uint64, r *goRule) {
	if i := bytes.Index(code, moveX0ToSP); i >= 0 {
		for i -= 4; i > 0 && binary.LittleEndian.Uint32(code[i:])&^ofCall != callARM64; i -= 4 {
		}
		if at > uint64(max(i, 0)) {
			return
		}
	}
	r.reg = procstate.NoReg
	if r.kind == goMorestack {
		r.reg = 3
	}
	r.kind = goLeaving
}

// asmcgocallARM64 is asmcgocallSlots and asmcgocallMet: all versions keep g at SP
// and the depth behind it or, where they are on g0 already, zero and SP.
func asmcgocallARM64(code []byte, at uint64, r *goRule) {
	r.base, r.depth, r.met = -1, 8, goAsm
	second := bytes.LastIndex(code, moveX13ToSP)
	switch {
	case second < 0:
		r.met = goForeign
	case at < uint64(second):
		if between(code[:second], at, moveX13ToSP, moveX5ToSP) {
			r.base = 0
		}
		if between(code[:second], at, moveX0ToSP, moveX5ToSP) {
			r.met = goAsmcgocall
		}
	case between(code[second:], at-uint64(second), moveX13ToSP, moveX2ToSP):
		r.base, r.met, r.reg = -2, goSavedSP, 2
		if behind(code[second:], at-uint64(second), storeX2) {
			r.met = goStoredSP
		}
	}
}

// crosscall2ARM64 finds where in its frame crosscall2 has saved the registers
// that C expects to be preserved, at offset at of its code: X19 to X28, and FP
// and LR. All are still in place when the last of them, FP and LR, are not saved
// yet; then r.depth is 0.
func crosscall2ARM64(code []byte, at uint64, r *goRule) {
	// stp x19,x20,[sp,#n] and stp x29,x30,[sp,#n], with n/8 in bits 15 to 21
	const saveX19, saveFP, operand = 0xa90053f3, 0xa9007bfd, 0x7f << 15
	for i := 0; i+4 <= len(code) && uint64(i) < at; i += 4 {
		inst := binary.LittleEndian.Uint32(code[i:])
		switch n := int32(inst>>15&0x3f) * 8; inst &^ operand {
		case saveX19:
			r.base = n
		case saveFP:
			r.depth = n
			return
		}
	}
}
