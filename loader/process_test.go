package loader

import (
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Numbers that no process has, so that /proc tells nothing of them.
const (
	pidA = 1<<30 + iota
	pidB
	pidC
)

func anon(t uint64, pid int32, addr, n uint64) SidebandEvent {
	return SidebandEvent{Kind: SidebandMmap, Time: t, PID: pid, TID: pid, Addr: addr, Len: n, Prot: 5, Path: "//anon"}
}

func fork(t uint64, parent, child int32) SidebandEvent {
	return SidebandEvent{Kind: SidebandFork, Time: t, PID: child, TID: child, PPID: parent}
}

func ended(t uint64, pid, tid int32) SidebandEvent {
	return SidebandEvent{Kind: SidebandExit, Time: t, PID: pid, TID: tid}
}

func execed(t uint64, pid int32, comm string) SidebandEvent {
	return SidebandEvent{Kind: SidebandExec, Time: t, PID: pid, TID: pid, Comm: comm}
}

// describe tells what the table knows of a process.
func describe(p *Process) string {
	if p == nil {
		return "none"
	}
	s := p.Comm
	for _, m := range p.Space.Mappings() {
		s += " " + string('a'+rune(m.Start>>12))
		if n := (m.End - m.Start) >> 12; n > 1 {
			s += string('0' + rune(n))
		}
	}
	if p.Exited {
		s += " exited"
	}
	if p.Data != nil {
		s += " data"
	}
	return strings.TrimSpace(s)
}

func newTable(pids ...int32) *Processes {
	return NewProcesses(ProcessesConfig{Images: procstate.NewImages(4), PIDs: pids})
}

func TestApply(t *testing.T) {
	table := []struct {
		name   string
		pids   []int32
		events []SidebandEvent
		want   map[int32]string
	}{
		{"fork copies", nil, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), fork(2, pidA, pidB), anon(3, pidA, 0x2000, 0x1000), anon(4, pidB, 0x3000, 0x1000),
		}, map[int32]string{pidA: "b c", pidB: "b d"}},
		{"exec clears", nil, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), fork(2, pidA, pidB), execed(3, pidB, "x"), anon(4, pidB, 0x3000, 0x2000),
		}, map[int32]string{pidA: "b", pidB: "x d2"}},
		{"a chain of execs", nil, []SidebandEvent{
			execed(1, pidA, "x"), anon(2, pidA, 0x1000, 0x1000), execed(3, pidA, "y"), anon(4, pidA, 0x2000, 0x1000),
			execed(5, pidA, "z"), anon(6, pidA, 0x3000, 0x1000),
		}, map[int32]string{pidA: "z d"}},
		{"threads are no processes", nil, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000),
			{Kind: SidebandFork, Time: 2, PID: pidA, TID: pidB, PPID: pidA},
			ended(3, pidA, pidB),
			{Kind: SidebandComm, Time: 4, PID: pidA, TID: pidC, Comm: "thread"},
			{Kind: SidebandComm, Time: 5, PID: pidA, TID: pidA, Comm: "main"},
		}, map[int32]string{pidA: "main b", pidB: "none"}},
		{"an exit keeps the mappings", nil, []SidebandEvent{anon(1, pidA, 0x1000, 0x1000), ended(2, pidA, pidA)},
			map[int32]string{pidA: "b exited"}},
		{"a thread's exec goes on after the initial thread", nil, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), ended(2, pidA, pidA), execed(3, pidA, "x"), anon(4, pidA, 0x2000, 0x1000),
		}, map[int32]string{pidA: "x c"}},
		{"a number is used again", nil, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), anon(1, pidB, 0x5000, 0x1000), ended(2, pidB, pidB), fork(3, pidA, pidB),
		}, map[int32]string{pidB: "b"}},
		{"a parent that is not known", nil, []SidebandEvent{fork(1, pidC, pidA), anon(2, pidA, 0x1000, 0x1000)},
			map[int32]string{pidA: "b", pidC: ""}},
		{"mapped over", nil, []SidebandEvent{anon(1, pidA, 0x1000, 0x4000), anon(2, pidA, 0x2000, 0x1000)},
			map[int32]string{pidA: "b c d2"}},
		{"only some", []int32{pidA}, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), anon(1, pidB, 0x1000, 0x1000), fork(2, pidA, pidC), execed(3, pidB, "x"),
		}, map[int32]string{pidA: "b", pidB: "none", pidC: "b"}},
		{"only some, a number is used again", []int32{pidA}, []SidebandEvent{
			anon(1, pidA, 0x1000, 0x1000), fork(2, pidA, pidC), ended(3, pidC, pidC), fork(4, pidB, pidC),
		}, map[int32]string{pidC: "none"}},
	}
	for _, test := range table {
		p := newTable(test.pids...)
		for i := range test.events {
			p.take(&test.events[i])
		}
		p.Advance(math.MaxUint64)
		for pid, want := range test.want {
			if got := describe(p.procs[pid]); got != want {
				t.Errorf("%s: process %d: %q, want %q", test.name, pid-pidA, got, want)
			}
		}
	}
}

