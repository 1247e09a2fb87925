package bash

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Stepper notes which functions of a script run in frames of bash (see unwind.Codes), bash 5.1 to 5.3, where the program
// exports its functions as Debian's does, on x86-64. It walks through no frame, and has all other steppers find
// them as they do.
//
// Each call of a function is a frame of execute_function, and has an entry in a list. A [Collector] copies that, or the
// kernel side does (see [Stepper.Lacked]): it and the C stack must be of one moment. In which line a function is, the
// command tells that a frame of execute_command_internal runs: those are freed soon, so that lines are known of what stands
// still alone.
type Stepper struct {
	tables *unwind.Tables
	images mcode.PerImage[image]
}

// New makes a Stepper. The tables tell where functions begin; nil are some of its own.
func New(tables *unwind.Tables) *Stepper { return &Stepper{tables: tables} }

// Name implements unwind.FrameStepper.
func (s *Stepper) Name() string { return "bash" }

// Priority implements unwind.FrameStepper.
func (s *Stepper) Priority() unwind.Priority { return unwind.PriorityDebug - 1 }

// image is what is known of a file that may be bash. Addresses are link-time addresses.
type image struct {
	arch      *procstate.Arch // nil: it is not
	version   uint64          // dist_version
	variables uint64          // shell_variables,
	globals   uint64          // global_variables
	defs      uint64          // shell_function_defs
	arguments uint64          // and dollar_vars

	code [places]mcode.Range
	part [places]mcode.FunctionParts

	push, run uint64   // push_context and run_unwind_frame
	endless   []uint64 // functions that do not return
	isLearned [places]bool
	calls     [places]calls // of execute_command_internal and execute_function; made when they are first asked for
}

// place is what a function of C does for a script.
type place uint8

const (
	elsewhere    place = iota
	runsCommand        // execute_command_internal
	runsFunction       // execute_function
	runsText           // parse_and_execute
	runsFile           // _evalfile
	runsInline         // function_substitute, of 5.3: ${ command; }
	freesCommand       // dispose_command
	runsAll            // main
	places
)

// image returns what is known of a file.
func (s *Stepper) image(im *procstate.Image) *image {
	if p := s.images.Get(im); p != nil {
		return p
	}
	return s.images.Known(im, func(im *procstate.Image) image { return find(im, vmread.MadeTables(&s.tables)) })
}

// find looks for bash in a file.
func find(im *procstate.Image, tables *unwind.Tables) (p image) {
	if im.Arch() != procstate.AMD64 {
		return p
	}
	ok := true
	find := func(name string) mcode.Range {
		if !ok {
			return mcode.Range{}
		}
		sym, is := im.ExportedSymbol(name)
		ok = is && sym.Value != 0
		return mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
	}
	p.code[runsCommand] = find("execute_command_internal")
	p.version, p.variables, p.globals, p.defs = find("dist_version").Start, find("shell_variables").Start, find("global_variables").Start, find("shell_function_defs").Start
	p.arguments = find("dollar_vars").Start
	p.push, p.run = find("push_context").Start, find("run_unwind_frame").Start
	p.code[runsText], p.code[freesCommand], p.code[runsAll] = find("parse_and_execute"), find("dispose_command"), find("main")
	file := find("fc_execute_file")
	if !ok {
		return p
	}
	t := tables.For(im)
	if sym, is := im.ExportedSymbol("function_substitute"); is {
		p.code[runsInline] = mcode.Range{Start: sym.Value, End: sym.Value + sym.Size}
	}
	if p.code[runsFunction], ok = callerOf(im, t, p.push, p.code[runsInline]); !ok {
		return p
	}
	if start, end, is := t.FunctionAt(lastTarget(im, file)); is {
		p.code[runsFile] = mcode.Range{Start: start, End: end}
	}
	for _, name := range [...]string{"jump_to_top_level", "sh_exit", "exit_shell", "subshell_exit"} {
		if sym, is := im.ExportedSymbol(name); is {
			p.endless = append(p.endless, sym.Value)
		}
	}
	p.arch = im.Arch()
	return p
}

