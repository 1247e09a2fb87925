package wazero

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/isa"
)

// imageInfo is what is known of a program that may have wazero: link-time addresses.
type imageInfo struct {
	rt *procstate.GoRuntime // nil: there is no wazero, or the runtime of Go is not known

	ways       [2]way      // from Go into compiled code: from its beginning, and to where it has called Go
	resume     mcode.Range // afterGoFunctionCallEntrypoint
	calls      function    // callEngine.callWithStack
	interprets function    // callEngine.callNativeFunc of the interpreter
}

// way is how Go goes over to compiled code.
type way struct {
	ret     uint64 // the return address, in a wrapper
	bytes   uint64 // of the wrapper's frame, without that
	context uint64 // where the execution context is, from that address on,
	stack   uint64 // and an address on the stack of compiled code
}

// function is one of Go's, while its frame is there and has its arguments.
type function struct {
	mcode.Range
	bytes uint64 // from SP to the return address
}

// Names of wazero's functions.
const (
	prefix          = "github.com/tetratelabs/wazero/internal/engine/"
	callName        = prefix + "wazevo.(*callEngine).callWithStack"
	entryName       = prefix + "wazevo/backend/isa/amd64.entrypoint"
	resumeName      = prefix + "wazevo/backend/isa/amd64.afterGoFunctionCallEntrypoint"
	interpreterName = prefix + "interpreter.(*callEngine).callNativeFunc"
)

// Where of the arguments, from the return address on, the execution context is, and the SP that there will be.
const (
	contextOfEntry  = 8 + 2*8
	stackOfEntry    = 8 + 5*8
	contextOfResume = 8 + 8
	stackOfResume   = 8 + 2*8
)

// find looks for wazero in a file.
func find(im *procstate.Image) (p imageInfo) {
	if im.Arch() != procstate.AMD64 {
		return p
	}
	table, err := procstate.Pclntab(im)
	if err != nil {
		return p
	}
	found := table.Named(prefix, callName, entryName, resumeName, interpreterName)
	if len(found) == 0 {
		return p
	}
	if p.rt, err = procstate.GoStacksOf(im); err != nil {
		return imageInfo{}
	}
	p.interprets = functionOf(im, table, found[interpreterName])
	var ok [2]bool
	p.ways[0], ok[0] = findWay(im, table, found[entryName], contextOfEntry, stackOfEntry)
	p.ways[1], ok[1] = findWay(im, table, found[resumeName], contextOfResume, stackOfResume)
	if ok[0] && ok[1] {
		p.calls = functionOf(im, table, found[callName])
		p.resume = assembly(found[resumeName])
	}
	return p
}

// assembly returns where that of functions with the same name is which is written in assembly.
func assembly(fs []procstate.GoFunc) mcode.Range {
	for i := range fs {
		if fs[i].Flag&procstate.GoFuncAsm != 0 {
			return mcode.Range{Start: fs[i].Entry, End: fs[i].End}
		}
	}
	return mcode.Range{}
}

// maxBegin is how much code of a function is looked at, in bytes.
const maxBegin = 1 << 10

// eachInst calls visit for the instructions of a function, until it returns false.
func eachInst(im *procstate.Image, f *procstate.GoFunc, visit func(pc uint64, in *isa.Inst) bool) {
	code := mcode.ReadFile(im, f.Entry, min(f.End, f.Entry+maxBegin))
	var in isa.Inst
	for pc := f.Entry; len(code) > 0 && isa.DecodeAMD64(code, pc, &in) && int(in.Len) <= len(code) && visit(pc, &in); {
		code, pc = code[in.Len:], pc+uint64(in.Len)
	}
}

// findWay finds the call of an assembly function in what the compiler has made to call it.
func findWay(im *procstate.Image, table *procstate.GoTable, fs []procstate.GoFunc, context, stack uint64) (w way, ok bool) {
	asm := assembly(fs)
	for i := range fs {
		f := &fs[i]
		if f.Entry == asm.Start {
			continue
		}
		eachInst(im, f, func(pc uint64, in *isa.Inst) bool {
			if in.Flow != isa.Call || in.Target != asm.Start {
				return true
			}
			delta, known := table.SPDelta(f, pc)
			w, ok = way{ret: pc + uint64(in.Len), bytes: uint64(delta), context: context, stack: stack}, known && delta > 0
			return false
		})
	}
	return w, ok
}

// functionOf returns where the frame of the only one of some functions is there: from its first call on, up to where it
// asks for more stack, which the first jump goes to. It is empty where there is none.
func functionOf(im *procstate.Image, table *procstate.GoTable, fs []procstate.GoFunc) (is function) {
	if len(fs) != 1 {
		return is
	}
	f, more := &fs[0], uint64(0)
	eachInst(im, f, func(pc uint64, in *isa.Inst) bool {
		switch in.Flow {
		case isa.CondJump:
			if more == 0 {
				more = in.Target
			}
		case isa.Call, isa.IndirectCall:
			delta, ok := table.SPDelta(f, pc)
			if ok && delta > 0 && more > pc && more < f.End {
				is = function{mcode.Range{Start: pc, End: more}, uint64(delta)}
			}
			return false
		}
		return true
	})
	return is
}
