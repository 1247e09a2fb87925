package profile

import (
	"bufio"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

const foldedFormat = "folded stacks"

// readFolded reads folded stacks: "comm;root;...;leaf count", a line each, as
// WriteFolded and most collapsing scripts write them. Functions without a
// suffix that tells their kind count as native code.
//
// Not every tool begins a line with the name of a process or thread. The
// first frame is taken for one when that fits all lines.
func readFolded(r *bufio.Reader, o ReadOptions) (*Profile, error) {
	if o.SampleType != "" && o.SampleType != "samples" {
		return nil, noSuchType(o.SampleType, []string{"samples"})
	}
	f := folded{a: newAssembler(), roots: map[string]bool{}, inner: map[string]bool{}}
	l := lines{r: r, format: foldedFormat}
	for {
		err := l.read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if l.next > o.MaxBytes {
			return nil, l.errorf("the profile is larger than %d bytes", o.MaxBytes)
		}
		if err := f.line(&l); err != nil {
			return nil, err
		}
	}
	if len(f.stacks) == 0 {
		return nil, l.errorf("no stacks")
	}
	p, err := f.build(o)
	if err == nil && !l.ended {
		p.Meta.Notes = append(p.Meta.Notes, "the last line of the text has no end; it may be cut off")
	}
	return p, err
}

type folded struct {
	a            *assembler
	stacks       []foldedStack
	roots, inner map[string]bool // names of first frames, and of others
	sum          int64           // of counts
}

type foldedStack struct {
	frames []string // root first
	count  int64
}

func (f *folded) line(l *lines) error {
	if i := invalidUTF8(l.text); i >= 0 {
		return &FormatError{foldedFormat, l.offset + int64(i), l.line, "the text is not UTF-8"}
	}
	text := strings.TrimSpace(l.text)
	if text == "" || text[0] == '#' {
		return nil
	}
	i := strings.LastIndexAny(text, " \t")
	if i < 0 {
		return l.errorf("no count after the stack %q", clip(text, 60))
	}
	count, err := strconv.ParseInt(text[i+1:], 10, 64)
	at := l.offset + int64(strings.LastIndexAny(l.text[:len(strings.TrimRight(l.text, " \t"))], " \t")) + 1
	if err != nil || count < 0 {
		return &FormatError{foldedFormat, at, l.line, strconv.Quote(clip(text[i+1:], 40)) + " is not a count of samples"}
	}
	if f.sum > math.MaxInt64-count {
		return &FormatError{foldedFormat, at, l.line, errOverflow.Error()}
	}
	f.sum += count
	frames := strings.Split(strings.TrimRight(text[:i], " \t"), ";")
	for j, name := range frames {
		if name == "" {
			frames[j] = "[unknown]"
			name = frames[j]
		}
		if j == 0 {
			f.roots[name] = true
		} else {
			f.inner[name] = true
		}
	}
	f.stacks = append(f.stacks, foldedStack{frames, count})
	return nil
}

// commPID is the first frame as collapsing scripts write it when they are to
// tell processes and threads apart: "comm-12/34".
var commPID = pattern(`^(.{1,15})-(\d+|\?)(?:/(\d+))?$`)

// startFunctions are functions at which threads begin: no names of processes.
var startFunctions = map[string]bool{
	"_start": true, "main": true, "clone": true, "clone3": true, "__clone": true, "__clone3": true, "start_thread": true,
	"thread_start": true, "runtime.goexit": true, "runtime.main": true, "runtime.mcall": true, "runtime.mstart": true,
	"runtime.systemstack": true, "ret_from_fork": true, "all": true, "root": true, "[unknown]": true,
}

// threaded reports whether all stacks begin with the name of a thread, and
// whether all of these have IDs: else "clang-19" is but a name.
func (f *folded) threaded() (named, numbered bool) {
	numbered = true
	for name := range f.roots {
		numbered = numbered && commPID().MatchString(name)
	}
	if numbered {
		return true, true
	}
	for name := range f.roots {
		if len(name) > 15 || f.inner[name] || startFunctions[name] || strings.ContainsAny(name, "()<>\"") ||
			strings.Contains(name, "::") || strings.HasSuffix(name, "]") && len(name) > 4 && name[len(name)-4:len(name)-2] == "_[" {
			return false, false
		}
	}
	return true, false
}

func (f *folded) build(o ReadOptions) (*Profile, error) {
	threaded, numbered := f.threaded()
	var stack []Loc
	for _, s := range f.stacks {
		var t Thread
		frames := s.frames
		if threaded {
			t = foldedThread(frames[0], numbered)
			frames = frames[1:]
		}
		truncated := ""
		if len(frames) > 0 {
			if truncated = truncatedReason(frames[0]); truncated != "" {
				frames = frames[1:]
			}
		}
		stack = stack[:0]
		for _, name := range slices.Backward(frames) {
			stack = append(stack, f.frame(name))
		}
		if err := f.a.add(t, stack, truncated, s.count, 0); err != nil {
			return nil, err
		}
	}
	p := f.a.b.Finish(Meta{Target: o.Name}, nil)
	p.Types = []ValueType{{"samples", "count"}}
	p.Format, p.Type = foldedFormat, "samples"
	return p, nil
}

func foldedThread(name string, numbered bool) Thread {
	if m := commPID().FindStringSubmatch(name); m != nil && numbered {
		pid, _ := strconv.ParseInt(m[2], 10, 32) // "?" is 0
		tid, _ := strconv.ParseInt(m[3], 10, 32)
		if m[3] == "" {
			tid = pid
		}
		return Thread{PID: int32(pid), TID: int32(tid), Comm: Comm(m[1])}
	}
	return Thread{Comm: Comm(name)}
}

// foldedMarkers are those that a recording of waiting threads has. Other names
// in brackets are of modules, as collapsing scripts write them.
var foldedMarkers = map[string]bool{"[sleep]": true, "[disk]": true, "[lock]": true, "[stopped]": true, "[uninterruptible]": true, "[runnable]": true, notSampled: true}

// foldedSuffixes are those by which flamegraph.pl tells kinds.
var foldedSuffixes = []struct {
	suffix  string
	kind    Kind
	inlined bool
}{{"_[k]", Kernel, false}, {"_[j]", JIT, false}, {"_[i]", Native, true}}

func (f *folded) frame(name string) Loc {
	if loc, ok := f.a.ids[name]; ok {
		return loc
	}
	if foldedMarkers[name] || strings.HasPrefix(name, wakerPrefix) && strings.HasSuffix(name, "]") {
		loc := f.a.b.Marker(name)
		f.a.ids[name] = loc
		return loc
	}
	ln := Line{Function: name, Kind: Native}
	for _, s := range foldedSuffixes {
		if rest, ok := strings.CutSuffix(name, s.suffix); ok && rest != "" {
			ln.Function, ln.Kind, ln.Inlined = rest, s.kind, s.inlined
		}
	}
	ln.byAddress = addressName(ln.Function)
	loc := f.a.place(0, 0, []Line{ln})
	f.a.ids[name] = loc
	return loc
}
