package luajit

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// arch is what LuaJIT's interpreter and traces have of their own on an architecture (vm_x64.dasc, vm_arm64.dasc).
type arch struct {
	*procstate.Arch

	// What the interpreter's registers are for.
	base     procstate.Reg // the frame of Lua that runs
	pc       procstate.Reg // the next instruction of the bytecode
	before   procstate.Reg // the frame before that, at times
	kept     procstate.Reg // what the base is kept in while a function of C runs, unless it is in the lua_State
	dispatch procstate.Reg // some way behind the global_State; in traces too

	// returnsByLink tells that what returns to C has the link in the register for the next instruction until it has. Else
	// that is the frame that goes on.
	returnsByLink bool

	// The frame of C that the interpreter runs in: parts of it by their distance from its lower end.
	results int // how many are wanted (32 bits)
	state   int // lua_State
	next    int // where the bytecode goes on, at times
	outer   int // the frame of C before
	bytes   int // of all, with the return address

	// What a frame of the interpreter, or of a trace, has of its caller's registers: the return address and the frame
	// pointer are first. Of those of a trace alone that comes behind.
	saved   []savedRegister
	byTrace []savedRegister

	instruction int // bytes that the offsets in traces count

	// enters is how the interpreter's code begins that enters a thread of Lua, by which it is found; find learns from all of
	// its code where things are.
	enters string
	find   func(p *imageInfo, code []byte) bool
	// keepsBase is for code behind a call of a function of C: it reports whether the interpreter has its base in the register.
	keepsBase func(code []byte) bool
	// isOutside is for an instruction of the interpreter: it reports whether its frame is not there yet, or no more, with
	// the caller's registers, and how many bytes of it are on the stack. nil: tables tell of those.
	isOutside func(code []byte) (bytes int, is bool)
	// setsBase is what a trace sets the base by that is in the global_State.
	setsBase func(p *imageInfo) []byte
}

// savedRegister is where a frame has a register.
type savedRegister struct {
	reg procstate.Reg
	at  int
}

var amd64 = &arch{
	Arch: procstate.AMD64, base: 1, pc: 3, before: 6, kept: 6, dispatch: 14, // RDX, RBX, RBP, RBP, R14
	results: 8, state: 16, next: 24, outer: 32, bytes: 80,
	saved:   []savedRegister{{16, 72}, {6, 64}, {14, 40}, {15, 48}, {3, 56}},
	byTrace: []savedRegister{{12, 0}, {13, -8}}, instruction: 1,
	enters: "\x4c\x8b\x75\x10\x49\x81\xc6", // mov 0x10(%rbp), %r14; add $n, %r14. With 32-bit references the first one is another.
	find:   findAMD64, keepsBase: keepsBaseAMD64, setsBase: setsBaseAMD64,
}

var arm64 = &arch{
	Arch: procstate.ARM64, base: 19, pc: 21, before: 17, kept: 19, dispatch: 22, returnsByLink: true,
	results: 40, state: 16, next: 8, outer: 0, bytes: 208,
	saved: []savedRegister{
		{30, 200}, {29, 192}, {19, 184}, {20, 176}, {21, 168}, {22, 160}, {23, 152}, {24, 144}, {25, 136}, {26, 128}, {27, 120}, {28, 112},
	}, instruction: 4,
	enters: "\xf7\x03\x00\xaa\xf6\x0a\x40\xf9\xf3\x03\x01\xaa\xf7\x0b\x00\xf9", // mov x23, x0; ldr x22, [x23, #16]; mov x19, x1; str x23, [sp, #16]
}

// The functions know the registers.
func init() {
	arm64.find, arm64.keepsBase, arm64.setsBase, arm64.isOutside = findARM64, keepsBaseARM64, setsBaseARM64, isOutsideARM64
}

// archOf returns what is known of an architecture, nil where LuaJIT is not known on it.
func archOf(a *procstate.Arch) *arch {
	switch a {
	case procstate.AMD64:
		return amd64
	case procstate.ARM64:
		return arm64
	}
	return nil
}