// callerOf returns the function that calls another one; there has to be just one, but for a further one that is known.
func callerOf(im *procstate.Image, t *unwind.Table, callee uint64, but mcode.Range) (caller mcode.Range, ok bool) {
	const most, piece = 16 << 20, 64 << 10
	text, ok := im.Section(".text")
	if !ok || text.Size > most {
		return caller, false
	}
	buf := make([]byte, piece)
	for at := text.Vaddr; at < text.Vaddr+text.Size; at += piece - mcode.MaxInstLen - 1 {
		code := buf[:min(piece, text.Vaddr+text.Size-at)]
		if im.ReadVaddr(code, at) != nil {
			return caller, false
		}
		for n := 0; ; n++ {
			next := bytes.IndexByte(code[n:], call)
			if n += next; next < 0 || n+callBytes > len(code) {
				break
			}
			from := at + uint64(n)
			if callee != from+callBytes+uint64(int64(int32(binary.LittleEndian.Uint32(code[n+1:])))) || but.Holds(from) {
				continue
			}
			start, end, is := t.FunctionAt(from)
			if !is || caller.End != 0 && caller.Start != start {
				return caller, false
			}
			caller = mcode.Range{Start: start, End: end}
		}
	}
	return caller, caller.End != 0
}

// A call of x86-64 of a function at a distance.
const call, callBytes = 0xe8, 5

// lastTarget returns where the last direct call or jump of a function leads, 0 where there is none.
func lastTarget(im *procstate.Image, f mcode.Range) (target uint64) {
	const most = 64
	code := mcode.ReadFile(im, f.Start, min(f.End, f.Start+most))
	var in isa.Inst
	for n := 0; n < len(code) && mcode.Decode(im.Arch(), code[n:], f.Start+uint64(n), &in) && in.Len > 0; n += int(in.Len) {
		if in.Flow == isa.Call || in.Flow == isa.Jump {
			target = in.Target
		}
	}
	return target
}

// place returns what code is at a link-time address.
func (p *image) place(tables *unwind.Tables, im *procstate.Image, vaddr uint64) place {
	if p.arch == nil {
		return elsewhere
	}
	for i := runsCommand; i < places; i++ {
		if p.code[i].Holds(vaddr) {
			return i
		}
	}
	// What is seldom executed of a function lies elsewhere.
	for _, i := range [...]place{runsCommand, runsFunction} {
		if p.part[i].Has(tables, im, p.code[i], vaddr) {
			return i
		}
	}
	return elsewhere
}

// callsOf returns the calls of execute_command_internal or execute_function.
func (p *image) callsOf(tables *unwind.Tables, im *procstate.Image, of place) calls {
	if !p.isLearned[of] {
		p.isLearned[of] = true
		p.calls[of] = follow(im, tables.For(im), p.code[of], p.push, p.run, p.endless)
	}
	return p.calls[of]
}

// CallerFrame implements unwind.FrameStepper. It is always NotMe.
func (s *Stepper) CallerFrame(w *unwind.Walker, in, _ *unwind.Frame) (unwind.Verdict, error) {
	m := w.MappingAt(in.LookupPC())
	if m == nil || m.Image == nil || m.Image.Arch() != w.Arch() {
		return unwind.NotMe, nil
	}
	p, tables := s.image(m.Image), vmread.MadeTables(&s.tables)
	place := p.place(tables, m.Image, in.LookupPC()-m.Bias)
	if place == elsewhere {
		return unwind.NotMe, nil
	}
	vm, _ := w.Kept(s).(*machine)
	if vm == nil || vm.im != m.Image || vm.bias != m.Bias {
		vm = newMachine(w, m, p, tables)
		w.Keep(s, vm)
	}
	in.Code = vm.codeOf(w, in, place)
	return unwind.NotMe, nil
}

// RuleAt implements unwind.RuleStepper.
func (s *Stepper) RuleAt(_ *unwind.Walker, m *procstate.Mapping, pc uint64, interrupted bool) (*unwind.Rule, bool) {
	if m == nil || m.Image == nil {
		return unwind.RuleNotMe, true
	}
	p := s.image(m.Image)
	return unwind.RuleNotMe, p.arch == nil || p.place(vmread.MadeTables(&s.tables), m.Image, mcode.LookupPC(pc, interrupted)-m.Bias) == elsewhere
}

// ForgetImages implements unwind.ImageForgetter.
func (s *Stepper) ForgetImages(isKept func(index uint32) bool) { s.images.KeepOnly(isKept) }

// isKnown reports whether a version of bash is one of those that are known, and where its lists have the first element.
func isKnown(version []byte) (listHead uint64, ok bool) {
	version, _, _ = bytes.Cut(version, []byte{0})
	switch string(version) {
	case "5.1":
		return 24, true
	case "5.2", "5.3":
		return 16, true
	}
	return 0, false
}
