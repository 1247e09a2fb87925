package unwind

import (
	"weak"

	"github.com/swbpf/swbpf/procstate"
)

// LibraryChange tells what happened to a library.
type LibraryChange uint8

// The changes.
const (
	LibraryLoaded LibraryChange = iota
	LibraryUnloaded
)

// String returns the change in a word: "loaded".
func (c LibraryChange) String() string {
	switch c {
	case LibraryLoaded:
		return "loaded"
	case LibraryUnloaded:
		return "unloaded"
	}
	return "unknown"
}

// LibraryListener is implemented by steppers and groups that want to know of
// libraries that come and go while somebody holds a Walker that uses them. They are
// told between walks, perhaps by another goroutine than the Walker's: what a stepper keeps
// for its walks, and its ranges in the group, it may change then, but it must not walk. Who
// walks nothing is told by [procstate.LibraryNotifier] itself.
type LibraryListener interface {
	// LibraryChanged is told of each library that w's process loads or unloads.
	LibraryChanged(w *Walker, lib procstate.Library, change LibraryChange)
}

// listen has n tell of libraries for as long as somebody holds the Walker: a process that
// is walked for long has many.
func (w *Walker) listen(n procstate.LibraryNotifier) {
	held := weak.Make(w)
	n.OnLibraryChange(func(lib procstate.Library, loaded bool) {
		if w := held.Value(); w != nil {
			w.libraryChanged(lib, loaded)
		}
	})
}

// libraryChanged tells the group of a library that came or went; a group that
// does not listen has its steppers told directly.
func (w *Walker) libraryChanged(lib procstate.Library, loaded bool) {
	change := LibraryUnloaded
	if loaded {
		change = LibraryLoaded
	}
	if l, ok := w.group.(LibraryListener); ok {
		l.LibraryChanged(w, lib, change)
		return
	}
	for _, s := range w.group.Steppers() {
		if l, ok := s.(LibraryListener); ok {
			l.LibraryChanged(w, lib, change)
		}
	}
}
