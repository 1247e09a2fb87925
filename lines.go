package swbpf

import (
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// Lines appends the logical frames of a frame of w to dst, innermost first, at run-time
// addresses: the calls that were inlined there, and the function itself. Where a runtime of
// the process says what the frame runs it is that, as the functions of Python that share a
// frame of its interpreter; FunctionStart of what is interpreted is 0. A SymbolLookup that has
// no Lines as [symbols.Lookup] does gives one Line, or none.
func Lines(w *unwind.Walker, dst []symbols.Line, f *unwind.Frame) []symbols.Line {
	if codes := w.Codes(); len(codes.Lines(f.Code)) > 0 {
		return appendCodes(dst, codes, f.Code)
	}
	names, addr := w.SymbolLookup(), f.LookupPC()
	if l, ok := names.(interface {
		Lines(dst []symbols.Line, addr uint64) []symbols.Line
	}); ok {
		return l.Lines(dst, addr)
	}
	sym, ok := w.Name(f)
	if !ok {
		return dst
	}
	line := symbols.Line{Function: sym.Name, SystemName: sym.Name, FunctionStart: f.PC() - sym.Offset}
	if l, ok := names.(unwind.LineLookup); ok {
		line.File, line.Line, _ = l.SourceLine(addr)
	}
	return append(dst, line)
}

// appendCodes appends what a number stands for, and what calls that in the same frame.
func appendCodes(dst []symbols.Line, codes *unwind.Codes, number uint32) []symbols.Line {
	for ; number != 0; number = codes.Outer(number) {
		lines, outer := codes.Lines(number), codes.Outer(number)
		for i, l := range lines {
			dst = append(dst, symbols.Line{
				Function: l.Name, SystemName: l.SystemName, File: l.File, Line: l.Line, StartLine: l.StartLine,
				FunctionStart: codes.Start(number), Inlined: i < len(lines)-1 || outer != 0,
			})
		}
	}
	return dst
}
