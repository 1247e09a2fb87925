package pe

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Numbers of registers, by those that Windows gives them.
var registers = [16]procstate.Reg{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

const (
	rsp procstate.Reg = 7
	rbp procstate.Reg = 6
)

// info is what is told of how a function is left (UNWIND_INFO).
type info struct {
	prolog  uint32 // bytes
	frame   byte   // Windows' number of the frame pointer, 0 for none,
	offset  uint64 // and how far it is above SP
	codes   []uint16
	chained *function // what else is to be undone, nil for nothing
}

// Codes of what a prolog does.
const (
	pushNonvolatile = iota
	allocLarge
	allocSmall
	setFrame
	saveNonvolatile
	saveNonvolatileFar
	epilog
	spare
	saveXMM
	saveXMMFar
	pushMachineFrame
)

const (
	maxInfos   = 1 << 16
	maxChained = 32
)

// infoAt returns what is told at an offset, nil when it cannot be read, or is of a version that is not known.
func (im *image) infoAt(vm *machine, at uint32) *info {
	if known, ok := im.infos[at]; ok {
		return known
	}
	if len(im.infos) >= maxInfos {
		clear(im.infos)
	}
	in := im.readInfo(vm, at)
	if in != nil {
		im.infos[at] = in
	}
	return in
}

func (im *image) readInfo(vm *machine, at uint32) *info {
	const isChained, headLen = 4, 4
	le := binary.LittleEndian
	var head [headLen]byte
	if uint64(at) >= im.end-im.start || !vm.ReadNow(im.start+uint64(at), head[:]) {
		return nil
	}
	version, flags, count := head[0]&7, head[0]>>3, int(head[2])
	if version != 1 && version != 2 {
		return nil
	}
	in := &info{prolog: uint32(head[1]), frame: head[3] & 15, offset: uint64(head[3]>>4) * 16}
	b := make([]byte, 2*(count+count&1)+entryBytes)
	if flags&isChained == 0 {
		b = b[:2*count]
	}
	if !vm.ReadNow(im.start+uint64(at)+headLen, b) {
		return nil
	}
	for i := range count {
		in.codes = append(in.codes, le.Uint16(b[2*i:]))
	}
	if flags&isChained != 0 {
		b = b[2*(count+count&1):]
		in.chained = &function{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])}
	}
	return in
}

// told returns what is told of a function, and the function itself, which may refer to another for that.
func (im *image) told(vm *machine, f *function) (*function, *info) {
	const refers = 1
	for range maxChained {
		if f.info&refers == 0 {
			return f, im.infoAt(vm, f.info)
		}
		var b [entryBytes]byte
		le := binary.LittleEndian
		if !vm.ReadNow(im.start+uint64(f.info&^refers), b[:]) {
			break
		}
		f = &function{le.Uint32(b[:]), le.Uint32(b[4:]), le.Uint32(b[8:])}
	}
	return f, nil
}

// primary returns the function that a part of one is of.
func (im *image) primary(vm *machine, f *function) *function {
	for range maxChained {
		_, in := im.told(vm, f)
		if in == nil || in.chained == nil {
			break
		}
		f = in.chained
	}
	return f
}

// unwinder undoes what a function has done.
type unwinder struct {
	vm   *machine
	w    *unwind.Walker
	im   *image
	in   *unwind.Frame
	regs procstate.Regs
	sp   uint64
	err  error

	pc, pcAt      uint64 // of the caller, and where that was
	isInterrupted bool   // the caller was interrupted
}

// unwind undoes what a function has done, nil for one without an entry, and its return. That leads to no code at some
// instructions of which the entry tells nothing, and behind what Wine calls back, up to version 8.
func (u *unwinder) unwind(f *function, interrupted bool) error {
	pc, sp := u.in.PC(), u.sp
	switch {
	case f != nil:
		if err := u.leave(f, pc, interrupted); err != nil {
			return err
		}
	case interrupted:
		above, _ := u.toReturn(pc)
		u.sp += above
	}
	if !u.isInterrupted && !u.pop() {
		return u.err
	}
	if u.pc == 0 || u.w.MappingAt(u.pc) != nil {
		return nil
	}
	if above, ok := u.toReturn(pc); interrupted && ok {
		u.sp, u.regs = sp+above, u.in.Regs
		if u.pop() && u.w.MappingAt(u.pc) != nil {
			return nil
		}
	}
	return unwind.BadPC
}

