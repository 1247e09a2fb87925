package steppers

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// DyninstInstr walks through instrumentation in files that Dyninst has
// rewritten. Each piece of it, a base tramp, has a symbol
//
//	dyninstBT_ADDRESS_SIZE_HEIGHT
//
// with a height in hexadecimal and a size in bytes in decimal; one without
// height has no frame and is left to others, and so is a tramp's code before
// its frame is set up, if it stands for the entry of a function that was called, and after that
// is gone: where it stands for code in the middle of one, others would take it for a function,
// and what is on the stack for its return address. In the frame, at the frame
// pointer, the return address is the link-time address of the instrumented
// instruction, whose stack pointer is HEIGHT bytes above the frame.
type DyninstInstr struct {
	tramps mcode.PerImage[[]baseTramp]
	code   [maxTrampEntry]byte
}

// baseTramp is a tramp that begins at a link-time address and has its frame in [start, end).
type baseTramp struct{ first, start, end, height uint64 }

// NewDyninstInstr makes a DyninstInstr.
func NewDyninstInstr() *DyninstInstr { return &DyninstInstr{} }

// Name implements unwind.FrameStepper.
func (*DyninstInstr) Name() string { return "dyninst-instr" }

// Priority implements unwind.FrameStepper.
func (*DyninstInstr) Priority() unwind.Priority { return unwind.PriorityInstrumentation }

// CallerFrame implements unwind.FrameStepper.
func (d *DyninstInstr) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil {
		return unwind.NotMe, nil
	}
	tramps := d.tramps.Get(m.Image)
	if tramps == nil {
		found := findBaseTramps(m.Image)
		tramps = &found
		d.tramps.Put(m.Image, tramps)
	}
	t := trampAt(*tramps, in.LookupPC()-m.Bias)
	if t == nil {
		return unwind.NotMe, nil
	}
	if in.LookupPC()-m.Bias < t.start {
		if d.isEntered(w, m, t, in) {
			return unwind.NotMe, nil
		}
		return unwind.Failed, unwind.NoUnwindInfo
	}
	arch, mem := w.Arch(), w.ProcessState()
	width, fp := uint64(arch.AddressWidth), in.FP()
	callerFP, ok1 := mem.ReadWord(fp)
	pc, ok2 := mem.ReadWord(fp + width)
	if !ok1 || !ok2 {
		return unwind.Failed, unwind.ReadFailure(mem, fp)
	}
	out.SetPC(arch, pc+m.Bias)
	out.SetSP(arch, fp+2*width+t.height)
	out.SetFP(arch, callerFP)
	out.PCLocation, out.FPLocation = unwind.InMemory(fp+width), unwind.InMemory(fp)
	out.Regs.ThreadPointer = in.Regs.ThreadPointer
	out.Flags |= unwind.Interrupted
	in.Flags |= unwind.Instrumentation
	return unwind.Success, nil
}

// maxTrampEntry bounds the code of a tramp that sets up its frame, in bytes.
const maxTrampEntry = 128

// isEntered reports whether a tramp that has no frame yet stands for the entry of a function that
// was called: the return address is behind a call of what jumps to the tramp.
func (d *DyninstInstr) isEntered(w *unwind.Walker, m *procstate.Mapping, t *baseTramp, in *unwind.Frame) bool {
	done := in.PC() - m.Bias - t.first
	if w.Arch() != procstate.AMD64 || done > maxTrampEntry || m.Image.ReadVaddr(d.code[:done], t.first) != nil {
		return false
	}
	moved, ok := changeOf(w.Arch(), d.code[:done], t.first, w.Arch().SP)
	ra, read := w.ProcessState().ReadWord(in.SP() - uint64(moved))
	caller := w.MappingAt(ra - 1)
	if !ok || !read || caller == nil || caller.Image == nil || !caller.Contains(ra-mcode.MaxCallLen) {
		return false
	}
	target, direct, _ := mcode.CallBefore(w.Arch(), mcode.Read(w, caller, ra-mcode.MaxCallLen, d.code[:mcode.MaxCallLen]), ra)
	var jump isa.Inst
	return direct && m.Contains(target) && isa.DecodeAMD64(mcode.Read(w, m, target, d.code[:mcode.MaxInstLen]), target, &jump) &&
		jump.Flow == isa.Jump && jump.Target == t.first+m.Bias
}

// trampAt returns the tramp that holds a link-time address, or nil.
func trampAt(tramps []baseTramp, vaddr uint64) *baseTramp {
	i, exact := slices.BinarySearchFunc(tramps, vaddr, func(t baseTramp, v uint64) int { return cmp.Compare(t.first, v) })
	if !exact {
		i--
	}
	if i < 0 || vaddr >= tramps[i].end {
		return nil
	}
	return &tramps[i]
}

// dyninstSection is the section of instrumentation in a file that Dyninst has
// rewritten.
const dyninstSection = ".dyninstInst"

// findBaseTramps lists the tramps of a file by address. Only a file that has
// Dyninst's section of instrumentation is searched.
func findBaseTramps(im *procstate.Image) []baseTramp {
	var tramps []baseTramp
	if _, rewritten := im.Section(dyninstSection); !rewritten {
		return tramps
	}
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		size, height, ok := parseBaseTramp(s.Name)
		if start, end, framed := framedPart(im, s.Value, size); ok && framed {
			tramps = append(tramps, baseTramp{s.Value, start, end, height})
		}
		return true
	})
	slices.SortFunc(tramps, func(a, b baseTramp) int { return cmp.Compare(a.first, b.first) })
	return tramps
}

// maxTramp bounds the bytes of a tramp.
const maxTramp = 64 << 10

// framedPart returns the link-time range in which the code of a tramp has its
// frame: from behind the instruction that sets the frame pointer to the last
// LEAVE. Of what is not code of x86-64 it is all.
func framedPart(im *procstate.Image, vaddr, size uint64) (start, end uint64, ok bool) {
	if size == 0 || size > maxTramp || vaddr+size < vaddr {
		return 0, 0, false
	}
	if im.Arch() != procstate.AMD64 {
		return vaddr, vaddr + size, true
	}
	code := make([]byte, size)
	if im.ReadVaddr(code, vaddr) != nil {
		return 0, 0, false
	}
	var in isa.Inst
	for i := uint64(0); i < size && isa.DecodeAMD64(code[i:], vaddr+i, &in); i += uint64(in.Len) {
		switch b := code[i : i+uint64(in.Len)]; {
		case start == 0 && (string(b) == "\x48\x89\xe5" || string(b) == "\x48\x8b\xec"): // mov %rsp,%rbp
			start = vaddr + i + uint64(in.Len)
		case string(b) == "\xc9": // leave
			end = vaddr + i + 1
		}
	}
	return start, end, start != 0 && end > start
}

// parseBaseTramp reads the name of a tramp that has a frame.
func parseBaseTramp(name []byte) (size, height uint64, ok bool) {
	rest, ok := bytes.CutPrefix(name, []byte("dyninstBT_"))
	fields := bytes.Split(rest, []byte("_"))
	if !ok || len(fields) != 3 {
		return 0, 0, false
	}
	size, err1 := strconv.ParseUint(string(fields[1]), 10, 32)
	height, err2 := strconv.ParseUint(string(fields[2]), 16, 32)
	return size, height, err1 == nil && err2 == nil
}
