package profile

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteFolded writes a line for each distinct stack by function names:
//
//	comm;root;...;leaf count
//
// as flamegraph.pl and most viewers of stacks read it. The first frame is the
// thread's name, with blanks made underscores. Functions of the kernel end in
// "_[k]", generated code in "_[j]" and inlined functions in "_[i]", the
// suffixes by which flamegraph.pl chooses colours. In names, the separators
// ";" and newline become ":" and blank, and what cannot be seen becomes "?". The
// lines are sorted. The count is that of samples, or of Meta.Value if
// Meta.ByValue is set.
func (p *Profile) WriteFolded(w io.Writer) error {
	totals := map[string]int64{}
	var stack []uint32
	var text []byte
	for _, s := range p.samples {
		text = append(text[:0], p.foldedComm(&p.threads[s.thread])...)
		stack = p.stack(stack[:0], s.node)
		for _, id := range slices.Backward(stack) {
			lines := p.locations[id].lines
			for _, ln := range slices.Backward(lines) {
				text = append(text, ';')
				text = append(text, foldedName(p.functions[ln.function].name)...)
				text = append(text, ln.suffix()...)
			}
		}
		totals[string(text)] += p.weight(&s.tally)
	}
	out := bufio.NewWriter(w)
	for _, stack := range slices.Sorted(maps.Keys(totals)) {
		out.WriteString(stack)
		out.WriteByte(' ')
		out.WriteString(strconv.FormatInt(totals[stack], 10))
		out.WriteByte('\n')
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("writing folded stacks: %w", err)
	}
	return nil
}

// stack appends the locations of a stack to dst, leaf first.
func (p *Profile) stack(dst []uint32, leaf uint32) []uint32 {
	for n := leaf; n != 0; n = p.nodes[n].parent {
		dst = append(dst, p.nodes[n].location)
	}
	return dst
}

// withoutWaker returns those frames of a stack, leaf first, that are not of what woke the thread up.
func (p *Profile) withoutWaker(stack []uint32) []uint32 {
	for i, id := range stack {
		if p.isWaker(id) {
			return stack[i+1:]
		}
	}
	return stack
}

// isWaker reports whether a location is a WakerMarker.
func (p *Profile) isWaker(location uint32) bool {
	loc := &p.locations[location]
	return loc.module == noModule && strings.HasPrefix(p.functions[loc.lines[0].function].name, wakerPrefix)
}

// weight returns what a sample counts for in pictures.
func (p *Profile) weight(s *tally) int64 {
	if p.Meta.ByValue {
		return s.value
	}
	return s.count
}

func (l *line) suffix() string {
	switch {
	case l.inlined:
		return "_[i]"
	case l.kind == Kernel:
		return "_[k]"
	case l.kind == JIT:
		return "_[j]"
	}
	return ""
}

var (
	foldedNames = strings.NewReplacer(";", ":", "\n", " ", "\r", " ", "\t", " ")
	foldedComms = strings.NewReplacer(";", ":", "\n", "_", "\r", "_", "\t", "_", " ", "_")
)

func foldedName(name string) string { return lineText(name, foldedNames) }

func (p *Profile) foldedComm(t *Thread) string {
	return lineComm(cmp.Or(t.CommString(), p.program, "[unknown]"), foldedComms)
}
