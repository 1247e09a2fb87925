package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// writeWalkText writes a process for people; with group set, threads with the
// same stack are one.
func writeWalkText(w io.Writer, p *processWalk, group bool) error {
	head := fmt.Sprintf("process %d  %s  (%s, %s", p.pid, printable(p.exe), p.arch.Name, plural(len(p.threads), "thread"))
	if n := p.goroutines.total; n > 0 {
		head += ", " + plural(n, "goroutine")
	}
	if n := p.virtual.total; n > 0 {
		head += ", " + plural(n, "virtual thread")
	}
	head += p.tasks.text()
	if name := serviceText(p.context.Resource); name != "" {
		head += ", service " + printable(name)
	}
	if p.live {
		head += ", stopped for " + duration(p.stopped)
	}
	if _, err := fmt.Fprintln(w, head+")"); err != nil {
		return err
	}
	if command := commandText(p.command, p.exe); command != "" {
		fmt.Fprintf(w, "command: %s\n", command)
	}
	p.writeDeadlocks(w)
	for _, g := range groupThreads(p, group) {
		t := g[0]
		fmt.Fprintf(w, "\n%s\n", groupHead(g))
		p.writeStack(w, &t.stackWalk)
	}
	p.writeGoroutines(w)
	p.writeVirtual(w)
	p.writeTasks(w)
	return nil
}

// commandText is the command line of a process that runs a program, "" where that is but its name.
func commandText(args []string, exe string) string {
	if len(args) == 1 && strings.TrimPrefix(filepath.Base(args[0]), "-") == filepath.Base(exe) {
		return ""
	}
	return printable(shortened(strings.Join(args, " ")))
}

// shortened leaves out the middle of a long text: what a program of Java is to do stands last in its command line, what
// a statement of SQL is for in its beginning and its end.
func shortened(s string) string {
	const most, half = 240, 115
	if text := []rune(s); len(text) > most {
		return string(text[:half]) + " [...] " + string(text[len(text)-half:])
	}
	return s
}

// writeStack writes the frames of a stack and why it ends early, if it does.
func (p *processWalk) writeStack(w io.Writer, t *stackWalk) {
	runs := []frameRun{{0, len(t.frames), 0}}
	if !p.whole {
		runs = foldRecursion(t.frames)
	}
	writeFrames(w, p.arch, t.frames, runs, p.locals)
	if !t.complete() && len(t.stack) > 0 {
		r := unwind.ReasonOf(t.err)
		if r == unwind.StepperFailed {
			fmt.Fprintf(w, "  ends here: %s\n", printable(t.err.Error()))
		} else {
			fmt.Fprintf(w, "  ends here: %s: %s\n", r, printable(p.help(t, r)))
		}
	}
}

// help says more of the reason for which a stack ends early. A core file has no code in
// it: which file that is missing, and whether there is a flag for it, is known.
func (p *processWalk) help(t *stackWalk, r unwind.Reason) string {
	switch r {
	case unwind.StackCut:
		return "the stack is longer than what is copied of it, 256 MB of all stacks together; with --args they are read where they are"
	case unwind.TooManyFrames:
		return fmt.Sprintf("a stack has %s frames at most here, or %s where others are as deep", thousands(maxWalkFrames), thousands(unwind.DefaultMaxFrames))
	}
	core, ok := p.closer.(*procstate.Core)
	if !ok || r != unwind.NoFile {
		return r.Help()
	}
	m := core.Libraries().MappingAt(t.stack[len(t.stack)-1].LookupPC())
	switch {
	case m == nil || m.ImageErr == nil:
		return r.Help()
	case m.Path == core.ExecutablePath():
		return fmt.Sprintf("the program of the core file could not be read (%v); name it, where it is now, by --exe", m.ImageErr)
	}
	return fmt.Sprintf("a file that the process had mapped could not be read (%v); it has to be where it was, as the core file has none of its code", m.ImageErr)
}

// groupThreads puts threads with the same stack, state and outcome together,
// in the order of their first. Their names may differ in numbers, as those of
// the threads of a pool do.
func groupThreads(p *processWalk, group bool) [][]*threadWalk {
	var groups [][]*threadWalk
	index := make(map[string]int)
	var key []byte
	for i := range p.threads {
		t := &p.threads[i]
		key = append(key[:0], replaceNumbers(t.name, func(string) string { return "0" })...)
		key = append(key, 0)
		key = append(key, t.state...)
		key = append(key, 0)
		key = append(key, t.reason()...)
		if t.wait != nil { // who waits for whom must not get lost
			key = binary.LittleEndian.AppendUint32(key, uint32(t.wait.holder))
		}
		if t.hasGIL {
			key = append(key, 1)
		}
		for _, task := range t.tasks {
			key = binary.LittleEndian.AppendUint64(key, task.Addr)
		}
		if t.java != nil {
			key = append(key, javaWait(t.java)...)
		}
		for j := range t.stack {
			key = binary.LittleEndian.AppendUint64(key, t.stack[j].PC())
			key = append(key, byte(t.stack[j].Flags))
		}
		for j := range t.frames {
			f := &t.frames[j]
			if f.frame.Code != 0 { // all that an interpreter runs has the same addresses
				key = fmt.Appendf(key, "%s\x00%s\x00%d\x00", f.function, f.file, f.line)
			}
			if len(f.variables) > 0 {
				key = append(append(key, f.arguments()...), f.locals()...)
			}
		}
		if g, ok := index[string(key)]; ok && group {
			groups[g] = append(groups[g], t)
			continue
		}
		index[string(key)] = len(groups)
		groups = append(groups, []*threadWalk{t})
	}
	return groups
}

