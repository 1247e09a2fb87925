package procstate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// LibraryFunc is told of a library that was loaded or unloaded. Steppers are told by an
// unwind.LibraryListener.
type LibraryFunc func(lib Library, loaded bool)

// LibraryNotifier is implemented by a ProcessState that can tell of library
// changes as they happen.
type LibraryNotifier interface {
	// OnLibraryChange has f called for each library that comes or goes, but
	// never during a walk: no walk begins before f has returned, so f must not
	// walk. It is called from a goroutine of the ProcessState's own, or from
	// that which is about to walk. Where [ProcDebug.LibraryTrap] returns nil,
	// the thread that loads a library waits for f before it runs the library's
	// code, but for code that chooses functions (STT_GNU_IFUNC) when a program starts;
	// elsewhere f is called when the next walk begins. Libraries that
	// were there before are not told of.
	OnLibraryChange(f LibraryFunc)
}

// liveLibraries is the LibraryState of a live process: its executable
// mappings as /proc/PID/maps has them. They are read again before each walk,
// unless the library trap tells of all changes.
//
// Changes are told by a goroutine of the process's own while others look
// addresses up: a list that was published does not change any more.
type liveLibraries struct {
	pid   int
	space atomic.Pointer[AddressSpace]
	stale atomic.Bool // a change is to be told that space may not have
	again atomic.Bool // they are read again when a walk meets code that none of them holds
	exe   *Image      // stands in for a program file that cannot be reached; or nil

	updating sync.Mutex
	text     []byte    // of the maps file that space was made of
	retry    time.Time // when files that could not be reached are looked for again; zero without any

	told *AddressSpace // that listeners know of; nil before there was any. Changes between walks

	mu        sync.Mutex
	listeners []LibraryFunc
	trap      *libraryTrap // nil when there is none
	trapErr   error        // why
	wanted    bool         // a program that exec brings gets one too
}

// published returns the mappings as they were read last.
func (l *liveLibraries) published() *AddressSpace {
	if s := l.space.Load(); s != nil {
		return s
	}
	return new(AddressSpace)
}

// SharedImages returns the cache of files that all live processes use.
func SharedImages() *Images { return sharedImages() }

var sharedImages = sync.OnceValue(func() *Images { return NewImages(0) })

// spaceFromMaps makes an AddressSpace of the text of a maps file, which was
// read through the thread tid of a process.
func spaceFromMaps(pid int, tid ThreadID, text []byte) *AddressSpace {
	images := SharedImages()
	s := new(AddressSpace)
	tries := 0
	var last anonMemory
	for len(text) > 0 {
		var line []byte
		line, text, _ = bytes.Cut(text, []byte{'\n'})
		e, err := ParseMapsLine(line)
		if err != nil {
			continue
		}
		below := last.below(&e, e.Path == "")
		if e.Prot&ProtExec == 0 {
			continue
		}
		ref := FileRef{PID: int32(pid), TID: int32(tid), Path: e.Path, Start: e.Start, End: e.End,
			Dev: unix.Mkdev(e.Major, e.Minor), Inode: e.Inode}
		s.Insert(images.mappingOfMaps(s, &ref, e.Offset, below, &tries))
	}
	return s
}

// refresh reads the mappings again when they may have changed.
func (l *liveLibraries) refresh() error {
	l.mu.Lock()
	trusted := l.trap != nil && !l.trap.missed()
	l.mu.Unlock()
	if trusted && l.known() && !l.stale.Load() {
		l.again.Store(true)
		return nil
	}
	l.again.Store(false)
	return l.Update()
}

// known reports whether the mappings have been read.
func (l *liveLibraries) known() bool {
	l.updating.Lock()
	defer l.updating.Unlock()
	return len(l.text) > 0
}

// refreshOnce reads the mappings if that was not done yet.
func (l *liveLibraries) refreshOnce() error {
	if l.known() {
		return nil
	}
	return l.Update()
}