// Events of several CPUs are applied in order of time, and no further than
// asked for.
func TestAdvance(t *testing.T) {
	p := newTable()
	for _, e := range []SidebandEvent{
		anon(40, pidB, 0x3000, 0x1000), execed(60, pidB, "x"), // one CPU
		anon(10, pidA, 0x1000, 0x1000), fork(20, pidA, pidB), anon(30, pidA, 0x2000, 0x1000), // another
	} {
		p.take(&e)
	}
	for _, step := range []struct {
		time uint64
		want string
	}{{9, "none"}, {19, "none"}, {20, "b"}, {39, "b"}, {40, "b d"}, {59, "b d"}, {60, "x"}, {1000, "x"}} {
		p.Advance(step.time)
		if got := describe(p.procs[pidB]); got != step.want {
			t.Errorf("at %d: %q, want %q", step.time, got, step.want)
		}
	}
	if len(p.pending) != 0 {
		t.Errorf("%d events were kept", len(p.pending))
	}
	// What comes late is applied all the same.
	late := anon(50, pidA, 0x5000, 0x1000)
	p.take(&late)
	p.Advance(1001)
	if got := describe(p.procs[pidA]); got != "b c f" {
		t.Errorf("after a late event: %q", got)
	}
}

// Events of threads are not queued, and a queue that was long gives its memory back.
func TestQueue(t *testing.T) {
	p := newTable()
	for i := range int32(100) {
		tid := pidA + 1 + i
		for _, e := range []SidebandEvent{
			{Kind: SidebandFork, Time: 1, PID: pidA, TID: tid, PPID: pidA}, {Kind: SidebandComm, Time: 1, PID: pidA, TID: tid}, ended(1, pidA, tid),
		} {
			p.take(&e)
		}
	}
	if len(p.pending) != 0 || p.taken != 0 {
		t.Errorf("%d events of threads are queued, %d counted", len(p.pending), p.taken)
	}
	for i := range uint64(3 * keepEvents) {
		e := anon(10+i^1, pidA, 0x1000*(1+i%16), 0x1000) // every other one comes late
		p.take(&e)
	}
	p.Advance(10 + keepEvents)
	if n := p.next; n != keepEvents+1 {
		t.Errorf("%d events were due, want %d", n, keepEvents+1)
	}
	p.Advance(1 << 20)
	p.Advance(1 << 20)
	if len(p.pending) != 0 || cap(p.pending) != keepEvents || p.next != 0 {
		t.Errorf("%d events are kept, with room for %d", len(p.pending), cap(p.pending))
	}
}

// A loss of records is made good later where /proc cannot be read, and that is not tried at
// each event.
func TestRecoverLater(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	p := newTable()
	lost := SidebandEvent{Kind: SidebandLost, Time: 1}
	p.take(&lost)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	p.Advance(1)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	p.Advance(2)
	if len(p.procs) > 0 {
		t.Errorf("it was tried again at once: %d processes", len(p.procs))
	}
	p.resync = 0 // long ago
	p.Advance(3)
	if p.procs[int32(os.Getpid())] == nil || p.lossy {
		t.Errorf("%d processes, lossy: %v", len(p.procs), p.lossy)
	}
}

