package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/swbpf/swbpf/procstate"
)

// What is kept of files that are mapped while Heap is sampled: those that need not be looked at again, those that wait,
// which are open, and those whose allocators are attached to.
const (
	maxJudged = 1 << 12
	maxQueued = 1 << 8
	maxLate   = 1 << 8
)

// lateAllocators attaches the programs of Heap to allocators that come while it is sampled: of programs that
// are started then, and of libraries with such names. Its methods may be called by any goroutine.
type lateAllocators struct {
	source  *source
	working sync.WaitGroup

	mu     sync.Mutex
	judged map[mappedID]bool // has no allocator, is attached to, or waits
	queue  []*os.File        // to look at
	works  bool              // a goroutine looks at them
	ended  bool              // no more are looked at
	files  []os.FileInfo     // attached to
	missed uint64            // could not be attached to
}

// mappedID tells which file a mapping is of.
type mappedID struct{ dev, inode, gen uint64 }

// begin has files looked at from now on, and those that have come before. It is called when the places of the event are
// attached to.
func (a *lateAllocators) begin(s *source) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.source = s
	for _, p := range s.Event.places {
		if fi, err := os.Stat(p.file); err == nil && !a.has(fi) {
			a.files = append(a.files, fi)
		}
	}
	a.start()
}

// start has a goroutine look at the files that wait, if none does.
func (a *lateAllocators) start() {
	if a.source != nil && !a.works && len(a.queue) > 0 {
		a.works = true
		a.working.Go(a.work)
	}
}

// end returns when no file is looked at any more.
func (a *lateAllocators) end() {
	a.mu.Lock()
	a.ended = true
	for _, f := range a.queue {
		f.Close()
	}
	a.queue = nil
	a.mu.Unlock()
	a.working.Wait()
}

func (a *lateAllocators) has(fi os.FileInfo) bool {
	return slices.ContainsFunc(a.files, func(other os.FileInfo) bool { return os.SameFile(fi, other) })
}

// numMissed is how many files have an allocator that is not seen.
func (a *lateAllocators) numMissed() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.missed
}

// look has a file looked at, soon, that a process has mapped, if that was not done before. It is opened at once, as the
// process may end.
func (a *lateAllocators) look(ref *procstate.FileRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := mappedID{ref.Dev, ref.Inode, ref.Gen}
	if a.ended || a.judged[id] || len(a.queue) == maxQueued {
		return
	}
	f, err := procstate.OpenMapped(ref)
	if err != nil {
		return // it may come again
	}
	if a.judged == nil || len(a.judged) == maxJudged {
		a.judged = map[mappedID]bool{}
	}
	a.judged[id] = true
	a.queue = append(a.queue, f)
	a.start()
}

// work looks at the files that wait.
func (a *lateAllocators) work() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 {
		f := a.queue[0]
		a.queue = a.queue[1:]
		a.mu.Unlock()
		fi, err := a.attach(f)
		f.Close()
		a.mu.Lock()
		switch {
		case err == nil:
			a.files = append(a.files, fi)
		case !errors.Is(err, errNoAllocator):
			a.missed++
		}
	}
	a.works = false
}

var errTooManyAllocators = errors.New("too many files with allocators")

// attach has the programs of Heap run in the allocator of a file, if it has one.
func (a *lateAllocators) attach(f *os.File) (os.FileInfo, error) {
	fi, err := f.Stat()
	if err != nil || a.has(fi) {
		return nil, errNoAllocator // that is not known
	}
	path := fmt.Sprintf("/proc/self/fd/%d", f.Fd()) // no other need lead to it
	of := Event{Name: a.source.Event.Name}
	places, err := of.placesIn(path, func(im *procstate.Image, places []place) ([]place, error) {
		if !isAllocatorLibrary(filepath.Base(f.Name())) && !im.IsProgram() {
			return nil, errNoAllocator
		}
		return findAllocator(im, places)
	})
	switch {
	case err != nil:
		return nil, errNoAllocator
	case a.source.many == nil || len(a.files) == maxLate:
		return nil, errTooManyAllocators
	}
	return fi, a.source.attachMany(places)
}
