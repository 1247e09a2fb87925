package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// ErrGoVersion is returned for a Go program whose runtime is laid out in a
// way that is not known.
var ErrGoVersion = errors.New("unknown version of Go")

// GoRuntime tells where the Go runtime of a program keeps what a stack walk
// needs to cross from one stack of a thread to another: offsets in bytes in
// the structures runtime.g, runtime.m and runtime.gobuf
// (src/runtime/runtime2.go of each version). A zero word means a nil pointer.
type GoRuntime struct {
	Version string // "go1.26.8"

	// The thread's current g is in register GReg while Go code runs, NoReg
	// where it has none, and in the word at the thread pointer + TLSOffset
	// when HasTLS: always on amd64, with cgo on arm64, where C may use the
	// register. In a shared library the dynamic loader chooses the offset, and
	// stores it at the link-time address TLSSlot, which is 0 elsewhere.
	GReg      Reg
	HasTLS    bool
	TLSOffset int64
	TLSSlot   uint64

	// CallsC tells whether cgo is linked in, so that C may call Go.
	CallsC bool

	StackLo, StackHi uint32 // in g: bounds of its stack
	M                uint32 // in g: its m
	SchedSP          uint32 // in g: sched.sp, where it goes on when it is not running
	SchedPC          uint32 // in g: sched.pc
	SchedLR          uint32 // in g: sched.lr
	SchedBP          uint32 // in g: sched.bp
	G0               uint32 // in m: the g of the thread's own stack
	GSignal          uint32 // in m: the g of the signal stack
	CurG             uint32 // in m: the goroutine that it runs
	VDSOSP           uint32 // in m: SP of the caller of a running vdso call, else 0

	Status     uint32 // in g: atomicstatus, of four bytes
	ID         uint32 // in g: goid
	WaitSince  uint32 // in g: waitsince, in ns of CLOCK_MONOTONIC
	WaitReason uint32 // in g: waitreason, of one byte
	LockedM    uint32 // in g: the m that alone may run it
	ParentID   uint32 // in g: goid of the goroutine that created it; 0 where g has no such field
	GoPC       uint32 // in g: return address of the go statement that created it
	StartPC    uint32 // in g: its function
	Labels     uint32 // in g: its labels, a slice of pairs of strings; 0 where the program sets none, or they are kept in another way
}

// goLayouts are the layouts by minor version, for 64-bit machines: those of
// amd64 and arm64 are the same. Taken from the DWARF of programs built with
// each version.
var goLayouts = []struct {
	first, last int // minor versions
	layout      GoRuntime
}{
	{20, 20, goLayout(80, 192, 800, 40, 144, 232, 0, 296)},
	{21, 21, goLayout(80, 192, 808, 40, 144, 208, 272, 280)},
	{22, 22, goLayout(80, 192, 1120, 40, 144, 208, 272, 280)},
	{23, 23, goLayout(80, 192, 880, 40, 152, 216, 280, 288)},
	{24, 24, goLayout(80, 192, 904, 40, 152, 216, 280, 288)},
	{25, 25, goLayout(72, 184, 896, 32, 144, 208, 272, 280)},
	{26, 27, goLayout(72, 184, 896, 32, 144, 208, 280, 288)},
}

// goLayout makes a layout of what differs between versions: gobuf.bp follows
// gobuf.lr, some fields of g follow its status, and startpc comes after gopc
// and ancestors; all else has kept its place.
func goLayout(gsignal, curg, vdsoSP, lr, status, lockedM, parent, goPC uint32) GoRuntime {
	const sched = 56
	return GoRuntime{
		StackLo: 0, StackHi: 8, M: 48,
		SchedSP: sched, SchedPC: sched + 8, SchedLR: sched + lr, SchedBP: sched + lr + 8,
		G0: 0, GSignal: gsignal, CurG: curg, VDSOSP: vdsoSP,
		Status: status, ID: status + 8, WaitSince: status + 24, WaitReason: status + 32,
		LockedM: lockedM, ParentID: parent, GoPC: goPC, StartPC: goPC + 16,
	}
}

const (
	goLabelsBehindPC = 64 // bytes in g from gopc to labels, in all versions
	goLabelSlice     = 24 // the minor version from which on labels are a slice; before that they are a map
)

type goRuntimeCache struct {
	once sync.Once
	rt   *GoRuntime
	err  error

	stacksOnce sync.Once
	stacks     *GoRuntime // see GoStacksOf
}

