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

// What is kept of files that are mapped while Heap is sampled: those that need not be looked at again, and those whose
// allocators are attached to.
const (
	maxJudged = 1 << 12
	maxLate   = 1 << 8
)

// lateAllocators attaches the programs of Heap to allocators that come while it is sampled: of programs that
// are started then, and of libraries with such names. Its methods may be called by any goroutine.
type lateAllocators struct {
	source  *source
	working sync.WaitGroup

	mu     sync.Mutex
	judged map[mappedID]bool   // has no allocator, is attached to, or waits
	queue  []procstate.FileRef // files to look at
	works  bool                // a goroutine looks at them
	ended  bool                // no more are looked at
	files  []os.FileInfo       // attached to
	missed map[mappedID]bool   // could not be attached to
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
	a.ended, a.queue = true, nil
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
	return uint64(len(a.missed))
}

// mapped has a file looked at, soon, that a process has mapped, if that was not done before.
func (a *lateAllocators) mapped(ref *procstate.FileRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := idOf(ref)
	if a.ended || a.judged[id] || len(a.queue) == maxJudged {
		return
	}
	if a.judged == nil || len(a.judged) == maxJudged {
		a.judged = map[mappedID]bool{}
	}
	a.judged[id] = true
	a.queue = append(a.queue, *ref)
	a.start()
}

func idOf(ref *procstate.FileRef) mappedID { return mappedID{ref.Dev, ref.Inode, ref.Gen} }

// work looks at the files that wait.
func (a *lateAllocators) work() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 {
		ref := a.queue[0]
		a.queue = a.queue[1:]
		a.mu.Unlock()
		fi, err := a.attach(&ref)
		a.mu.Lock()
		switch {
		case err == nil:
			a.files = append(a.files, fi)
		case errors.Is(err, os.ErrNotExist):
			delete(a.judged, idOf(&ref)) // the process has ended: where another one maps the file, it is looked at again
		case !errors.Is(err, errNoAllocator) && len(a.missed) < maxLate:
			if a.missed == nil {
				a.missed = map[mappedID]bool{}
			}
			a.missed[idOf(&ref)] = true
		}
	}
	a.works = false
}

var errTooManyAllocators = errors.New("too many files with allocators")

// attach has the programs of Heap run in the allocator of a file, if it has one.
func (a *lateAllocators) attach(ref *procstate.FileRef) (os.FileInfo, error) {
	proc := fmt.Sprintf("/proc/%d", ref.PID)
	path := mappedFile(proc, rootOf(proc), ref.Start, ref.End, ref.Path)
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || a.has(fi) {
		return nil, errNoAllocator // that is not known
	}
	of := Event{Name: a.source.Event.Name}
	places, err := of.placesIn(path, func(im *procstate.Image, places []place) ([]place, error) {
		if !isAllocatorLibrary(filepath.Base(ref.Path)) && !im.IsProgram() {
			return nil, errNoAllocator
		}
		return findAllocator(im, places)
	})
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, err
	case err != nil:
		return nil, errNoAllocator
	case a.source.many == nil || len(a.files) == maxLate:
		return nil, errTooManyAllocators
	}
	return fi, a.source.attachMany(places)
}
