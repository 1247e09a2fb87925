package procstate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// GoStatus is what a goroutine is at: the status of a runtime.g, without the bit
// that says that the garbage collector looks at its stack.
type GoStatus uint32

// The statuses, of Go 1.20 to 1.27. One that has ended is not shown.
const (
	GoIdle      GoStatus = 0
	GoRunnable  GoStatus = 1
	GoRunning   GoStatus = 2
	GoSyscall   GoStatus = 3
	GoWaiting   GoStatus = 4
	GoDead      GoStatus = 6
	GoCopystack GoStatus = 8 // its stack is being moved
	GoPreempted GoStatus = 9
	GoLeaked    GoStatus = 10 // it waits for what will never be; Go 1.26
	GoDeadExtra GoStatus = 11 // kept for a thread of C's that may call Go; Go 1.26

	goScan = 0x1000
)

// String is the runtime's own word for a status.
func (s GoStatus) String() string {
	switch s {
	case GoIdle:
		return "idle"
	case GoRunnable:
		return "runnable"
	case GoRunning:
		return "running"
	case GoSyscall:
		return "syscall"
	case GoWaiting:
		return "waiting"
	case GoDead:
		return "dead"
	case GoCopystack:
		return "copystack"
	case GoPreempted:
		return "preempted"
	case GoLeaked:
		return "leaked"
	case GoDeadExtra:
		return "deadextra"
	}
	return "unknown"
}

// Goroutine is what the runtime of a Go program notes of a goroutine.
type Goroutine struct {
	ID         uint64
	Parent     uint64 // ID of the goroutine that created it; 0 where the runtime does not tell
	Status     GoStatus
	WaitReason string   // what it waits for: "chan receive"; "" where it does not
	WaitSince  int64    // when a collection first found it waiting, in ns of CLOCK_MONOTONIC; 0 is not known
	Thread     ThreadID // that it is on; 0 is none
	Locked     bool     // no other goroutine runs on its thread
	System     bool     // the runtime's own

	CreatedPC uint64 // run-time address that the go statement returned to; 0 is none
	StartPC   uint64 // run-time address of its function

	Addr             uint64 // of its runtime.g
	StackLo, StackHi uint64 // bounds of its stack

	// Where it goes on when it is not on a thread, and where in its g that is
	// noted. LR is 0 but for machines with a link register, where it counts.
	PC, SP, BP, LR   uint64
	PCAt, SPAt, BPAt uint64

	Labels []GoLabel // that it has given itself, in order of their keys; from Go 1.24 on

	threadPointer uint64 // of the thread that it is locked to
}

// State is what a traceback by Go says in brackets: the reason for which a
// goroutine waits, or its status.
func (g *Goroutine) State() string {
	switch {
	case g.WaitReason == "":
		return g.Status.String()
	case g.Status == GoLeaked:
		return g.WaitReason + " (leaked)"
	}
	return g.WaitReason
}

// Registers stores the registers in regs with which a goroutine that is on no
// thread goes on, as far as they are known.
func (g *Goroutine) Registers(a *Arch, regs *Regs) {
	*regs = Regs{ThreadPointer: g.threadPointer}
	regs.Set(a.PC, g.PC)
	regs.Set(a.SP, g.SP)
	regs.Set(a.FP, g.BP)
	if a.LR != NoReg {
		regs.Set(a.LR, g.LR)
	}
}

// Goroutines are those of a process at one moment.
type Goroutines struct {
	List []Goroutine // in order of ID; without those that have ended

	// Unread is the number of those that could not be read, or were more than
	// are looked at, or contradict what is known of the runtime.
	Unread int
}

// maxGoroutines bounds how many are looked at, those that have ended included:
// the runtime keeps them to be used again.
const maxGoroutines = 1 << 20