// GoRuntimeOf returns the layout of the Go runtime in a file. The first call
// finds it, further ones return the same. The error wraps ErrNoPclntab when
// the file holds no Go program and ErrGoVersion when the layout of its
// runtime is not known.
func GoRuntimeOf(im *Image) (*GoRuntime, error) {
	c := &im.goRuntime
	c.once.Do(func() {
		if c.rt, c.err = findGoRuntime(im); c.err != nil {
			c.err = fmt.Errorf("%s: %w", im.Path, c.err)
		}
	})
	return c.rt, c.err
}

func findGoRuntime(im *Image) (*GoRuntime, error) {
	t, err := Pclntab(im)
	if err != nil {
		return nil, err
	}
	if im.arch != AMD64 && im.arch != ARM64 {
		return nil, fmt.Errorf("a Go program on %s: %w", im.Arch().Name, ErrNotSupported)
	}
	version, err := goVersion(im)
	if err != nil {
		return nil, err
	}
	minor, ok := goMinor(version)
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrGoVersion, version)
	}
	for _, l := range goLayouts {
		if minor >= l.first && minor <= l.last {
			rt := l.layout
			rt.find(im, t, version)
			if minor >= goLabelSlice && t.hasName("runtime/pprof.runtime_setProfLabel") {
				rt.Labels = rt.GoPC + goLabelsBehindPC
			}
			return &rt, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrGoVersion, version)
}

// find sets what depends on the program, and returns the functions that tell of it by their
// names.
func (rt *GoRuntime) find(im *Image, t *GoTable, version string) (funcs map[string]uint64) {
	rt.Version, rt.GReg = version, NoReg
	if im.arch == ARM64 {
		rt.GReg = 28
	}
	funcs = t.asmFuncs("runtime.systemstack", "runtime.load_g", "crosscall2", goSaveFunc)
	_, rt.CallsC = funcs["crosscall2"]
	if im.arch == AMD64 {
		rt.TLSOffset, rt.TLSSlot, rt.HasTLS = goTLSOffset(im, funcs["runtime.systemstack"], goTLSLoadAMD64)
	} else if rt.CallsC {
		rt.TLSOffset, rt.TLSSlot, rt.HasTLS = goTLSOffset(im, funcs["runtime.load_g"], goTLSLoadARM64)
	}
	return funcs
}

// goMinor returns 21 for "go1.21.3" and "go1.21-custom X:experiment".
func goMinor(version string) (int, bool) {
	s, ok := strings.CutPrefix(version, "go1.")
	if !ok {
		return 0, false
	}
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(s[:end])
	return n, err == nil
}

// goVersion reads the version in the build information that the linker
// leaves at the start of the data (debug/buildinfo describes it): a header of
// 32 bytes, whose flag 2 says that the version follows as a string with its
// length as a varint, as it does since Go 1.18.
func goVersion(im *Image) (string, error) {
	var off, size uint64
	if s, ok := im.Section(".go.buildinfo"); ok {
		off, size = s.Off, s.Size
	} else {
		for _, s := range im.segs {
			if s.Flags&(elf.PF_X|elf.PF_W) == elf.PF_W {
				off, size = s.Off, s.Filesz
				break
			}
		}
	}
	size = min(size, 64<<10)
	b := make([]byte, size)
	if err := im.readFull(b, off); err != nil {
		return "", err
	}
	magic := []byte("\xff Go buildinf:")
	for at := 0; ; at += 16 {
		i := bytes.Index(b[min(at, len(b)):], magic)
		if i < 0 {
			return "", fmt.Errorf("%w: no build information", ErrGoVersion)
		}
		if at += i; at%16 != 0 || len(b)-at < 32 || b[at+15]&2 == 0 {
			at &^= 15
			continue
		}
		n, w := binary.Uvarint(b[at+32:])
		if rest := b[at+32+max(w, 0):]; w > 0 && n <= 256 && n <= uint64(len(rest)) {
			return string(rest[:n]), nil
		}
	}
}

// Samplable reports whether the g of a running thread can be found from its
// registers, also while it runs C.
func (rt *GoRuntime) Samplable() bool { return rt.HasTLS || rt.GReg != NoReg && !rt.CallsC }

// GAddr returns the run-time address of the word that holds the current g of a
// thread, given its thread pointer. mem is the process's, and bias what is added
// to link-time addresses of the file.
func (rt *GoRuntime) GAddr(mem Memory, bias, threadPointer uint64) (addr uint64, ok bool) {
	if !rt.HasTLS || threadPointer == 0 {
		return 0, false
	}
	offset := uint64(rt.TLSOffset)
	if rt.TLSSlot != 0 {
		if offset, ok = mem.ReadWord(bias + rt.TLSSlot); !ok {
			return 0, false
		}
	}
	return threadPointer + offset, true
}