// Update implements LibraryState.
func (l *liveLibraries) Update() error {
	l.updating.Lock()
	defer l.updating.Unlock()
	l.stale.Store(false)
	tid := readableTask(l.pid)
	text := readMapsText(l.pid, tid)
	if len(text) == 0 {
		return fmt.Errorf("mappings of process %d: %w", l.pid, ErrTerminated)
	}
	if now := time.Now(); !bytes.Equal(text, l.text) || !l.retry.IsZero() && now.After(l.retry) {
		space := spaceFromMaps(l.pid, tid, text)
		l.standIn(space)
		l.space.Store(space)
		l.text = bytes.Clone(text) // the buffer is far larger
		l.retry = time.Time{}
		if slices.ContainsFunc(space.Mappings(), func(m *Mapping) bool { return errors.Is(m.ImageErr, ErrFileGone) }) {
			l.retry = now.Add(retryAfter)
		}
	}
	return nil
}

// openStandIn opens the copy of a program file.
func openStandIn(path string) (*Image, error) {
	f, st, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	im, err := NewImage(f, st.Size(), path)
	if err != nil {
		f.Close()
		return nil, err
	}
	return im, nil // it keeps the file open
}

// standIn puts the copy of the program file in place of the file.
func (l *liveLibraries) standIn(space *AddressSpace) {
	if l.exe == nil {
		return
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", readableTask(l.pid)))
	if err != nil {
		return
	}
	for _, m := range slices.Clone(space.Mappings()) {
		if m.Path == path && m.Image == nil {
			s := *m
			s.Image, s.ImageErr = l.exe, nil
			space.Insert(&s)
		}
	}
}

// Mappings returns the executable mappings, in order of address.
func (l *liveLibraries) Mappings() []*Mapping { return l.published().Mappings() }

// Highest returns the mapping of the highest addresses, nil without any.
func (l *liveLibraries) Highest() *Mapping { return l.published().Highest() }

// MappingAt implements LibraryState. The trap tells of libraries when they are ready: code of
// theirs that chooses functions has run before.
func (l *liveLibraries) MappingAt(addr uint64) *Mapping {
	m := l.published().find(addr)
	if m == nil && l.again.CompareAndSwap(true, false) && l.Update() == nil {
		m = l.published().find(addr)
	}
	return m
}

// Libraries implements LibraryState.
func (l *liveLibraries) Libraries() []Library { return l.published().Libraries() }

// TrapAddress implements LibraryState.
func (l *liveLibraries) TrapAddress() uint64 {
	site, err := findTrap(l.pid, l.published())
	if err != nil {
		return 0
	}
	return site.addr
}

// OnLibraryChange implements LibraryNotifier.
func (p *ProcDebug) OnLibraryChange(f LibraryFunc) {
	if f == nil {
		return
	}
	p.libs.mu.Lock()
	p.libs.listeners = append(p.libs.listeners, f)
	p.libs.mu.Unlock()
}

// TrapLibraries has the target stop for a moment whenever it loads or unloads
// libraries, so that LibraryState is up to date and listeners have been told
// before code of a new library runs, but for what LibraryNotifier says. Without it, the list is read again, and
// they are told, before each walk. ErrNoLibraryTrap: the program has no loader.
func (p *ProcDebug) TrapLibraries() error {
	l := &p.libs
	l.mu.Lock()
	set := l.trap != nil
	l.mu.Unlock()
	if set {
		return nil
	}
	var err error
	p.gate.tell(func() { err = p.setTrap() })
	return err
}

// setTrap sets the trap in the program that the target runs now, between
// walks.
func (p *ProcDebug) setTrap() error {
	l := &p.libs
	err := l.Update()
	var site trapSite
	if err == nil {
		site, err = findTrap(p.pid, l.published())
	}
	var tr *libraryTrap
	if err == nil {
		if tids, e := p.Threads(); e != nil {
			err = e
		} else {
			tr, err = newLibraryTrap(p.pid, tids[0], site)
		}
	}
	if tr != nil {
		l.mu.Lock()
		l.trap = tr // so that it has its first stop, too
		l.mu.Unlock()
		if tr.ring != nil {
			go p.wakeTracer(tr)
		}
		if err = tr.arm(); err != nil {
			tr.close()
			tr = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("process %d: %w", p.pid, err)
	} else {
		err = l.Update() // what came before the trap was set
	}
	if l.told == nil {
		l.told = l.space.Load()
	}
	l.mu.Lock()
	l.trap, l.trapErr, l.wanted = tr, err, true
	l.mu.Unlock()
	select {
	case <-p.ended: // nobody else will close it
		p.closeTrap(l.dropTrap(false))
	default:
	}
	return err
}

// LibraryTrap returns nil when library changes are seen as they happen, else
// why not.
func (p *ProcDebug) LibraryTrap() error {
	p.libs.mu.Lock()
	defer p.libs.mu.Unlock()
	if p.libs.trap == nil && p.libs.trapErr == nil {
		return errTrapNotAsked
	}
	return p.libs.trapErr
}

// dropTrap disarms the trap and returns it, so that its last stops can still
// be told from others.
func (l *liveLibraries) dropTrap(wanted bool) *libraryTrap {
	l.mu.Lock()
	tr := l.trap
	l.wanted = l.wanted && wanted
	if tr != nil {
		l.trapErr = errTrapNotAsked
	}
	l.mu.Unlock()
	if tr != nil {
		tr.disarm()
	}
	return tr
}

// signalled looks at a signal that has stopped a thread: one that this tracer
// has caused is taken away. On the engine's goroutine.
func (e *engine) signalled(t *tracee) {
	if t.sig == unix.SIGCONT && t.proc.dropCont {
		t.sig, t.proc.dropCont = 0, false
		return
	}
	l := &t.proc.libs
	l.mu.Lock()
	ours := l.trap != nil && l.trap.claims(t.sig, t.code)
	l.mu.Unlock()
	if ours {
		t.sig = 0
		t.proc.tellLibraries(t, false)
	}
}

// interrupted looks at a thread that has stopped for its tracer: it may have
// waited for that at the library trap. On the engine's goroutine.
func (e *engine) interrupted(t *tracee) {
	l := &t.proc.libs
	l.mu.Lock()
	ours := l.trap != nil && l.trap.claimsStop(t.tid)
	l.mu.Unlock()
	if ours {
		t.proc.tellLibraries(t, false)
	}
}

// tellLibraries brings the libraries up to date and tells the listeners while
// the thread t, which has just changed them, stands. On the engine's
// goroutine; the telling is done by another, between walks. A walk that has begun, and only
// then stops the thread, does not go by the list that there was. With exec set, t
// has replaced the program, and the trap with it.
func (p *ProcDebug) tellLibraries(t *tracee, exec bool) {
	p.libs.stale.Store(true)
	ts := []*tracee{t}
	hold(ts)
	go func() {
		p.gate.tell(func() { p.changeLibraries(t.tid, exec) })
		p.e.do(func() { p.e.release(ts) })
	}()
}

func (p *ProcDebug) changeLibraries(tid ThreadID, exec bool) {
	l := &p.libs
	if exec {
		if l.told == nil {
			l.told = new(AddressSpace) // all that the program has is new
		}
		if tr := l.dropTrap(true); tr != nil {
			tr.close()
			l.mu.Lock()
			l.trap = nil
			l.mu.Unlock()
		}
		l.mu.Lock()
		wanted := l.wanted
		l.mu.Unlock()
		if wanted {
			p.setTrap()
		}
	}
	if l.Update() == nil && l.tell() {
		p.e.tell(Event{Process: p, Kind: LibrariesChanged, Thread: tid})
	}
}

// tell tells listeners of the libraries that have come and gone since they were
// told last, between walks, and reports whether any have.
func (l *liveLibraries) tell() (changed bool) {
	space := l.space.Load()
	last := l.told
	if l.told = space; last == nil || last == space {
		return false
	}
	l.mu.Lock()
	listeners := slices.Clone(l.listeners)
	l.mu.Unlock()
	before, after := last.Libraries(), space.Libraries()
	report := func(libs, others []Library, loaded bool) {
		for _, lib := range libs {
			if slices.Contains(others, lib) {
				continue
			}
			changed = true
			for _, f := range listeners {
				f(lib, loaded)
			}
		}
	}
	report(before, after, false)
	report(after, before, true)
	return changed
}
