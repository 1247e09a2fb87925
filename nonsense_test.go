package swbpf_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/variables"
)

// A ProcessState may be anybody's: whatever its methods return, nothing panics or lasts for ever, neither walks nor what is
// read besides, of goroutines, tasks, locks and variables.
func TestNonsense(t *testing.T) {
	canTrace(t)
	walks := filepath.Join("testdata", "walk")
	for _, command := range [][]string{
		{build(t, "vars.c", "gcc -g -O0")}, {build(t, "vars.cc", "g++ -g -O0")}, {build(t, "vars.go", "go build -gcflags=-N")}, {build(t, "goroutines", "go build"), "3"},
		{"python3", filepath.Join(walks, "tasks.py")}, {"python3", filepath.Join(walks, "waits.py")}, {"node", filepath.Join(walks, "waits.js")},
		{"perl", "-e", "$| = 1; sub deep { $_[0] ? deep($_[0] - 1) : sleep 100 } print qq(ready\n); deep(9)"}, {"ruby", filepath.Join(walks, "waits.rb")}, {"php", "-r", "function deep($n) { $n ? deep($n - 1) : sleep(100); } echo 1, PHP_EOL; deep(9);"},
		{"lua5.4", filepath.Join(walks, "waits.lua")}, {"luajit", "-e", "io.stdout:setvbuf('no') print(1) local function deep(n) if n > 0 then deep(n - 1) end io.read() return n end deep(9)"}, {"Rscript", filepath.Join(walks, "waits.R")},
		{"java", filepath.Join(walks, "Waits.java")}, {"bash", "-c", "deep() { if (($1)); then deep $(($1 - 1)); else echo 1; read -u 3; fi; }; exec 3<> <(:); deep 9"},
	} {
		t.Run(filepath.Base(command[0])+" "+filepath.Base(command[min(1, len(command)-1)]), func(t *testing.T) {
			testenv.Needs(t, command[0])
			cmd := exec.Command(command[0], command[1:]...)
			_, out := testenv.Start(t, cmd)
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it is under way
				t.Fatal(err)
			}
			w, err := swbpf.ForPID(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer swbpf.Detach(w)
			var images []*procstate.Image
			for _, l := range w.ProcessState().Libraries().Libraries() {
				images = append(images, l.Image)
			}
			for seed := range uint64(10) {
				p := &steptest.Nonsense{ProcessState: w.ProcessState(), Rand: rand.New(rand.NewPCG(seed, 8)), Rate: []int{0, 2, 20, 200, 3000}[seed%5], Images: images}
				askNonsense(t, seed, p)
				if t.Failed() {
					break
				}
			}
		})
	}
}

// askNonsense asks for all that can be known of a process.
func askNonsense(t *testing.T, seed uint64, p *steptest.Nonsense) {
	done := time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("seed %d does not end", seed))
	})
	defer done.Stop()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("seed %d: %v\n%s", seed, r, debug.Stack())
		}
	}()
	w := swbpf.With(p, nil, nil)
	tids, _ := w.Threads()
	for _, tid := range tids[:min(len(tids), 4)] {
		frames, _ := w.WalkStack(nil, tid)
		if len(frames) > 60 {
			frames = frames[:60]
		}
		r := swbpf.Variables(w)
		for i := range frames {
			swbpf.Lines(w, nil, &frames[i])
			fns, err := r.Functions(&frames[i])
			if err != nil {
				continue
			}
			for _, fn := range fns {
				for _, v := range fn.Variables {
					if value, err := r.Value(frames, i, v); err == nil {
						_ = value.Format(variables.Format{Depth: 2})
					}
				}
			}
		}
	}
	swbpf.PythonLocks(p)
	swbpf.PythonTasks(p)
	if gs, err := procstate.ReadGoroutines(p); err == nil {
		for i := range gs.List {
			_, _ = swbpf.WalkGoroutine(w, nil, &gs.List[i])
		}
	}
	if heap := hotspot.NewHeap(p.PID(), p, p.Libraries()); heap != nil {
		java := heap.At(p)
		for _, tid := range tids {
			_ = java.Thread(tid)
		}
	}
}