// findAMD64 is arch.find.
func findAMD64(p *imageInfo, code []byte) bool {
	const (
		saves    = "\x55\x53\x41\x57\x41\x56\x48\x83\xec\x28" // push %rbp, %rbx, %r15, %r14; sub $0x28, %rsp
		enters   = "\x4c\x8b\x75\x10\x49\x81\xc6"             // mov 0x10(%rbp), %r14; add $n, %r14
		runs     = "\x49\x89\xae"                             // mov %rbp, n(%r14)
		state    = "\x41\xc7\x86"                             // movl $n, n(%r14)
		calls    = "\x48\x8b\x5d\x20"                         // mov 0x20(%rbp), %rbx
		consts   = "\x4c\x8b\x7b\xb4"                         // mov -0x4c(%rbx), %r15
		frames   = "\x4c\x89\x7d\x50"                         // mov %r15, 0x50(%rbp)
		leaves   = "\x41\x55\x41\x54\x41\x53\x41\x52\x41\x51" // push %r13, %r12, %r11, %r10, %r9
		lowers   = "\x4c\x8b\x21\x48\x89\xcc"                 // mov (%rcx), %r12; mov %rcx, %rsp
		goesOn   = "\x41\xff\x24\xee"                         // jmp *(%r14,%rbp,8)
		trace    = "\x48\x8b\x04\xc1\x48\x8b\x40\x58"         // mov (%rcx,%rax,8), %rax; mov 0x58(%rax), %rax
		ofTraces = "\x49\x8b\x8e"                             // mov n(%r14), %rcx
		jumps    = "\xff\xe0"                                 // jmp *%rax
		jitBase  = "\x49\x89\x96"                             // mov %rdx, n(%r14)
	)
	number := func(at int) uint64 { return uint64(int64(int32(binary.LittleEndian.Uint32(code[at:])))) }
	index := func(from int, s string) int {
		if i := bytes.Index(code[from:], []byte(s)); i >= 0 {
			return from + i
		}
		return -1
	}
	for _, s := range []string{saves, calls, consts, frames} {
		if index(0, s) < 0 {
			return false
		}
	}
	enter, run := index(0, enters), -1
	const far = 4 << 10
	if enter < 0 || len(code)-enter < len(enters)+4 {
		return false
	}
	p.dispatch = number(enter + len(enters))
	for i := enter; run < 0; i++ { // what runs is set behind where a thread is entered
		if i = index(i, runs); i < 0 || i > enter+far {
			return false
		}
		if len(code)-i < 16 {
			return false
		}
		if string(code[i+7:i+10]) == state {
			run = i
		}
	}
	p.current = p.dispatch + number(run+len(runs))
	p.jitBase = p.current + 8
	if leave := index(0, leaves); leave >= 0 {
		if lower := index(leave, lowers); lower >= 0 {
			if end := index(lower, goesOn); end >= 0 && end < leave+far {
				p.exit = mcode.Range{Start: uint64(leave), End: uint64(end)}
			}
		}
	}
	for i := 0; ; i++ {
		if i = index(i, trace); i < 0 {
			break // it is built without a compiler
		}
		const load = len(ofTraces) + 4
		const keeps = len("\x48\x8b\x6c\x24\x10") // mov 0x10(%rsp), %rbp
		after := i + len(trace) + keeps
		if i >= load && string(code[i-load:i-4]) == ofTraces && len(code)-after > 8 && string(code[after:after+len(jitBase)]) == jitBase && p.dispatch+number(after+len(jitBase)) == p.jitBase {
			p.traces = p.dispatch + number(i-4)
			if end := index(after, jumps); end >= 0 && end < after+1<<8 {
				p.enter = mcode.Range{Start: uint64(after + len(jitBase) + 4), End: uint64(end + len(jumps))}
			}
			break
		}
	}
	const most = 64 << 10
	return p.dispatch < most && p.current < p.dispatch && p.traces < most
}