// g returns the current g of a thread by its registers, 0 where it is not known.
func (rt *GoRuntime) g(mem Memory, bias uint64, regs *Regs) uint64 {
	if at, ok := rt.GAddr(mem, bias, regs.ThreadPointer); ok {
		if g, ok := mem.ReadWord(at); ok && g != 0 {
			return g
		}
	}
	return regs.Raw(rt.GReg)
}

// goProgramOf returns the first of eachGoProgram. The error wraps ErrNoPclntab when there
// is none.
func goProgramOf(libs LibraryState, exe string, runtimeOf func(*Image) (*GoRuntime, error)) (lib Library, rt *GoRuntime, err error) {
	err = eachGoProgram(libs, exe, runtimeOf, func(l Library, r *GoRuntime) (more bool) {
		lib, rt = l, r
		return false
	})
	return lib, rt, err
}

// eachGoProgram calls what with each program or library written in Go among the code of a process, and its
// runtime by GoRuntimeOf or GoStacksOf, until it returns false. Where a file has no sections, it is looked
// through only when it is the program. The error wraps ErrNoPclntab when there is none.
func eachGoProgram(libs LibraryState, exe string, runtimeOf func(*Image) (*GoRuntime, error), what func(Library, *GoRuntime) (more bool)) error {
	why := ErrNoPclntab
	if libs == nil {
		return ErrNotSupported
	}
	for _, l := range libs.Libraries() {
		if l.Image == nil {
			continue
		}
		if _, ok := l.Image.Section(".go.buildinfo"); !ok && strings.TrimSuffix(l.Path, unpackedSuffix) != exe {
			continue
		}
		rt, err := runtimeOf(l.Image)
		if err == nil {
			why = nil
			if !what(l, rt) {
				break
			}
		} else if why != nil && !errors.Is(err, ErrNoPclntab) {
			why = err
		}
	}
	return why
}

// goTLSOffset finds the thread-local slot of g, relative to the thread
// pointer, or where that is stored, in the code of a function that loads it.
// entry is 0 when there is no such function.
func goTLSOffset(im *Image, entry uint64, load func(code []byte, vaddr uint64) (int64, uint64, bool)) (offset int64, slot uint64, ok bool) {
	var code [64]byte
	if entry == 0 || im.ReadVaddr(code[:], entry) != nil {
		return 0, 0, false
	}
	return load(code[:], entry)
}

// goTLSLoadAMD64 finds the first load from FS in the code at a link-time
// address: with the offset in the instruction, as the linkers leave it in
// programs, or in RCX, which is set to it in position-independent ones, and
// loaded from the slot in shared libraries.
func goTLSLoadAMD64(code []byte, vaddr uint64) (offset int64, slot uint64, ok bool) {
	le := binary.LittleEndian
	direct := []byte{0x64, 0x48, 0x8b, 0x04, 0x25} // mov %fs:disp32,%rax
	if i := bytes.Index(code, direct); i >= 0 && len(code)-i >= 9 {
		return int64(int32(le.Uint32(code[i+5:]))), 0, true
	}
	byRCX := []byte{0x64, 0x48, 0x8b, 0x01} // mov %fs:(%rcx),%rax
	i := bytes.Index(code, byRCX)
	if i < 7 {
		return 0, 0, false
	}
	n := int64(int32(le.Uint32(code[i-4:])))
	switch load := code[i-7 : i-4]; {
	case bytes.Equal(load, []byte{0x48, 0xc7, 0xc1}): // mov $imm32,%rcx
		return n, 0, true
	case bytes.Equal(load, []byte{0x48, 0x8b, 0x0d}): // mov disp32(%rip),%rcx
		return 0, vaddr + uint64(i) + uint64(n), true
	}
	return 0, 0, false
}