// A process that maps code without end has no more than so many events queued. What is
// left out is counted, other processes are followed as ever, and its mappings are read
// anew once.
func TestQueueOfOneProcess(t *testing.T) {
	self := int32(os.Getpid())
	p := newTable()
	for i := range uint64(3 * maxOfProcess) {
		e := anon(1+i, self, 0x1000*(1+i%16), 0x1000)
		if i%5 == 4 {
			e = SidebandEvent{Kind: SidebandComm, Time: 1 + i, PID: self, TID: self, Comm: "x"}
		}
		p.take(&e)
	}
	for _, e := range []SidebandEvent{anon(1<<20, pidA, 0x1000, 0x1000), fork(1<<20+1, self, pidB), execed(1<<20+2, pidB, "x")} {
		p.take(&e)
	}
	if len(p.pending) != maxOfProcess+3 || p.LeftOut() != 2*maxOfProcess {
		t.Errorf("%d events are queued, %d left out", len(p.pending), p.LeftOut())
	}
	p.Advance(10)
	if len(p.stale) != 0 || p.Process(self).Space.MappingAt(0x1000) == nil {
		t.Error("the process was read anew ahead of time")
	}
	p.Advance(1 << 21)
	if len(p.stale) != 0 || len(p.waits) != 0 {
		t.Errorf("%d processes are still to be read, %d have events", len(p.stale), len(p.waits))
	}
	here := uint64(reflect.ValueOf(TestQueueOfOneProcess).Pointer())
	if space := p.Process(self).Space; space.MappingAt(here) == nil || space.MappingAt(0x1000) != nil {
		t.Error("the process has the mappings that were told of, and not its own")
	}
	if a, b := describe(p.procs[pidA]), describe(p.procs[pidB]); a != "b" || b != "x" {
		t.Errorf("others: %q, %q", a, b)
	}
	// There is room again.
	e := anon(1<<22, self, 0x1000, 0x1000)
	if p.take(&e); p.LeftOut() != 2*maxOfProcess {
		t.Error("an event was left out while none waited")
	}
}

// However many processes there are, so many events are queued and no more, and that some
// are missing is dealt with as a loss.
func TestQueueOfAll(t *testing.T) {
	t.Parallel()
	p := newTable(pidA)
	for i := range int32(maxWaiting + 100) {
		e := fork(uint64(1+i), pidB, pidC+i)
		p.take(&e)
	}
	if len(p.pending) != maxWaiting || p.LeftOut() != 100 || p.pending[maxWaiting-1].Kind != SidebandLost {
		t.Errorf("%d events are queued, %d left out", len(p.pending), p.LeftOut())
	}
	p.Advance(math.MaxUint64)
	if p.resync == 0 || p.lossy {
		t.Error("the table was not read anew")
	}
}

// Where there is no time to read all processes anew, they are read one at a time.
func TestBootstrapLater(t *testing.T) {
	self := int32(os.Getpid())
	p := newTable()
	for _, pid := range []int32{self, 1} {
		e := anon(1, pid, 0x1000, 0x1000)
		p.procs[pid] = p.empty(pid)
		p.apply(&e)
	}
	if err := p.bootstrap(0); err != nil {
		t.Fatal(err)
	}
	if len(p.procs) != 2 || !p.stale[p.procs[self]] || !p.stale[p.procs[1]] {
		t.Errorf("%d processes, %d of them stale", len(p.procs), len(p.stale))
	}
	for left := 1; left >= 0; left-- {
		p.reread = 0
		if p.Advance(2); len(p.stale) != left {
			t.Errorf("%d processes are stale, want %d", len(p.stale), left)
		}
		if p.reread == 0 {
			t.Error("no rest after a process was read")
		}
	}
	here := uint64(reflect.ValueOf(TestBootstrapLater).Pointer())
	if p.procs[self].Space.MappingAt(here) == nil {
		t.Error("the process was not read")
	}
}