// keepsBaseAMD64 is arch.keepsBase: it is in RBP, or else in the lua_State. What the interpreter does then with the
// register tells.
func keepsBaseAMD64(code []byte) bool {
	const kept, kept2, inState = "\x48\x89\xea", "\x48\x8b\xd5", "\x48\x8b\x55\x20" // mov %rbp, %rdx; mov 0x20(%rbp), %rdx
	first := len(code)
	at := func(s string) int {
		if i := bytes.Index(code, []byte(s)); i >= 0 {
			return i
		}
		return first
	}
	is := min(at(kept), at(kept2))
	return is < first && is < at(inState)
}

// keepsBaseARM64 is arch.keepsBase: it is in its register, unless it is taken from the lua_State then.
func keepsBaseARM64(code []byte) bool {
	var in isa.Inst
	for ; mcode.Decode(procstate.ARM64, code, 0, &in); code = code[in.Len:] {
		for _, op := range in.Ops[:in.NumOps] {
			if op.Kind == isa.Load && op.Dst == arm64.base && op.Imm == ljBase {
				return false
			}
		}
		if in.Ends() {
			break
		}
	}
	return true
}

// isOutsideARM64 is arch.isOutside: the return address is in the link register then.
func isOutsideARM64(code []byte) (bytes int, is bool) {
	const (
		lowers = 0xd10343ff // sub sp, sp, #208
		saves  = 0xa90c7bfd // stp x29, x30, [sp, #192]
		frames = 0x910303fd // add x29, sp, #192
		raises = 0x910343ff // add sp, sp, #208
		ret    = 0xd65f03c0
	)
	switch le := binary.LittleEndian; le.Uint32(code[look:]) {
	case lowers:
		return 0, true
	case saves, frames, raises:
		return arm64.bytes, true
	case ret:
		return 0, le.Uint32(code[look-4:]) == raises
	}
	return 0, false
}

// setsBaseAMD64 is arch.setsBase: mov %rdx, n(%r14).
func setsBaseAMD64(p *imageInfo) []byte {
	return binary.LittleEndian.AppendUint32([]byte("\x49\x89\x96"), uint32(p.jitBase-p.dispatch))
}

// setsBaseARM64 is arch.setsBase.
func setsBaseARM64(p *imageInfo) []byte {
	return storeARM64(arm64.base, arm64.dispatch, p.jitBase)
}

// storeARM64 is str reg, [base, #off].
func storeARM64(reg, base procstate.Reg, off uint64) []byte {
	const store = 0xf9000000
	return binary.LittleEndian.AppendUint32(nil, store|uint32(off/8)<<10|uint32(base)<<5|uint32(reg))
}

// findARM64 is arch.find.
func findARM64(p *imageInfo, code []byte) bool {
	const (
		state = 23     // the register with the lua_State
		far   = 64 * 4 // bytes
		size  = 4
	)
	// saves is how a frame is begun: stp x29, x30, [sp, #192]; add x29, sp, #192; stp x20, x19, [sp, #176]
	const saves = "\xfd\x7b\x0c\xa9\xfd\x03\x03\x91\xf4\x4f\x0b\xa9"
	var in isa.Inst
	// stores returns where something is put behind the dispatch register, by the register that is, from an instruction on.
	stores := func(at int, reg procstate.Reg) (off uint64, ok bool) {
		if !mcode.Decode(procstate.ARM64, code[at:], 0, &in) {
			return 0, false
		}
		op := &in.Ops[0]
		return uint64(op.Imm), in.NumOps == 1 && op.Kind == isa.Store && op.Src == reg && op.Dst == arm64.dispatch && op.Imm > 0
	}
	enter := bytes.Index(code, []byte(arm64.enters))
	if enter < 0 || !bytes.Contains(code, []byte(saves)) {
		return false
	}
	for at := enter; p.current == 0; at += size { // what runs is set where a thread is entered
		off, ok := stores(at, state)
		if at > enter+far || at+size > len(code) {
			return false
		} else if ok {
			p.current = off
		}
	}
	p.jitBase = p.current + 8
	p.findTracesARM64(code)
	p.findExitARM64(code)
	return true
}

