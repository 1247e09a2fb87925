package pypy

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// image is what is known of a file that may be PyPy: link-time addresses.
type image struct {
	*layout // nil: it is none, or not known

	enters []entering
	lists  []uint64 // what may be the list of all code objects

	// In what follows the file's data the process has where its compiler notes code.
	zeroed mcode.Range
}

// entering is code of a function that runs one of Python: pypy_g_execute_frame, as its profiler (rpython/rlib/rvmprof)
// decorates it. In that the number of the code object is in a register.
type entering struct {
	mcode.Range
	number procstate.Reg
}

const (
	maxData = 256 << 20
	maxText = 256 << 20
)

// find looks for PyPy in a file.
func find(im *procstate.Image, tables *unwind.Tables) (p image) {
	if im.Arch() != procstate.AMD64 || !strings.Contains(filepath.Base(im.Path), "pypy") {
		return p
	}
	section, ok := im.Section(".data")
	text, ok2 := im.Section(".text")
	if !ok || !ok2 {
		return p
	}
	data, err := im.SectionBytes(section, maxData)
	if err != nil {
		return p
	}
	types, ok := readTypes(data)
	if !ok {
		return p
	}
	f := types.layoutOf()
	if f == nil {
		return p
	}
	const mostFlags = 1 << 6 // of the garbage collector, in objects of the file
	for at := 0; at+3*word <= len(data); at += word {
		if binary.LittleEndian.Uint32(data[at:]) == f.codes && binary.LittleEndian.Uint32(data[at+4:]) < mostFlags {
			p.lists = append(p.lists, section.Vaddr+uint64(at))
		}
	}
	p.enters = findEntering(im, tables, text, f) // where there are none compiled code may have names still
	p.layout = f
	for _, segment := range im.Segments() {
		if end := segment.Vaddr + segment.Memsz; section.Vaddr-segment.Vaddr < segment.Memsz {
			p.zeroed = mcode.Range{Start: (segment.Vaddr + segment.Filesz + word - 1) &^ (word - 1), End: end}
		}
	}
	return p
}

// What a node in the list of what runs has, which the profiler keeps, while a function of Python runs: the number, and
// that it is one of code.
const (
	nodeNumber = 8
	nodeKind   = 16
	isCode     = 1
)

// findEntering finds the code that makes a node of a PyFrame:
//
//	mov pycode(frame), code; mov unique_id(code), number; ... mov number, 8(node); movq $1, 0x10(node)
func findEntering(im *procstate.Image, tables *unwind.Tables, text procstate.Section, f *layout) (found []entering) {
	stores := []byte{nodeKind, isCode, 0, 0, 0} // the end of movq $1, 0x10(reg)
	at := text.Vaddr
	_ = im.SectionParts(text, maxText, func(part []byte) {
		for i := 0; ; i++ {
			n := bytes.Index(part[i:], stores)
			if n < 0 {
				break
			}
			if i += n; i >= 3 && (part[i-2] == 0xc7 || part[i-3] == 0xc7) {
				if e, ok := enteringAt(im, tables.For(im), at+uint64(i), f); ok {
					found = append(found, e)
				}
			}
		}
		at += uint64(len(part))
	})
	return found
}

const maxFunction = 16 << 10 // bytes

// enteringAt returns the code from an instruction that makes a node on, where that is one of code: as long as the
// register has the number.
func enteringAt(im *procstate.Image, table *unwind.Table, vaddr uint64, f *layout) (e entering, ok bool) {
	const most = 16 // bytes from one store to the other
	start, end, ok := table.FunctionAt(vaddr)
	if !ok || end-start > maxFunction {
		return e, false
	}
	code := mcode.ReadFile(im, start, end)
	var in isa.Inst
	object, number := procstate.NoReg, procstate.NoReg
	for pc := start; pc-start < uint64(len(code)); pc += uint64(in.Len) {
		if !mcode.Decode(im.Arch(), code[pc-start:], pc, &in) || in.Len == 0 {
			break
		}
		isBehind := pc > vaddr
		if isBehind && e.End == 0 && vaddr-e.Start > most {
			break
		}
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case isBehind && isWritten(&op, number):
				return e, true
			case op.Kind == isa.Load && op.Imm == int64(f.uniqueID) && op.Src == object && !isBehind:
				number = op.Dst
			case op.Kind == isa.Store && op.Imm == nodeNumber && op.Src == number && !isBehind:
				e.Start, e.number = pc, number
			}
			if isWritten(&op, object) {
				object = procstate.NoReg
			}
			if op.Kind == isa.Load && op.Imm == int64(f.frameCode) {
				object = op.Dst
			}
		}
		if isBehind {
			e.End = pc + uint64(in.Len)
		}
		switch {
		case isBehind && in.Ends():
			return e, true
		case in.Flow == isa.Call || in.Flow == isa.IndirectCall:
			object = procstate.NoReg
		}
	}
	return entering{}, false
}

// isWritten reports whether an operation changes a register.
func isWritten(op *isa.Op, reg procstate.Reg) bool {
	switch op.Kind {
	case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
		return false
	case isa.Swap:
		return op.Dst == reg || op.Src == reg
	}
	return op.Dst == reg
}