// ReadGoroutines returns the goroutines of a process, which should stand still:
// for a ProcDebug, be paused. The error wraps ErrNoPclntab when no code of the
// process is in Go, ErrGoVersion when the layout of its runtime is not known,
// ErrNoGoroutines when their list is not found, ErrUnreadable, and ErrNoProcess for a
// nil p.
//
// Each g, the list and where all that lies is the target's word. What is read of
// it is bounded, and a record that cannot be true is left out.
func ReadGoroutines(p ProcessState) (*Goroutines, error) {
	if p == nil {
		return nil, ErrNoProcess
	}
	lib, rt, err := goProgramOf(p.Libraries(), p.ExecutablePath(), GoRuntimeOf)
	if err != nil {
		return nil, err
	}
	lists, err := goListsOf(lib.Image)
	if err != nil {
		return nil, err
	}
	r := goroutineReader{p: p, rt: rt, lib: lib, starts: make(map[uint64]goStart), reasons: make(map[byte]string)}
	if r.table, err = Pclntab(lib.Image); err != nil {
		return nil, err
	}
	addrs, more, err := readAllgs(p, lib.Bias+lists.allgs, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", lib.Path, err)
	}
	r.findReasons(lists)
	if err := r.findThreads(); err != nil {
		return nil, err
	}
	out := &Goroutines{List: make([]Goroutine, 0, len(addrs)), Unread: more}
	for _, addr := range addrs {
		g, ok := r.read(addr)
		switch {
		case !ok:
			out.Unread++
		case g.Status != GoIdle && g.Status != GoDead && g.Status != GoDeadExtra:
			out.List = append(out.List, g)
		}
	}
	slices.SortFunc(out.List, func(a, b Goroutine) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// readAllgs reads the addresses in runtime.allgs from the first-th on. more is
// how many there are beyond those that are looked at.
func readAllgs(m Memory, at uint64, first int) (addrs []uint64, more int, err error) {
	array, ok1 := m.ReadWord(at)
	n, ok2 := m.ReadWord(at + 8)
	const absurd = 1 << 40
	switch {
	case !ok1 || !ok2:
		return nil, 0, fmt.Errorf("list of goroutines at %#x: %w", at, ErrUnreadable)
	case n == 0 || n >= absurd || array == 0:
		return nil, 0, fmt.Errorf("%w: %d at %#x", ErrNoGoroutines, n, array)
	}
	if n > maxGoroutines {
		n, more = maxGoroutines, int(n-maxGoroutines)
	}
	if uint64(first) >= n {
		return nil, more, nil
	}
	b := make([]byte, 8*(n-uint64(first)))
	b = b[:ReadPart(m, array+8*uint64(first), b)&^7]
	if len(b) == 0 {
		return nil, 0, fmt.Errorf("list of goroutines: %w", ErrUnreadable)
	}
	more += int(n) - first - len(b)/8
	addrs = make([]uint64, 0, len(b)/8)
	for ; len(b) > 0; b = b[8:] {
		addrs = append(addrs, binary.LittleEndian.Uint64(b))
	}
	return addrs, more, nil
}

// goroutineReader reads the goroutines of one process.
type goroutineReader struct {
	p     ProcessState
	rt    *GoRuntime
	lib   Library
	table *GoTable

	threads map[uint64]goThread // by m
	starts  map[uint64]goStart  // by StartPC

	labels map[uint64][]GoLabel // by address: goroutines have those of their creators

	reasonsAt uint64 // of runtime.waitReasonStrings; 0 is not known
	reasons   map[byte]string
}

// goThread is a thread of a Go program: what its m tells.
type goThread struct {
	tid           ThreadID
	curg          uint64 // that it runs
	threadPointer uint64
}

// goStart is what is known of a function that goroutines begin with.
type goStart struct {
	ok   bool // it is the start of one
	name string
}

// findThreads learns which goroutine is on which thread.
func (r *goroutineReader) findThreads() error {
	tids, err := r.p.Threads()
	if err != nil {
		return err
	}
	r.threads = make(map[uint64]goThread, len(tids))
	for _, tid := range tids {
		var regs Regs
		if r.p.Registers(tid, &regs) != nil {
			continue
		}
		g := r.rt.g(r.p, r.lib.Bias, &regs)
		if g == 0 {
			continue
		}
		m, ok := r.p.ReadWord(g + uint64(r.rt.M))
		if !ok || m == 0 {
			continue
		}
		curg, _ := r.p.ReadWord(m + uint64(r.rt.CurG))
		r.threads[m] = goThread{tid, curg, regs.ThreadPointer}
	}
	return nil
}

// gHeadSize is what is read of each g, in bytes.
func (rt *GoRuntime) gHeadSize() uint64 {
	return uint64(max(rt.StackHi, rt.M, rt.SchedLR, rt.SchedBP, rt.WaitReason, rt.LockedM, rt.ParentID, rt.StartPC, rt.Labels)) + 8
}

// read reads the g at a run-time address; ok is false when it cannot be one.
func (r *goroutineReader) read(addr uint64) (g Goroutine, ok bool) {
	rt := r.rt
	var buf [512]byte
	b := buf[:rt.gHeadSize()]
	if n := ReadPart(r.p, addr, b); n < len(b) {
		return g, false
	}
	word := func(at uint32) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	at := func(field uint32) uint64 { return addr + uint64(field) }
	g = Goroutine{
		ID: word(rt.ID), WaitSince: int64(word(rt.WaitSince)), CreatedPC: word(rt.GoPC), StartPC: word(rt.StartPC),
		Status: GoStatus(binary.LittleEndian.Uint32(b[rt.Status:]) &^ goScan),
		Addr:   addr, StackLo: word(rt.StackLo), StackHi: word(rt.StackHi),
		PC: word(rt.SchedPC), SP: word(rt.SchedSP), BP: word(rt.SchedBP), LR: word(rt.SchedLR),
		PCAt: at(rt.SchedPC), SPAt: at(rt.SchedSP), BPAt: at(rt.SchedBP),
	}
	if g.Status == GoIdle || g.Status == GoDead || g.Status == GoDeadExtra {
		return g, true // the rest is of the one before
	}
	start := r.start(g.StartPC)
	if g.Status.String() == "unknown" || g.ID == 0 || g.StackHi < g.StackLo || !start.ok {
		return g, false
	}
	if rt.ParentID != 0 {
		g.Parent = word(rt.ParentID)
	}
	if g.Status == GoWaiting || g.Status == GoLeaked {
		g.WaitReason = r.reason(b[rt.WaitReason])
	} else if g.Status != GoSyscall {
		g.WaitSince = 0
	}
	if t, ok := r.threads[word(rt.M)]; ok && t.curg == addr {
		g.Thread = t.tid
	}
	if locked := word(rt.LockedM); locked != 0 {
		g.Locked, g.threadPointer = true, r.threads[locked].threadPointer
	}
	if rt.Labels != 0 && word(rt.Labels) != 0 {
		g.Labels = r.labelsAt(word(rt.Labels))
	}
	g.System = systemGoroutine(start.name, g.WaitReason)
	return g, true
}

// labelsAt reads the labels at an address.
func (r *goroutineReader) labelsAt(at uint64) []GoLabel {
	labels, ok := r.labels[at]
	if !ok {
		if labels = readGoLabels(r.p, at); r.labels == nil {
			r.labels = map[uint64][]GoLabel{}
		}
		r.labels[at] = labels
	}
	return labels
}

// systemGoroutine reports whether a goroutine is the runtime's own, by the
// function that it began with, as the runtime itself tells them: those that run
// finalizers and cleanups are the user's while they do.
func systemGoroutine(start, reason string) bool {
	switch start {
	case "runtime.main", "runtime.corostart", "runtime.handleAsyncEvent":
		return false
	case "runtime.runfinq", "runtime.runFinalizers":
		return reason == "finalizer wait"
	case "runtime.runCleanups":
		return reason == "cleanup wait"
	}
	return strings.HasPrefix(start, "runtime.")
}

// start looks up the function of a goroutine. A thread of C's that has called Go
// has one without.
func (r *goroutineReader) start(pc uint64) goStart {
	s, ok := r.starts[pc]
	if ok {
		return s
	}
	f, found := r.table.Func(pc - r.lib.Bias)
	switch {
	case found:
		s = goStart{ok: f.Entry == pc-r.lib.Bias, name: f.Name()}
	default: // of a plugin
		libs := r.p.Libraries()
		s.ok = pc == 0 || libs != nil && libs.MappingAt(pc) != nil
	}
	r.starts[pc] = s
	return s
}

// firstReason is the reason that comes after that of none, in all versions.
const firstReason = "GC assist marking"

// findReasons finds runtime.waitReasonStrings.
func (r *goroutineReader) findReasons(l *goLists) {
	for _, at := range l.reasons {
		at += r.lib.Bias
		if n, ok := r.p.ReadWord(at + 8); !ok || n != 0 {
			continue
		}
		if s, err := readGoString(r.p, at+goStringSize); err == nil && s == firstReason {
			r.reasonsAt = at
			return
		}
	}
}

// reason returns why a goroutine waits, "" when that is not known.
func (r *goroutineReader) reason(n byte) string {
	if n == 0 || r.reasonsAt == 0 {
		return ""
	}
	s, ok := r.reasons[n]
	if !ok {
		s, _ = readGoString(r.p, r.reasonsAt+uint64(n)*goStringSize)
		r.reasons[n] = s
	}
	return s
}

const (
	goStringSize  = 16 // of a string's pointer and length
	maxReasonText = 64
)

var errNoText = errors.New("not a word of the runtime's")

// readGoString reads a short string of printable ASCII at a run-time address.
func readGoString(m Memory, at uint64) (string, error) {
	text, ok1 := m.ReadWord(at)
	n, ok2 := m.ReadWord(at + 8)
	if !ok1 || !ok2 {
		return "", ErrUnreadable
	}
	if n > maxReasonText {
		return "", errNoText
	}
	b := make([]byte, n)
	if ReadPart(m, text, b) < len(b) {
		return "", ErrUnreadable
	}
	if slices.ContainsFunc(b, func(c byte) bool { return c < ' ' || c > '~' }) {
		return "", errNoText
	}
	return string(b), nil
}
