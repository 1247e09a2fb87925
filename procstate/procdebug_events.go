package procstate

import (
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// EventKind tells what happened to a target.
type EventKind uint8

// The kinds of Event.
const (
	ThreadBorn       EventKind = iota + 1 // Thread is new
	ThreadDied                            // Thread has ended, others go on
	Forked                                // Thread made the process Child, which is not traced
	Execed                                // the target runs another program, in Thread alone
	LibrariesChanged                      // libraries were loaded or unloaded
	Terminated                            // the target has ended, with Status
	EventsLost                            // Lost events before this were dropped
)

// String returns the kind in words: "thread born".
func (k EventKind) String() string {
	switch k {
	case ThreadBorn:
		return "thread born"
	case ThreadDied:
		return "thread died"
	case Forked:
		return "forked"
	case Execed:
		return "execed"
	case LibrariesChanged:
		return "libraries changed"
	case Terminated:
		return "terminated"
	case EventsLost:
		return "events lost"
	}
	return "unknown"
}

// Event is something that happened to a target. A target does not wait for
// its events to be read.
type Event struct {
	Process *ProcDebug // nil for EventsLost
	Kind    EventKind
	Thread  ThreadID        // 0 where it is not known which has changed libraries
	Child   int             // PID, for Forked
	Status  unix.WaitStatus // for Terminated
	Lost    uint64          // for EventsLost
}

// ErrNoTarget is returned when there is nothing to wait for.
var ErrNoTarget = errors.New("no process is being traced")

// maxEvents bounds what is kept for a caller that does not come.
const maxEvents = 4096

// eventQueue holds events from the engines until somebody reads them, and
// keeps an eventfd readable while there are any.
type eventQueue struct {
	mu     sync.Mutex
	more   sync.Cond
	events []Event
	lost   uint64
	live   int // targets that may still cause events
	fd     int // eventfd; -1 until it is asked for
}

var theEvents = newEventQueue()

func newEventQueue() *eventQueue {
	q := &eventQueue{fd: -1}
	q.more.L = &q.mu
	return q
}

// tell queues an event.
func (e *engine) tell(ev Event) {
	if ev.Process.silent {
		return
	}
	q := theEvents
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= maxEvents {
		q.lost += uint64(len(q.events))
		q.events = q.events[:0]
	}
	q.events = append(q.events, ev)
	if len(q.events) == 1 {
		q.raise()
		q.more.Broadcast()
	}
}

// targetsChanged counts targets, so that nobody waits for none.
func (q *eventQueue) targetsChanged(by int) {
	q.mu.Lock()
	q.live += by
	q.more.Broadcast()
	q.mu.Unlock()
}

// raise makes the eventfd readable.
func (q *eventQueue) raise() {
	if q.fd >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		unix.Write(q.fd, one[:])
	}
}

// NotificationFD returns a descriptor that is readable (poll, select, epoll)
// while events wait for HandleDebugEvents. There is one for all targets of
// this process; it is never closed, and must be neither read nor closed.
func NotificationFD() (int, error) {
	q := theEvents
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fd < 0 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return -1, err
		}
		q.fd = fd
		if len(q.events) > 0 {
			q.raise()
		}
	}
	return q.fd, nil
}

// HandleDebugEvents returns the events of all targets since the last call, in
// order, and makes the notification descriptor unreadable. With block set it
// waits for at least one; ErrNoTarget says that none can come.
//
// Targets never wait for this call: their signals, threads and libraries are
// handled as they come. Only the latest few thousand events are kept.
func HandleDebugEvents(block bool) ([]Event, error) {
	q := theEvents
	q.mu.Lock()
	defer q.mu.Unlock()
	for block && len(q.events) == 0 {
		if q.live == 0 {
			return nil, ErrNoTarget
		}
		q.more.Wait()
	}
	out := q.events
	if q.lost > 0 {
		out = append([]Event{{Kind: EventsLost, Lost: q.lost}}, out...)
	}
	q.events, q.lost = nil, 0
	if q.fd >= 0 {
		var b [8]byte
		unix.Read(q.fd, b[:])
	}
	return out, nil
}
