package swbpf_test

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
)

// heapAlloc is what is in use, in bytes.
func heapAlloc() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// descriptors is how many this process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}

// TestWalkersOfOneProcess: a process that is attached for long keeps none of the Walkers
// that nobody holds any more.
func TestWalkersOfOneProcess(t *testing.T) {
	tg, p := attachLife(t)
	walk := func(times int) {
		for range times {
			if _, err := swbpf.ForProcess(p).WalkStack(nil, procstate.DefaultThread); err != nil {
				t.Fatal(err)
			}
		}
	}
	walk(20)
	before := heapAlloc()
	walk(100)
	if grown := heapAlloc() - before; grown > 5<<20 {
		t.Errorf("100 Walkers that are gone hold %d KB", grown>>10)
	}
	runtime.KeepAlive(tg)
}

// TestManyPrograms: of programs that were traced little is kept until their events are
// read, and of those that have ended nothing but memory, though nobody has detached them.
func TestManyPrograms(t *testing.T) {
	canTrace(t)
	run := func(times int) {
		for range times {
			w, err := swbpf.Launch("true", nil)
			if err != nil {
				t.Fatal(err)
			}
			p, _ := swbpf.Debug(w)
			if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
				t.Fatal(err)
			}
			if err := p.Resume(procstate.DefaultThread); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
		}
	}
	run(3)
	drainEvents(t)
	before, open := heapAlloc(), descriptors(t)
	const times = 30
	run(times)
	eventually(t, "no descriptors are held", func() bool { return descriptors(t) <= open+2 })
	if grown := heapAlloc() - before; grown > times*40<<10 {
		t.Errorf("each of %d programs that have ended holds %d KB", times, grown/times>>10)
	}
	drainEvents(t)
}

// TestDetachTwiceAtOnce: anybody may detach, also while another does.
func TestDetachTwiceAtOnce(t *testing.T) {
	canTrace(t)
	tg := start(t, build(t, "life.c", lifeBuild))
	for range 5 {
		w, err := swbpf.ForPID(tg.pid)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { swbpf.Detach(w) })
		}
		wg.Wait()
		goesOn(t, tg.pid)
	}
}
