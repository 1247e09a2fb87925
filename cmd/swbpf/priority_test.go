package main

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// All threads have precedence, those too that are born later; the one that works for
// long gives it up, and at rest all do.
func TestPrecedence(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "real-time priorities need root")
	}
	p := takePrecedence()
	defer p.end()
	want := func(when string, n func(threads int) int) {
		t.Helper()
		all, realtime := threads(), 0
		for _, tid := range all {
			if a, err := unix.SchedGetAttr(tid, 0); err == nil && a.Policy == unix.SCHED_RR {
				realtime++
			}
		}
		if realtime != n(len(all)) {
			t.Errorf("%s %d of %d threads have precedence", when, realtime, len(all))
		}
	}
	all := func(n int) int { return n }
	none := func(int) int { return 0 }
	settle := func() { // the runtime may have been making a thread meanwhile
		time.Sleep(5 * time.Millisecond)
		p.resume()
	}
	settle()
	want("first", all)
	hold, held := make(chan struct{}), make(chan struct{})
	for range 3 {
		go func() {
			runtime.LockOSThread()
			held <- struct{}{}
			<-hold
		}()
		<-held
	}
	defer close(hold)
	want("with more threads", all)
	p.since = time.Now().Add(-time.Second)
	p.yield()
	p.again.Stop()
	want("after long work", func(n int) int { return n - 1 })
	if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy != unix.SCHED_NORMAL || a.Nice != recorderNice {
		t.Errorf("working for long: %+v, %v", a, err)
	}
	p.resume()
	want("resumed", all)
	p.since = time.Now().Add(-time.Second)
	p.yield()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if a, err := unix.SchedGetAttr(0, 0); err == nil && a.Policy == unix.SCHED_RR {
			break
		}
	}
	want("a moment after long work", all)
	for _, tid := range threads() { // one of these may have made the next
		if tid != p.reader {
			recede(tid)
		}
	}
	for before := countThreads(); countThreads() == before; {
		go func() {
			runtime.LockOSThread()
			held <- struct{}{}
			<-hold
		}()
		<-held
	}
	settle()
	want("made by one without", all)
	p.rest()
	want("at rest", none)
	p.resume()
	settle()
	want("resumed after rest", all)
	p.rest()
}

// TestPrecedenceRefused: who may not have it goes on without.
func TestPrecedenceRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "giving up a capability needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		if err := unix.Capget(&header, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		caps[0].Effective &^= 1 << unix.CAP_SYS_NICE
		if err := unix.Capset(&header, &caps[0]); err != nil {
			t.Error(err)
			return
		}
		before, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return
		}
		p := takePrecedence()
		p.since = time.Now().Add(-time.Second)
		p.yield()
		p.resume()
		after, err := unix.SchedGetAttr(0, 0)
		if err != nil || *after != *before || !errors.Is(p.refused, unix.EPERM) {
			t.Errorf("refused: %v; before %+v, after %+v, %v", p.refused, before, after, err)
		}
		p.end()
	}()
	<-done
}