// groupHead is the line above a stack: `3 threads 12-14 "worker", sleeping: complete`.
func groupHead(g []*threadWalk) string {
	t := g[0]
	var b strings.Builder
	if len(g) == 1 {
		fmt.Fprintf(&b, "thread %d", t.tid)
	} else {
		fmt.Fprintf(&b, "%d threads %s", len(g), tidRanges(g))
	}
	if name := groupName(g); name != "" {
		fmt.Fprintf(&b, " %q", name)
	}
	b.WriteString(" " + t.state)
	b.WriteString(groupWait(g))
	var ids []uint64
	var labels []procstate.GoLabel // that all of them have
	for _, t := range g {
		if t.goroutine != nil {
			if ids = append(ids, t.goroutine.ID); len(ids) == 1 {
				labels = t.goroutine.Labels
			}
			labels = commonLabels(labels, t.goroutine.Labels)
		}
	}
	switch len(ids) {
	case 0:
	case 1:
		fmt.Fprintf(&b, ", goroutine %d", ids[0])
	default:
		fmt.Fprintf(&b, ", goroutines %s", ranges(ids))
	}
	b.WriteString(labelsText(labels))
	b.WriteString(workText(g))
	var virtual []uint64
	for _, t := range g {
		if t.virtual != nil {
			virtual = append(virtual, uint64(t.virtual.ID))
		}
	}
	switch len(virtual) {
	case 0:
	case 1:
		b.WriteString(", " + virtualText(t.virtual.ID, t.virtual.Name))
	default:
		fmt.Fprintf(&b, ", virtual threads %s", ranges(virtual))
	}
	if len(g) == 1 && len(t.tasks) > 0 {
		b.WriteString(", " + tasksText(t.tasks))
	}
	if t.hasGIL {
		b.WriteString(", with the GIL")
	}
	b.WriteString(printable(javaNote(t)) + ": " + t.outcome())
	if t.blocked {
		b.WriteString(" (could not be stopped)")
	}
	return b.String()
}

// groupWait says which system call the threads of a group wait in, and what it is about
// if that is the same for all.
func groupWait(g []*threadWalk) string {
	first := g[0].wait
	if first == nil {
		return ""
	}
	all := first.String()
	for _, t := range g[1:] {
		switch {
		case t.wait == nil || t.wait.call != first.call:
			return ""
		case t.wait.String() != all:
			all = first.call
		}
	}
	return " in " + printable(all)
}

// outcome says whether a stack is complete, or why not.
func (t *stackWalk) outcome() string {
	switch {
	case t.complete():
		return "complete"
	case len(t.stack) == 0:
		return t.reason()
	}
	return "incomplete, " + t.reason()
}

// replaceNumbers replaces each number in a name, a run of digits, by what f returns.
func replaceNumbers(name string, f func(number string) string) string {
	const digits = "0123456789"
	var b strings.Builder
	for {
		i := strings.IndexAny(name, digits)
		if i < 0 {
			b.WriteString(name)
			return b.String()
		}
		rest := strings.TrimLeft(name[i:], digits)
		b.WriteString(name[:i])
		b.WriteString(f(name[i : len(name)-len(rest)]))
		name = rest
	}
}

// numbersOf returns the numbers in a name.
func numbersOf(name string) (numbers []string) {
	replaceNumbers(name, func(n string) string { numbers = append(numbers, n); return n })
	return numbers
}

// groupName is the name of the threads of a group, with "*" for the numbers in
// which they differ: "pool-1-thread-*".
func groupName(g []*threadWalk) string {
	names := make([]string, len(g))
	for i, t := range g {
		names[i] = t.name
	}
	return commonName(names)
}

// commonName returns the name of those that have these, which differ in numbers alone.
func commonName(names []string) string {
	name := names[0]
	first, differ := numbersOf(name), map[int]bool{}
	for _, other := range names[1:] {
		for i, n := range numbersOf(other) {
			differ[i] = differ[i] || n != first[i]
		}
	}
	i := -1
	return replaceNumbers(name, func(n string) string {
		if i++; differ[i] {
			return "*"
		}
		return n
	})
}

// tidRanges writes the IDs of threads.
func tidRanges(g []*threadWalk) string {
	tids := make([]procstate.ThreadID, len(g))
	for i, t := range g {
		tids[i] = t.tid
	}
	return ranges(tids)
}

