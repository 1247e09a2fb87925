package swbpf_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
)

// TestSoak attaches to and detaches from a program again and again that starts
// and ends threads, loads and unloads libraries, forks and takes signals all
// the while, and checks that it has lost nothing. SWBPF_TEST_ROUNDS makes it
// longer.
func TestSoak(t *testing.T) {
	canTrace(t)
	rounds := 60
	if n, err := strconv.Atoi(os.Getenv("SWBPF_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	plugin := build(t, "plugin.c", "gcc -shared -fPIC")
	tg := start(t, build(t, "soak.c", "gcc -O1 -pthread -rdynamic"), plugin)
	stop := make(chan struct{})
	sent := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if unix.Kill(tg.pid, 34) == nil {
					sent++
				}
			}
		}
	})
	threads, unborn, incomplete, walks := 0, 0, 0, 0
	reasons := make(map[string]int)
	for i := range rounds {
		switch i % 3 {
		case 0: // one stop
			ps, err := swbpf.WalkProcess(tg.pid, swbpf.WalkOptions{})
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			for j := range ps.Stacks {
				s := &ps.Stacks[j]
				threads++
				if s.Err != nil && s.State != procstate.StateZombie {
					if fn := names(s); len(fn) == 1 && strings.HasPrefix(fn[0], "clone") {
						unborn++ // a new thread before its first instruction
						continue
					}
					incomplete++
					reasons[fmt.Sprint(s.Err, names(s))]++
				}
			}
		case 1: // attached, each thread walked by itself
			p, err := procstate.Attach(tg.pid)
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			w := swbpf.With(p, nil, nil)
			tids, err := w.Threads()
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			for _, tid := range tids {
				if _, err := w.WalkStack(nil, tid); !errors.Is(err, procstate.ErrNoThread) {
					walks++
				}
			}
			p.Detach()
		default: // attached with the library trap, paused and resumed
			w, err := swbpf.ForPID(tg.pid)
			if err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
			p, _ := swbpf.Debug(w)
			if err := p.Pause(procstate.DefaultThread); err != nil {
				t.Errorf("round %d: %v", i, err)
			}
			if _, err := w.WalkStack(nil, procstate.DefaultThread); err != nil {
				t.Errorf("round %d: %v", i, err)
			}
			if i%2 == 0 {
				if err := p.Resume(procstate.DefaultThread); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
				time.Sleep(3 * time.Millisecond)
			}
			p.Detach()
		}
	}
	close(stop)
	wg.Wait()
	goesOn(t, tg.pid)
	var nThreads, loads, forks, failures, signals int
	if _, err := fmt.Sscan(tg.ask(t, ""), &nThreads, &loads, &forks, &failures, &signals); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rounds: the program has started %d threads, loaded %d times, forked %d times, %d failures, %d of %d signals; %d stacks, %d of threads not yet begun, %d incomplete %v; %d walks",
		rounds, nThreads, loads, forks, failures, signals, sent, threads, unborn, incomplete, reasons, walks)
	if failures > 0 || signals != sent || nThreads == 0 || loads == 0 || forks == 0 {
		t.Errorf("the program has lost something")
	}
	if incomplete*20 > threads {
		t.Errorf("%d of %d stacks are incomplete: %v", incomplete, threads, reasons)
	}
}
