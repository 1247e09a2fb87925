package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// recorderNice is the nice value of a recorder: on a machine where everything
// is busy, it must still get round to emptying the ring. What it uses is
// little, and reported. So it is of a walk, which is wanted now.
const recorderNice = -10

// timerSlack is how late a timer of a recorder may be. Go's runtime has a thread
// that looks for work every 20 us for as long as there has lately been some:
// with the usual slack of 50 us that costs more than what there is to do.
const timerSlack = 5 * time.Millisecond

// raisePriority gives all threads of this program the recorder's nice value and
// timer slack; threads born later inherit both. Without the privilege nothing
// changes. A command to record must have been started before.
func raisePriority() {
	raiseNice()
	for _, tid := range threads() {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", tid), strconv.AppendInt(nil, int64(timerSlack), 10), 0)
	}
}

// raiseNice gives all threads of this program, and those born later, the recorder's nice value.
func raiseNice() {
	for _, tid := range threads() {
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, recorderNice)
	}
}

// threads lists those of this program.
func threads() (tids []int) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// countThreads returns a number that is another when this program has more threads.
func countThreads() int {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/task", &st); err != nil {
		return -1
	}
	return int(st.Nlink)
}

// precedence has the kernel run the threads of this program before all usual ones,
// whatever there are and in whichever session, as nice values do not: rings that
// are full in a moment must be emptied soon. All threads have it, as any may hold
// what the one that empties them waits for, and so have those that they make. The one
// that empties rings gives it up for a moment while it works for long. nil does nothing.
type precedence struct {
	reader  int       // its thread
	threads int       // countThreads when all were given it last; 0 while none has it
	since   time.Time // when the reader had it and began to work
	refused error     // why there is none

	mu     sync.Mutex  // held while the reader's is changed
	yields bool        // the reader has given it up
	again  *time.Timer // gives it back, by another thread: the reader may get no turn
}

const (
	// realtimePriority is the least there is.
	realtimePriority = 1

	// precedenceLasts is how long the reader may work with precedence at a time, and
	// precedenceRests for how long it is without then: for less than it takes to fill
	// a ring. Go's runtime may be as late again with a timer.
	precedenceLasts = 20 * time.Millisecond
	precedenceRests = 10 * time.Millisecond
)

// takePrecedence takes it, and keeps the goroutine on its thread, until end. Where it
// is refused, nothing changes.
func takePrecedence() *precedence {
	runtime.LockOSThread()
	p := &precedence{reader: unix.Gettid()}
	p.again = time.AfterFunc(time.Hour, p.retake)
	p.again.Stop()
	p.refused = precede(p.reader)
	p.resume()
	return p
}

func precede(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: realtimePriority}, 0)
}

func recede(tid int) {
	_ = unix.SchedSetAttr(tid, &unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: recorderNice}, 0)
}

// resume begins a time of work, or of waiting for it.
func (p *precedence) resume() {
	if p == nil || p.refused != nil {
		return
	}
	p.since = time.Now()
	// A thread that is made by one that lacks it, lacks it.
	for n := countThreads(); n != p.threads; n = countThreads() {
		p.threads = n
		for _, tid := range threads() {
			_ = precede(tid) // it may have ended
		}
	}
	p.retake()
}

// yield ends the reader's precedence for a moment if it has lasted too long.
func (p *precedence) yield() {
	if p == nil || p.refused != nil || time.Since(p.since) <= precedenceLasts {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Now().Add(precedenceRests)
	p.yields = true
	recede(p.reader)
	p.again.Reset(precedenceRests)
}

// retake gives the reader its precedence back.
func (p *precedence) retake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.yields {
		p.yields = false
		p.again.Stop()
		_ = precede(p.reader)
	}
}

// rest ends the precedence of all threads until it is resumed.
func (p *precedence) rest() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.yields = false
	p.again.Stop()
	if p.threads != 0 {
		p.threads = 0
		for _, tid := range threads() {
			recede(tid)
		}
	}
}

// end ends it for good.
func (p *precedence) end() {
	if p != nil {
		p.rest()
		runtime.UnlockOSThread()
	}
}