// leave undoes all but the return.
func (u *unwinder) leave(f *function, pc uint64, interrupted bool) error {
	rva := uint32(pc - u.im.start)
	f, in := u.im.told(u.vm, f)
	if in == nil {
		return unwind.NoUnwindInfo
	}
	done := ^uint32(0)           // so much of the prolog
	if rva-f.start < in.prolog { // where it may have called what touches the pages of its frame
		done = rva - f.start
	} else if interrupted && u.inEpilog(f, in, pc) {
		return u.err
	}
	for range maxChained {
		if !u.undo(in, done) {
			return u.err
		}
		if in.chained == nil || u.isInterrupted {
			return nil
		}
		done = ^uint32(0)
		if _, in = u.im.told(u.vm, in.chained); in == nil {
			return unwind.NoUnwindInfo
		}
	}
	return unwind.NoUnwindInfo
}

// undo undoes what a prolog has done up to an offset.
func (u *unwinder) undo(in *info, done uint32) bool {
	codes, base, isSet := in.codes, u.sp, in.frame != 0
	if isSet && done != ^uint32(0) {
		isSet = false
		for i := 0; i < len(codes); i += slots(codes[i]) {
			isSet = isSet || op(codes[i]) == setFrame && at(codes[i]) <= done
		}
	}
	if isSet {
		fp, known := u.regs.Value(registers[in.frame])
		if !known {
			u.err = unwind.NoRegister
			return false
		}
		base = fp - in.offset
	}
	for i := 0; i < len(codes); i += slots(codes[i]) {
		code := codes[i]
		if i+slots(code) > len(codes) {
			u.err = unwind.NoUnwindInfo
			return false
		}
		if at(code) > done && op(code) != epilog {
			continue
		}
		var n uint64 // what stands behind the code
		switch slots(code) {
		case 2:
			n = uint64(codes[i+1])
		case 3:
			n = uint64(codes[i+1]) | uint64(codes[i+2])<<16
		}
		switch op(code) {
		case pushNonvolatile:
			if !u.restore(operand(code), u.sp) {
				return false
			}
			u.sp += 8
		case allocLarge:
			if operand(code) == 0 {
				n *= 8
			}
			u.sp += n
		case allocSmall:
			u.sp += 8*uint64(operand(code)) + 8
		case setFrame:
			u.sp = base
		case saveNonvolatile:
			if !u.restore(operand(code), base+8*n) {
				return false
			}
		case saveNonvolatileFar:
			if !u.restore(operand(code), base+n) {
				return false
			}
		case epilog, spare, saveXMM, saveXMMFar:
		case pushMachineFrame:
			return u.machineFrame(operand(code))
		default:
			u.err = unwind.NoUnwindInfo
			return false
		}
	}
	return true
}

func at(code uint16) uint32 { return uint32(code & 0xff) }
func op(code uint16) int    { return int(code >> 8 & 15) }

func operand(code uint16) byte { return byte(code >> 12) }

// slots returns how many places a code takes, with what stands behind it.
func slots(code uint16) int {
	switch op(code) {
	case allocLarge:
		return 2 + int(operand(code)&1)
	case saveNonvolatile, saveXMM, epilog:
		return 2
	case saveNonvolatileFar, saveXMMFar, spare:
		return 3
	}
	return 1
}

// restore takes a register from the stack.
func (u *unwinder) restore(register byte, at uint64) bool {
	v, ok := u.word(at)
	if ok {
		u.regs.Set(registers[register], v)
	}
	return ok
}

// word reads a word of the stack.
func (u *unwinder) word(at uint64) (uint64, bool) {
	v, ok := u.w.ProcessState().ReadWord(at)
	if !ok {
		u.err = unwind.ReadFailure(u.w.ProcessState(), at)
	}
	return v, ok
}

// pop takes the return address.
func (u *unwinder) pop() bool {
	v, ok := u.word(u.sp)
	u.pc, u.pcAt = v, u.sp
	u.sp += 8
	return ok
}

// machineFrame takes what the processor, or Wine in its place, has pushed where code was interrupted: maybe an error code, and
// RIP, CS, the flags, RSP and SS.
func (u *unwinder) machineFrame(withCode byte) bool {
	const toSP = 24
	at := u.sp + 8*uint64(withCode&1)
	pc, ok1 := u.word(at)
	sp, ok2 := u.word(at + toSP)
	u.pc, u.pcAt, u.sp, u.isInterrupted = pc, at, sp, true
	return ok1 && ok2
}