// findTracesARM64 finds the traces, by where one is entered:
//
//	ldr x0, [x22, #n]
//	ldr x28, [x0, x28, lsl #3]
//	ldr x27, [x28, #88]
//	str x19, [x22, #n]
//	br x27
func (p *imageInfo) findTracesARM64(code []byte) {
	const far, size, load, loads = 8 * 4, 4, 0xf9400000 | 22<<5, 0xffc003e0
	toCode := []byte("\x9b\x2f\x40\xf9")
	for at := 0; ; at += size {
		i := bytes.Index(code[at:], toCode)
		if i < 0 {
			return // it is built without a compiler
		}
		at += i
		sets := bytes.Index(code[at:min(at+far, len(code))], setsBaseARM64(p))
		jumps := bytes.Index(code[at:min(at+far, len(code))], []byte("\x60\x03\x1f\xd6"))
		if sets < 0 || jumps < sets {
			continue
		}
		for from := at - size; from >= max(0, at-far); from -= size {
			if w := binary.LittleEndian.Uint32(code[from:]); w&loads == load {
				p.traces = uint64(w>>10&0xfff) * 8
				p.enter = mcode.Range{Start: uint64(at + sets + size), End: uint64(at + jumps + size)}
				return
			}
		}
	}
}

// findExitARM64 finds where traces are left: from sub sp, sp, #512 on, and what that puts down, up to where the interpreter
// goes on by br x17.
func (p *imageInfo) findExitARM64(code []byte) {
	const far, size = 128 * 4, 4
	leave := bytes.Index(code, []byte("\xff\x03\x08\xd1\xe0\x07\x00\x6d"))
	if leave < 0 {
		return
	}
	if end := bytes.Index(code[leave:min(leave+far, len(code))], []byte("\x20\x02\x1f\xd6")); end >= 0 {
		p.exit = mcode.Range{Start: uint64(leave), End: uint64(leave + end + size)}
	}
}

// outside walks from where the interpreter is entered, or left, and has no frame. ok is false anywhere else.
func (vm *machine) outside(w *unwind.Walker, in, out *unwind.Frame) (v unwind.Verdict, ok bool) {
	var code [look + 4]byte
	if vm.image.ReadVaddr(code[:], in.PC()-vm.bias-look) != nil {
		return unwind.NotMe, false
	}
	a := vm.arch
	bytes, is := a.isOutside(code[:])
	ra, known := in.Regs.Value(a.LR)
	if !is || !known {
		return unwind.NotMe, false
	}
	out.Regs = in.Regs
	out.SetPC(a.Arch, ra&a.CodeMask)
	out.SetSP(a.Arch, in.SP()+uint64(bytes))
	out.SetFP(a.Arch, in.FP())
	if out.FPLocation = in.FPLocation; in.IsTop() {
		out.PCLocation = unwind.InRegister(a.LR)
	}
	return unwind.Success, true
}

// leave walks from a trace, or from where one is left, to the caller of the frame of the interpreter that it runs in,
// which is at an address. The trace may have kept more registers there than the interpreter does, or is about to.
func (vm *machine) leave(w *unwind.Walker, frame uint64, in, out *unwind.Frame, isEntered bool) (unwind.Verdict, error) {
	const most, below = 208, 8
	var b [below + most]byte
	a := vm.arch
	if !vm.Read(frame-below, b[:below+a.bytes]) {
		return unwind.NotMe, nil
	}
	saved := func(r savedRegister) uint64 { return binary.LittleEndian.Uint64(b[below+r.at:]) }
	ra, fp := a.saved[0], a.saved[1]
	out.SetPC(a.Arch, saved(ra)&a.CodeMask)
	out.SetSP(a.Arch, frame+uint64(a.bytes))
	out.SetFP(a.Arch, saved(fp))
	for _, r := range a.saved[2:] {
		out.Regs.Set(r.reg, saved(r))
	}
	for _, r := range a.byTrace {
		if v, ok := in.Regs.Value(r.reg); !isEntered {
			out.Regs.Set(r.reg, saved(r))
		} else if ok {
			out.Regs.Set(r.reg, v)
		}
	}
	out.PCLocation = unwind.InMemory(frame + uint64(ra.at))
	out.FPLocation = unwind.InMemory(frame + uint64(fp.at))
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	return unwind.Success, nil
}
