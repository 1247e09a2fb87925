package steppers

import (
	"bytes"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// goKind says how the frame of a Go function is walked through.
type goKind uint8

const (
	goForeign     goKind = iota // not in the table, or the table does not tell
	goPlain                     // the caller's SP is delta above SP
	goAsm                       // the same, but BP need not be a frame pointer
	goTop                       // the first frame of its stack: goexit, rt0_go
	goMstart                    // runtime.mstart, the first function of a thread
	goSchedule                  // runtime.schedule
	goRt0                       // runtime.rt0_go, entered by the kernel or by C
	goSystemstack               // runtime.systemstack, between its switches
	goMcall                     // runtime.mcall
	goMorestack                 // runtime.morestack
	goGogo                      // gogo, which goes over to a goroutine; amd64: when it has
	goAsmcgocall                // runtime.asmcgocall
	goCgocallback               // runtime.cgocallback, while on the goroutine's stack
	goSavedSP                   // on another stack; SP is kept in register reg
	goStoredSP                  // SP was aligned; the former value is at SP + depth
	goCrosscall2                // crosscall2 and racecallbackthunk, called by C
	goLinkedC                   // C that Go's linker has put in, of which the table has the place alone
	goPoppedRA                  // the return address is in register reg
	goClone                     // runtime.clone, in the parent or in the new thread
	goCrashStack                // runtime.switchToCrashStack0
	goInjected                  // called by a signal handler in the name of what it interrupted
	goElsewhere                 // i386: on another stack than its caller, which is not looked for
	goLeaving                   // arm64: runtime.mcall or morestack, on the goroutine's stack
)

// goRule is how to walk through the frame of a Go function that is at an
// instruction. It is cached by link-time address.
type goRule struct {
	vaddr uint64
	image uint32 // Image.Index + 1
	delta int32  // see procstate.GoTable.SPDelta
	base  int32  // goCrosscall2: see crosscall2Base; on arm64 the offset of the saved X19; goAsmcgocall: offset of the saved g; goGogo: -1 where the return address is lost; goAsm: callbackOnG0 in cgocallback
	depth int32  // goAsmcgocall: offset of the saved depth or SP; goStoredSP and goCgocallback: of SP; goCrosscall2: see crosscall2Saves; goGogo: of BP in the gobuf while it is to be loaded; on arm64 goCrosscall2: of the saved X29 and X30, goAsm: of the saved X30, -1 where X30 alone is to be trusted
	kind  goKind
	met   goKind // goAsmcgocall: how to walk when interrupted there
	reg   procstate.Reg
}

// goKinds are the functions that need care, by the name that the table has
// for them, without the suffix of their ABI.
var goKinds = map[string]goKind{ // read only
	"runtime.schedule":     goSchedule,
	"runtime.rt0_go":       goRt0,
	"runtime.systemstack":  goSystemstack,
	"runtime.mcall":        goMcall,
	"runtime.morestack":    goMorestack,
	"gogo":                 goGogo,
	"runtime.asmcgocall":   goAsmcgocall,
	"runtime.cgocallback":  goCgocallback,
	"runtime.mstart":       goMstart,
	"_rt0_amd64":           goTop, // part of the entry point, without its mark
	"_rt0_amd64_linux":     goTop,
	"_rt0_386":             goTop,
	"_rt0_386_linux":       goTop,
	"_rt0_arm64":           goTop,
	"_rt0_arm64_linux":     goTop,
	"crosscall2":           goCrosscall2,
	"runtime.sigtramp":     goAsm, // marked as top frame, but it returns to the trampoline
	"runtime.cgoSigtramp":  goAsm,
	"runtime.asyncPreempt": goInjected,
	"runtime.debugCallV2":  goInjected,
	"runtime.clone":        goClone,

	"runtime.racecallbackthunk":   goCrosscall2, // which saves the same registers
	"runtime.switchToCrashStack0": goCrashStack,
	"runtime.morestack_noctxt":    goMorestack, // which it goes on to
}

var goCompiled = map[string]goKind{ // read only
	"runtime.schedule": goSchedule,
	"runtime.sigpanic": goInjected,
}

// rule returns the rule for the instruction at a link-time address.
func (s *Go) rule(img *procstate.Image, t *procstate.GoTable, vaddr uint64) *goRule {
	r := s.slot(img, vaddr)
	if !r.isOf(img, vaddr) {
		before := t.Memory()
		*r = makeGoRule(img, t, vaddr)
		r.vaddr, r.image = vaddr, img.Index+1
		if s.kept += t.Memory() - before; s.kept > goTableBudget {
			s.forgetTables()
		}
	}
	return r
}

// slot returns the place for the rule of a link-time address, which may hold
// another's.
func (s *Go) slot(img *procstate.Image, vaddr uint64) *goRule {
	h := (vaddr ^ uint64(img.Index)<<48) * 0x9e3779b97f4a7c15
	return &s.rules[h>>(64-12)]
}

// isOf reports whether r is the rule of a link-time address.
func (r *goRule) isOf(img *procstate.Image, vaddr uint64) bool {
	return r.vaddr == vaddr && r.image == img.Index+1
}

// forgetTables lets go of what is kept of function tables.
func (s *Go) forgetTables() {
	for _, im := range s.images.Of {
		if im != nil && im.table != nil {
			im.table.Forget()
		}
	}
	s.kept = 0
}

func makeGoRule(img *procstate.Image, t *procstate.GoTable, vaddr uint64) (r goRule) {
	f, ok := t.Func(vaddr)
	if !ok {
		return r
	}
	name := strings.TrimSuffix(f.Name(), ".abi0")
	if r.delta, ok = t.SPDelta(&f, vaddr); !ok || name == "" { // or it cannot be read
		if !f.HasSPDeltas() && name != "" {
			r.kind = goLinkedC
		}
		return r
	}
	switch r.kind = goKindOf(&f, name); r.kind {
	case goPlain, goTop, goMstart, goSchedule, goInjected:
		return r // the code tells no more
	}
	switch at := vaddr - f.Entry; img.Arch() {
	case procstate.AMD64:
		ruleAMD64(img, t, &f, at, &r)
	case procstate.ARM64:
		ruleARM64(funcCode(img, &f), at, name, writesSP(&f), &r)
	case procstate.I386:
		rule386(funcCode(img, &f), at, writesSP(&f), &r)
	}
	return r
}

// goKindOf is what the table tells of how to walk through a function with a name.
func goKindOf(f *procstate.GoFunc, name string) goKind {
	kind, kinds := goPlain, goCompiled
	if f.Flag&procstate.GoFuncAsm != 0 { // the wrappers of these functions have the same names
		kind, kinds = goAsm, goKinds
	}
	if k, ok := kinds[name]; ok {
		return k
	}
	if f.Flag&procstate.GoFuncTopFrame != 0 {
		return goTop
	}
	return kind
}

// writesSP reports whether a function sets SP to what it has got elsewhere.
func writesSP(f *procstate.GoFunc) bool { return f.Flag&procstate.GoFuncSPWrite != 0 }

// ruleAMD64 completes the rule of a function of amd64 that needs care, at offset at of
// its code.
func ruleAMD64(img *procstate.Image, t *procstate.GoTable, f *procstate.GoFunc, at uint64, r *goRule) {
	code := funcCode(img, f)
	switch r.kind {
	case goRt0:
		// sub $40,%rsp, which the table does not count
		if i := bytes.Index(code, []byte{0x48, 0x83, 0xec, 0x28}); i >= 0 && at >= uint64(i)+4 {
			r.delta += 40
		}
	case goMcall, goMorestack:
		if !behind(code, at, loadsG0SP[r.kind]) {
			r.kind = goAsm
		}
	case goGogo:
		gogoRule(code, at, r)
	case goSystemstack:
		if !onSystemstack(code, at, true) {
			r.kind = goAsm
		}
	case goCgocallback:
		if !onGoroutineInCallback(code, at, true) {
			r.kind, r.base = goAsm, callbackOnG0
		}
	case goAsmcgocall:
		if !asmcgocallSlots(code, at, r) {
			r.base = -1
		}
		asmcgocallMet(code, at, r)
	case goCrosscall2:
		r.base, r.depth = crosscall2Base(img, t, f), crosscall2Saves(code, at)
	case goClone:
		r.kind = cloneKind(code, at, true)
	case goAsm:
		switch {
		case r.delta == -8:
			// rawVforkSyscall keeps its return address away from the child, which
			// runs on the same stack.
			r.kind, r.reg = goPoppedRA, r12
		case !writesSP(f):
		case between(code, at, []byte{0x48, 0x89, 0x1c, 0x24}, []byte{0x48, 0x8b, 0x24, 0x24}):
			r.kind = goStoredSP // mov %rbx,(%rsp); mov (%rsp),%rsp
		default:
			savedSPRule(code, at, true, r)
		}
	}
}

// savedSPRule is for a function that may be on another stack than its caller: see savedSPReg.
func savedSPRule(code []byte, at uint64, amd64 bool, r *goRule) {
	if r.reg = savedSPReg(code, at, amd64); r.reg != procstate.NoReg {
		r.kind = goSavedSP
	}
}

// Registers of amd64 in the DWARF numbering.
const (
	rax procstate.Reg = 0
	rdx procstate.Reg = 1
	rbx procstate.Reg = 3
	rsi procstate.Reg = 4
	rbp procstate.Reg = 6
	r12 procstate.Reg = 12
)

// maxGoAsmCode is how much is read of a function, in bytes: the assembly functions that are
// looked at are short.
const maxGoAsmCode = 1 << 10

// funcCode reads the code of a function, at most maxGoAsmCode of it.
func funcCode(img *procstate.Image, f *procstate.GoFunc) []byte {
	code := make([]byte, min(f.End-f.Entry, maxGoAsmCode))
	if img.ReadVaddr(code, f.Entry) != nil {
		return nil
	}
	return code
}

// between reports whether offset at of code lies behind an instruction, first,
// and up to another that undoes it, last.
func between(code []byte, at uint64, first, last []byte) bool {
	i := bytes.Index(code, first)
	j := bytes.LastIndex(code, last)
	return i >= 0 && j > i && at >= uint64(i+len(first)) && at <= uint64(j)
}

// behind reports whether offset at of code lies behind an instruction.
func behind(code []byte, at uint64, inst []byte) bool {
	i := bytes.Index(code, inst)
	return i >= 0 && at > uint64(i)
}

// loadsG0SP are the instructions by which functions that never return go over
// to the thread's own stack.
var loadsG0SP = map[goKind][]byte{ // read only
	goMcall:     {0x49, 0x8b, 0x66, 0x38}, // mov 0x38(%r14),%rsp
	goMorestack: {0x48, 0x8b, 0x63, 0x38}, // mov 0x38(%rbx),%rsp
}

// gogoRule tells gogo on the thread's own stack, where it is like any function,
// from gogo on the goroutine's. There RBX points to the gobuf that holds where
// it goes on; at last, when r.reg is set, it is that place.
func gogoRule(code []byte, at uint64, r *goRule) {
	if !behind(code, at, []byte{0x48, 0x8b, 0x23}) { // mov (%rbx),%rsp
		r.kind = goAsm
		return
	}
	r.reg = procstate.NoReg
	if at < uint64(len(code)) && bytes.HasPrefix(code[at:], []byte{0xff, 0xe3}) { // jmp *%rbx
		r.reg = rbx
	}
	// mov bp(%rbx),%rbp
	if i := bytes.Index(code, []byte{0x48, 0x8b, 0x6b}); i >= 0 && i+3 < len(code) && at <= uint64(i) {
		r.depth = int32(code[i+3])
	}
}

// onSystemstack reports whether offset at of systemstack lies between its
// switch to the thread's own stack and that back. Elsewhere, and where it is
// called on that stack already and leaves at once, it is like any function.
func onSystemstack(code []byte, at uint64, amd64 bool) bool {
	if !amd64 { // mov sp,x3; mov sp,x0
		return between(code, at, []byte{0x7f, 0x00, 0x00, 0x91}, []byte{0x1f, 0x00, 0x00, 0x91})
	}
	// mov 0x38(%rax),%rsp is the way back, to g.sched.sp. The way there is
	// mov 0x38(%rdx),%rsp or, up to Go 1.20, by way of mov %rbx,%rsp.
	back := []byte{0x48, 0x8b, 0x60, 0x38}
	return between(code, at, []byte{0x48, 0x8b, 0x62, 0x38}, back) || between(code, at, []byte{0x48, 0x89, 0xdc}, back)
}

// callbackOnG0 is the base of a rule of cgocallback where it is on g0's stack.
const callbackOnG0 = -3

// onGoroutineInCallback reports whether offset at of cgocallback lies between
// its switch from the thread's own stack to the goroutine's and that back.
func onGoroutineInCallback(code []byte, at uint64, amd64 bool) bool {
	if !amd64 { // mov sp,x0
		return between(code, at, []byte{0x1f, 0x00, 0x00, 0x91}, []byte{0x1f, 0x00, 0x00, 0x91})
	}
	// mov %rdi,%rsp; mov 0x38(%rsi),%rsp
	return between(code, at, []byte{0x48, 0x89, 0xfc}, []byte{0x48, 0x8b, 0x66, 0x38})
}

// savedSPReg returns the register that keeps SP at offset at of a function
// that switches to another stack for a call of C, as nanotime1 does for the
// vdso: one that is set from SP before and restores it after. NoReg says that
// there is none.
func savedSPReg(code []byte, at uint64, amd64 bool) procstate.Reg {
	if !amd64 {
		for r := procstate.Reg(19); r < 28; r++ {
			// mov xN,sp; mov sp,xN
			if between(code, at, []byte{0xe0 | byte(r), 0x03, 0x00, 0x91}, []byte{byte(r)<<5 | 0x1f, byte(r) >> 3, 0x00, 0x91}) {
				return r
			}
		}
		return procstate.NoReg
	}
	for r := procstate.Reg(12); r < 16; r++ {
		// mov %rsp,%rN; mov %rN,%rsp
		if between(code, at, []byte{0x49, 0x89, 0xe0 | byte(r)&7}, []byte{0x4c, 0x89, 0xc4 | byte(r)&7<<3}) {
			return r
		}
	}
	// mov %rsp,%rbx; mov %rbx,%rsp, or a store of it
	save := []byte{0x48, 0x89, 0xe3}
	if between(code, at, save, []byte{0x48, 0x89, 0xdc}) || between(code, at, save, []byte{0x48, 0x89, 0x1c, 0x24}) {
		return rbx
	}
	return procstate.NoReg
}

// cloneKind tells the new thread, whose stack begins in runtime.clone, from
// the old one, which returns from it.
func cloneKind(code []byte, at uint64, amd64 bool) goKind {
	child := bytes.Index(code, []byte{0x48, 0x89, 0xf4}) // mov %rsi,%rsp
	call := bytes.Index(code, syscall64)
	if !amd64 {
		child = bytes.Index(code, []byte{0xea, 0x03, 0x5e, 0xf8}) // ldur x10,[sp,#-32]
		call = bytes.Index(code, []byte{0x01, 0x00, 0x00, 0xd4})  // svc #0
	}
	switch {
	case child < 0 || call < 0 || at <= uint64(call):
		return goAsm
	case at >= uint64(child):
		return goTop
	}
	return goClone
}

// asmcgocallSlots finds the words at SP where asmcgocall keeps the goroutine
// and the depth of its stack during the call, in the code that restores them
// behind it. Where the function was called on g0 it keeps SP itself, and
// there is no goroutine: then r.base is -2.
func asmcgocallSlots(code []byte, at uint64, r *goRule) bool {
	at++ // it is the last byte of the call, or of a frame that was interrupted
	if at > uint64(len(code)) {
		return false
	}
	code = code[at:]
	code = code[:min(len(code), 24)]
	g, ok := loadFromSP(code, 0x8b, 7) // mov g(%rsp),%rdi
	if ok {
		r.base = g
		r.depth, ok = loadFromSP(code, 0x2b, 6) // sub depth(%rsp),%rsi
		return ok
	}
	r.base = -2
	r.depth, ok = loadFromSP(code, 0x8b, 6) // mov sp(%rsp),%rsi
	return ok
}

// asmcgocallMet finds how to walk from asmcgocall when it is interrupted at
// offset at of its code. It is twice the same: with a switch to g0, and where
// it is on such a stack already, when it aligns SP alone.
func asmcgocallMet(code []byte, at uint64, r *goRule) {
	toG0 := []byte{0x48, 0x8b, 0x66, 0x38}  // mov 0x38(%rsi),%rsp
	align := []byte{0x48, 0x83, 0xe4, 0xf0} // and $-16,%rsp, behind a sub as long
	back := []byte{0x48, 0x89, 0xf4}        // mov %rsi,%rsp
	second := bytes.LastIndex(code, align)
	r.met = goAsm
	switch {
	case second < 0:
		r.met = goForeign
	case at < uint64(second):
		if between(code[:second], at, toG0, back) {
			r.met = goAsmcgocall
		}
	case at <= uint64(max(bytes.LastIndex(code, back), 0)):
		r.met, r.reg = goSavedSP, rdx
		switch next := code[at:]; {
		case bytes.HasPrefix(next, back):
			r.reg = rsi
		case next[0] == 0x48 && next[1] == 0x8b: // mov sp(%rsp),%rsi
			r.met = goStoredSP
			r.depth, _ = loadFromSP(next[:min(5, len(next))], 0x8b, 6)
		}
	}
}

// loadFromSP finds an instruction of 64 bits with opcode op, register reg and
// memory operand disp8(%rsp) in code, and returns the displacement.
func loadFromSP(code []byte, op, reg byte) (disp int32, ok bool) {
	if bytes.Contains(code, []byte{0x48, op, reg<<3 | 0x04, 0x24}) {
		return 0, true
	}
	if i := bytes.Index(code, []byte{0x48, op, reg<<3 | 0x44, 0x24}); i >= 0 && i+4 < len(code) {
		return int32(int8(code[i+4])), true
	}
	return 0, false
}

// crosscall2Base returns the distance from the CFA down to where crosscall2
// saves the registers that C expects to be preserved, 0 when it is not known.
func crosscall2Base(img *procstate.Image, t *procstate.GoTable, f *procstate.GoFunc) int32 {
	code := funcCode(img, f)
	i := bytes.Index(code[:min(len(code), 48)], []byte{0x48, 0x89, 0x6c, 0x24, 0x28}) // mov %rbp,0x28(%rsp)
	if i < 0 {
		return 0
	}
	delta, ok := t.SPDelta(f, f.Entry+uint64(i))
	if !ok {
		return 0
	}
	return delta + 8
}

// What crosscall2Saves tells.
const (
	crosscall2HasSaved   = iota // the registers that C expects to be preserved are in the frame, or it has none
	crosscall2SavesOther        // they are in the registers still, but for the frame pointer
	crosscall2SavesAll          // all of them are
)

// crosscall2Saves tells which registers of its caller crosscall2 has not saved yet at
// offset at of its code.
func crosscall2Saves(code []byte, at uint64) int32 {
	switch {
	case before(code, at, []byte{0x48, 0x8d, 0x6c, 0x24, 0x28}): // lea 0x28(%rsp),%rbp
		return crosscall2SavesAll
	case before(code, at, []byte{0x4c, 0x89, 0x7c, 0x24, 0x20}): // mov %r15,0x20(%rsp)
		return crosscall2SavesOther
	}
	return crosscall2HasSaved
}

// before reports whether offset at of code lies at an instruction or before it.
func before(code []byte, at uint64, inst []byte) bool {
	i := bytes.Index(code, inst)
	return i >= 0 && at <= uint64(i)
}