// A process has so many mappings and no more; those in excess are counted, and it is to be
// read anew.
func TestMappingsOfOneProcess(t *testing.T) {
	p := newTable()
	p.reread = math.MaxUint64
	for i := range uint64(maxMappings + 100) {
		e := anon(1, pidA, 0x3000*(1+i), 0x3000)
		p.apply(&e)
	}
	space := p.Process(pidA).Space
	if space.Len() != maxMappings || p.LeftOut() != 100 || !p.stale[p.procs[pidA]] {
		t.Errorf("%d mappings, %d left out", space.Len(), p.LeftOut())
	}
	for i := range uint64(maxMappings) { // in the midst of others
		e := anon(1, pidA, 0x3000*(1+i)+0x1000, 0x1000)
		p.apply(&e)
	}
	if n := space.Len(); n > 2*maxMappings+1 {
		t.Errorf("%d mappings", n)
	}
}

// Events that come in between are put in order, whichever there are.
func TestQueueOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := newTable()
	due, upTo := 0, uint64(0)
	for range 2000 {
		for range rnd.IntN(20) {
			e := anon(upTo+uint64(rnd.IntN(500)), pidA, 0x1000, 0x1000)
			p.take(&e)
		}
		waiting := len(p.pending) - p.next
		upTo += uint64(rnd.IntN(40))
		queue, keys := p.due(upTo)
		for i, k := range keys {
			if i > 0 && (k.time < keys[i-1].time || k.time == keys[i-1].time && k.i < keys[i-1].i) || k.time > upTo || queue[k.i].Time != k.time {
				t.Fatalf("event %d of %d up to %d: %+v after %+v", i, len(keys), upTo, k, keys[max(i-1, 0)])
			}
		}
		due += len(keys)
		for i := range p.pending {
			if e := &p.pending[i]; !e.due && e.Time <= upTo {
				t.Fatalf("an event of %d is not due at %d", e.Time, upTo)
			}
		}
		if len(p.pending)-p.next != waiting-len(keys) {
			t.Fatalf("%d events wait, want %d", len(p.pending)-p.next, waiting-len(keys))
		}
	}
	if due == 0 {
		t.Error("none were due")
	}
}

func TestExecDropsData(t *testing.T) {
	p := newTable()
	for _, e := range []SidebandEvent{anon(1, pidA, 0x1000, 0x1000)} {
		p.apply(&e)
	}
	a := p.Process(pidA)
	a.Data = "attached"
	e := fork(2, pidA, pidB)
	p.apply(&e)
	if p.Process(pidB).Data != nil {
		t.Error("a child has its parent's data")
	}
	space := a.Space
	e = execed(3, pidA, "x")
	p.apply(&e)
	if p.Process(pidA) != a || a.Data != nil || a.Space == space {
		t.Errorf("after exec: %+v", a)
	}
}

// The same mapping again leaves the address space as it is: whoever caches by
// its generation need not start anew.
func TestInsertAgain(t *testing.T) {
	p := newTable()
	e := anon(1, pidA, 0x1000, 0x1000)
	p.apply(&e)
	gen := p.Process(pidA).Space.Generation()
	p.apply(&e)
	if p.Process(pidA).Space.Generation() != gen {
		t.Error("the same mapping changed the generation")
	}
	e.Len = 0x2000
	p.apply(&e)
	if p.Process(pidA).Space.Generation() == gen {
		t.Error("a longer mapping did not change the generation")
	}
}