// goTLSLoadARM64 is goTLSLoadAMD64 for the load of g relative to TPIDR_EL0, in
// X0. The offset is in X27: moved there in programs, in one instruction or two,
// and loaded from the slot in shared libraries.
func goTLSLoadARM64(code []byte, vaddr uint64) (offset int64, slot uint64, ok bool) {
	const (
		mrs  = 0xd53bd040 // mrs x0, tpidr_el0
		load = 0xf87b681c // ldr x28, [x0, x27]
		movz = 0xd280001b // movz x27, #imm16, lsl #(16*hw)
		movk = 0xf280001b
		adrp = 0x9000001b // adrp x27, page
		ldr  = 0xf940037b // ldr x27, [x27, #(8*imm12)]

		ofMove, ofPage, ofLoad = 0xff80001f, 0x9f00001f, 0xffc003ff // what is not in operands
	)
	inst := func(at int) uint32 { return binary.LittleEndian.Uint32(code[at:]) }
	at := 0
	for at+16 <= len(code) && inst(at) != mrs {
		at += 4
	}
	if at+16 > len(code) {
		return 0, 0, false
	}
	first, second, third := inst(at+4), inst(at+8), inst(at+12)
	moved := func(in uint32) int64 { return int64(in>>5&0xffff) << (in >> 21 & 3 * 16) }
	switch {
	case first&ofMove == movz && second == load:
		return moved(first), 0, true
	case first&ofMove == movz && second&ofMove == movk && third == load:
		return moved(first) | moved(second), 0, true
	case first&ofPage == adrp && second&ofLoad == ldr && third == load:
		pages := int64(int32(first<<8)>>13)<<2 | int64(first>>29&3)
		return 0, (vaddr+uint64(at)+4)&^0xfff + uint64(pages<<12) + uint64(second>>10&0xfff*8), true
	}
	return 0, 0, false
}

// hasName reports whether a function of the program has a name.
func (t *GoTable) hasName(name string) bool {
	for range t.namesWith("\x00" + name + "\x00") {
		return true
	}
	return false
}

// namesWith yields where a text is among the names of functions, each of which ends with a zero: offsets from where they
// begin.
func (t *GoTable) namesWith(text string) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		sought := []byte(text)
		names := newWindow(t.data)
		for at := t.funcNames; at < t.cutab; {
			b := names.from(at)
			if len(b) < len(sought) && names.buf != nil {
				names.buf = names.buf[:0] // it shows less than a long name: anew, from here on
				b = names.from(at)
			}
			b = b[:min(uint64(len(b)), t.cutab-at)]
			if i := bytes.Index(b, sought); i >= 0 {
				at += uint64(i)
				if !yield(at - t.funcNames) {
					return
				}
				at++
				continue
			}
			if len(b) < len(sought) {
				return
			}
			at += uint64(len(b) - len(sought) + 1)
		}
	}
}

// Named returns the functions of some names, which begin with prefix: a name may be that of two, of what is written in
// assembly, with a suffix for its ABI or without, and of what the compiler has made to call it. Where no name begins so
// nothing else is looked for. It keeps nothing of the table.
func (t *GoTable) Named(prefix string, names ...string) map[string][]GoFunc {
	if t.data == nil {
		return nil
	}
	offsets := make(map[uint64]string)
	for range t.namesWith("\x00" + prefix) {
		for _, name := range names {
			for _, suffix := range [...]string{"", ".abi0"} {
				for at := range t.namesWith("\x00" + name + suffix + "\x00") {
					offsets[at+1] = name
				}
			}
		}
		break
	}
	found := make(map[string][]GoFunc, len(offsets))
	pairs, records := newWindow(t.data), newWindow(t.data)
	for i := uint64(0); i < t.nfunc && len(offsets) > 0; i++ {
		pair := pairs.from(t.pair(i))
		off, ok := word(pair, t.entrySize(), t.entrySize())
		if !ok {
			break
		}
		rec := records.from(t.pcln + min(off, t.data.size))
		f, ok := t.function(pair, off, rec)
		if !ok {
			continue
		}
		at, _ := word(rec, t.entryBytes(), 4)
		if name, ok := offsets[at]; ok {
			found[name] = append(found[name], f)
		}
	}
	return found
}

// asmFuncs finds the link-time addresses of functions of the runtime that are
// written in assembly, by their names without the suffix for their ABI. It
// reads all records, and keeps none.
func (t *GoTable) asmFuncs(names ...string) map[string]uint64 {
	found := make(map[string]uint64, len(names))
	pairs, records := newWindow(t.data), newWindow(t.data)
	for i := uint64(0); i < t.nfunc && len(found) < len(names); i++ {
		pair := pairs.from(t.pair(i))
		off, ok := word(pair, t.entrySize(), t.entrySize())
		if !ok {
			break
		}
		f, ok := t.function(pair, off, records.from(t.pcln+min(off, t.data.size)))
		if !ok || f.Flag&GoFuncAsm == 0 {
			continue
		}
		name := strings.TrimSuffix(f.Name(), ".abi0")
		if _, again := found[name]; !again && slices.Contains(names, name) {
			found[name] = f.Entry
		}
	}
	return found
}
