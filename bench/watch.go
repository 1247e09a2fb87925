package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
)

// watch looks at a process and its BPF programs while it runs.
type watch struct {
	runs map[uint32]progRuns // by number of the program
	rss  float64             // MB, most at any time
	fds  int                 // most at any time
	stop chan struct{}
	done chan struct{}
}

type progRuns struct{ ns, n uint64 }

const watchEvery = 50 * time.Millisecond

func newWatch() *watch {
	return &watch{runs: map[uint32]progRuns{}, stop: make(chan struct{}), done: make(chan struct{})}
}

// follow looks until end is called.
func (w *watch) follow(pid int) {
	go func() {
		defer close(w.done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			w.look(pid)
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
		}
	}()
}

func (w *watch) end() {
	close(w.stop)
	<-w.done
}

func (w *watch) look(pid int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if kb, ok := field(status, "VmHWM:"); ok {
		w.rss = max(w.rss, float64(kb)/1024)
	}
	infos := fmt.Sprintf("/proc/%d/fdinfo", pid)
	fds, _ := os.ReadDir(infos)
	w.fds = max(w.fds, len(fds))
	for _, fd := range fds {
		info, _ := os.ReadFile(infos + "/" + fd.Name())
		if id, ok := field(info, "prog_id:"); ok {
			w.program(uint32(id))
		}
	}
}

// field finds a number in a file of /proc with a field per line.
func field(file []byte, name string) (uint64, bool) {
	_, rest, ok := strings.Cut(string(file), name)
	line, _, _ := strings.Cut(rest, "\n")
	line = strings.TrimSuffix(strings.TrimSpace(line), " kB")
	v, err := strconv.ParseUint(line, 10, 64)
	return v, ok && err == nil
}

func (w *watch) program(id uint32) {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return
	}
	defer p.Close()
	if p.Type() != ebpf.PerfEvent {
		return
	}
	if st, err := p.Stats(); err == nil {
		w.runs[id] = progRuns{uint64(st.Runtime), st.RunCount}
	}
}

// bpf is the time that the new programs took, and how often they ran, as last
// seen.
func (w *watch) bpf() (sum progRuns) {
	for _, r := range w.runs {
		sum.ns += r.ns
		sum.n += r.n
	}
	return sum
}