func TestExpireByTime(t *testing.T) {
	self := int32(os.Getpid())
	p := newTable()
	for _, e := range []SidebandEvent{
		anon(1, pidA, 0x1000, 0x1000), anon(1, pidB, 0x1000, 0x1000), anon(1, pidC, 0x1000, 0x1000),
		anon(1, self, 0x1000, 0x1000),
		ended(10, pidA, pidA), ended(20, pidB, pidB), ended(15, pidC, pidC), ended(15, self, self),
		execed(30, pidC, "x"), // a thread went on
	} {
		p.apply(&e)
	}
	for _, step := range []struct {
		time      uint64
		a, b, c   bool
		remaining int
	}{{10, true, true, true, 4}, {11, false, true, true, 3}, {20, false, true, true, 3}, {21, false, false, true, 2}} {
		p.Expire(step.time)
		_, a := p.procs[pidA]
		_, b := p.procs[pidB]
		_, c := p.procs[pidC]
		if a != step.a || b != step.b || c != step.c || len(p.procs) != step.remaining {
			t.Errorf("before %d: %v %v %v, %d processes", step.time, a, b, c, len(p.procs))
		}
	}
	// We are still here: other threads go on.
	if p.procs[self] == nil {
		t.Error("a process with threads left is gone")
	}
}

func TestProcessFromProc(t *testing.T) {
	p := newTable()
	self := p.Process(int32(os.Getpid()))
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if self == nil || self.Exe != exe || self.Arch != procstate.HostArch() || len(self.Space.Mappings()) == 0 {
		t.Errorf("ourselves: %+v", self)
	}
	if p.Process(pidA) != nil || p.Process(0) != nil || p.Process(-1) != nil {
		t.Error("a process that is not there")
	}
	if k := p.Process(2); k != nil && (k.Comm == "kthreadd") != k.KernelThread {
		t.Errorf("kthreadd: %+v", k)
	}
	if newTable(pidA).Process(int32(os.Getpid())) != nil {
		t.Error("a process that is not followed")
	}
}

func TestParseStat(t *testing.T) {
	tests := []struct {
		stat string
		want taskStat
		ok   bool
	}{
		{"1 (systemd) S 0 1 1 0 -1 4194560 1 2 3", taskStat{"systemd", 0, false}, true},
		{"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0", taskStat{"kthreadd", 0, true}, true},
		{"7 (a) b (c) d) R 3 1 1 0 -1 0", taskStat{"a) b (c) d", 3, false}, true},
		{"7 () R -1 1 1 0 -1 0", taskStat{"", -1, false}, true},
		{"7 (x) R 3 1 1 0 -1", taskStat{}, false},
		{"7 (x) R y 1 1 0 -1 0", taskStat{}, false},
		{"7 )x( R 3 1 1 0 -1 0", taskStat{}, false},
		{"", taskStat{}, false},
	}
	for _, test := range tests {
		if got, err := parseStat([]byte(test.stat)); got != test.want || (err == nil) != test.ok {
			t.Errorf("%q: %+v, %v", test.stat, got, err)
		}
	}
}

// The files of a process are held open while it lives and when somebody wants
// them, and closed then: deleted files would keep their room.
func TestCloseFiles(t *testing.T) {
	cat := exec.Command("cat")
	stdin, stdout := testenv.Start(t, cat)
	stdin.Write([]byte("x"))
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil { // it runs
		t.Fatal(err)
	}
	pid := int32(cat.Process.Pid)
	images := procstate.NewImages(0)
	p := NewProcesses(ProcessesConfig{Images: images, PIDs: []int32{pid}})
	proc := p.Process(pid)
	if proc == nil {
		t.Fatal("no process")
	}
	held := images.Stats().OpenNow
	if held == 0 {
		t.Fatal("no file is open")
	}
	program := proc.Space.Mappings()[0].Image
	closeFiles := func(when string, want int, keep func(*procstate.Image) bool) {
		t.Helper()
		p.CloseFiles(keep) // used since the last one
		p.CloseFiles(keep)
		if n := images.Stats().OpenNow; n != want {
			t.Errorf("%s: %d files open, want %d", when, n, want)
		}
	}
	none := func(*procstate.Image) bool { return false }
	closeFiles("mapped", held, none)

	stdin.Close()
	if err := cat.Wait(); err != nil {
		t.Fatal(err)
	}
	p.apply(&SidebandEvent{Kind: SidebandExit, Time: 1, PID: pid, TID: pid})
	p.Expire(2)
	closeFiles("wanted", 1, func(im *procstate.Image) bool { return im == program })
	closeFiles("not wanted", 0, none)
}