// ranges sorts IDs and writes them as ranges: "12-14, 17". Past some, it counts.
func ranges[ID procstate.ThreadID | uint64 | int](ids []ID) string {
	slices.Sort(ids)
	var parts []string
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if len(parts) == 8 {
			parts = append(parts, fmt.Sprintf("and %d more", len(ids)-i))
			break
		}
		if i == j {
			parts = append(parts, fmt.Sprint(ids[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ids[i], ids[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

const maxNameColumn = 48

// writeFrames writes one line a frame: number, address, function+offset,
// module, source line, and how it was found when that was not plain CFI. Of recursion it
// writes the first frames, and how many more there are.
func writeFrames(w io.Writer, a *procstate.Arch, frames []walkFrame, runs []frameRun, locals bool) {
	width, digits := 0, max(3, len(strconv.Itoa(len(frames)-1)))
	for _, r := range runs {
		for i := r.start; i < r.end; i++ {
			if n := len(printable(frames[i].label())); n <= maxNameColumn {
				width = max(width, n)
			}
		}
	}
	for _, r := range runs {
		writeRun(w, a, frames, r, digits, width, locals)
	}
}

// writeRun writes some frames, with columns of so many characters for their numbers and names.
func writeRun(w io.Writer, a *procstate.Arch, frames []walkFrame, r frameRun, digits, width int, locals bool) {
	var line []byte
	column := func(text string, width int) { // as fmt's %-*s
		line = append(line, text...)
		for n := utf8.RuneCountInString(text); n < width; n++ {
			line = append(line, ' ')
		}
	}
	for i := r.start; i < r.end; i++ {
		f := &frames[i]
		line = append(line[:0], "  #"...)
		column(strconv.Itoa(i), digits)
		line = append(line, ' ')
		switch addr := 2 + 2*a.AddressWidth; {
		case f.isTask():
		case f.inlined && f.bytecode: // one of several in the interpreter's frame
			column("", addr)
		case f.inlined:
			column("", addr-7)
			line = append(line, "inlined"...)
		default:
			line = append(line, "0x"...)
			for shift := 8*a.AddressWidth - 4; shift >= 0; shift -= 4 {
				line = append(line, "0123456789abcdef"[f.frame.PC()>>shift&15])
			}
		}
		if !f.isTask() {
			line = append(line, "  "...)
		}
		column(printable(f.label()), width)
		if f.module != "" {
			line = append(append(line, "  "...), printable(filepath.Base(f.module))...)
		}
		if f.file != "" {
			line = append(append(line, "  "...), printable(f.file)...)
			if f.line > 0 {
				line = strconv.AppendInt(append(line, ':'), int64(f.line), 10)
			}
		}
		if n := f.note(); n != "" && (!f.inlined || f.bytecode) {
			line = append(append(append(line, "  ["...), n...), ']')
		}
		w.Write(append(bytes.TrimRight(line, " "), '\n'))
		if locals {
			io.WriteString(w, printableLines(f.locals()))
		}
	}
	switch {
	case r.more > 0 && r.end-r.start == 1:
		fmt.Fprintf(w, "  ... %s more of frame #%d\n", thousands(r.more), r.start)
	case r.more > 0:
		fmt.Fprintf(w, "  ... %s more of frames #%d-#%d\n", thousands(r.more), r.start, r.end-1)
	}
}

// thousands writes a number with a comma after each thousand: "104,825".
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// label is the name and offset, or the module's offset where there is no name.
func (f *walkFrame) label() string {
	switch {
	case f.function != "" && f.late:
		return f.function + "(" + variables.Unknown(variables.ErrLate) + ")"
	case f.function != "" && f.described:
		return f.function + f.arguments()
	case f.function != "" && (f.inlined || f.bytecode):
		return f.function
	case f.function != "":
		return f.function + "+" + hex(f.offset)
	case f.module != "":
		return filepath.Base(f.module) + "+" + hex(f.moduleOff)
	}
	return "??"
}

// note tells what is special about a frame.
func (f *walkFrame) note() string {
	var notes []string
	if f.isTask() {
		return ""
	}
	if f.bytecode && !f.compiled {
		notes = append(notes, "interpreted")
	} else if !f.bytecode && f.stepper != "" && f.stepper != "debug" {
		notes = append(notes, f.stepper)
	}
	fl := f.frame.Flags
	if fl&unwind.Signal != 0 {
		notes = append(notes, "signal frame")
	} else if fl&unwind.Interrupted != 0 && fl&unwind.Top == 0 {
		notes = append(notes, "interrupted")
	}
	if fl&unwind.Heuristic != 0 {
		notes = append(notes, "heuristic")
	}
	return strings.Join(notes, ", ")
}

// plural writes a number of things: "1 process", "2 processes".
func plural[N int | uint64](n N, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "s"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// duration writes a time with a sensible number of digits: "4.3 ms".
func duration(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.1f us", float64(d)/1e3)
	case d < time.Millisecond:
		return fmt.Sprintf("%d us", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}
