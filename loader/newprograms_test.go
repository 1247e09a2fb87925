package loader

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// newProgramsOf follows the children of this process, and returns who tells of
// their programs.
func newProgramsOf(t *testing.T, children bool) *NewPrograms {
	t.Helper()
	cfg := Config{Frequency: 1, NewPrograms: true, PIDs: []int{os.Getpid()}, FollowChildren: children}
	return startSession(t, cfg).NewPrograms()
}

// copyOf makes a program of which there is no other, longer than one in PATH
// by some bytes. A process of its own writes it, as a child of ours that
// has it open for writing for a moment would keep it from being executed.
func copyOf(t *testing.T, program, dir string, longer int) string {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprint(program, longer))
	cmd := exec.Command("sh", "-c", `cp "$(readlink -f "$(command -v "$3")")" "$1" && head -c "$2" /dev/zero >> "$1"`, "sh", path, fmt.Sprint(longer), program)
	testenv.Run(t, cmd)
	return path
}

func runCopy(t *testing.T, path string) {
	t.Helper()
	testenv.Run(t, exec.Command(path))
}

// fileOf returns the file that was told of at a path, nil when there is none.
func fileOf(t *testing.T, told []programFile, path string) *programFile {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	for i := range told {
		if told[i].Size == uint64(st.Size) {
			return &told[i]
		}
	}
	return nil
}

// A program is told of each time until its file is known, and then again when
// that is forgotten. The kernel tells before the program runs, so all is there
// when it has ended.
func TestNewPrograms(t *testing.T) {
	n := newProgramsOf(t, true)
	dir := t.TempDir()
	first, second := copyOf(t, "cat", dir, 1), copyOf(t, "cat", dir, 2)
	n.take()
	runCopy(t, first)
	told := n.take().programs
	f := fileOf(t, told, first)
	if f == nil {
		t.Fatalf("%s was not told of: %+v", first, told)
	}
	known := *f
	runCopy(t, first)
	if told := n.take().programs; fileOf(t, told, first) == nil {
		t.Errorf("%s was not told of again: %+v", first, told)
	}
	n.know(known, goProcess{})
	runCopy(t, first)
	runCopy(t, second)
	told = n.take().programs
	if fileOf(t, told, first) != nil || fileOf(t, told, second) == nil {
		t.Errorf("told of %+v: want %s alone", told, second)
	}
	n.forget(func(programFile) bool { return true })
	runCopy(t, first)
	if told := n.take().programs; fileOf(t, told, first) == nil {
		t.Errorf("%s was not told of when it had been forgotten: %+v", first, told)
	}
}

// What is known of a Go program is known of a process as soon as it becomes that;
// and not any more when it becomes another, known or not.
func TestNewGoProgram(t *testing.T) {
	s := startSession(t, Config{Frequency: 1, NewPrograms: true, PIDs: []int{os.Getpid()}, FollowChildren: true})
	n := s.NewPrograms()
	dir := t.TempDir()
	inGo, inC, unknown := copyOf(t, "sh", dir, 1), copyOf(t, "sh", dir, 2), copyOf(t, "sh", dir, 3)
	what := goProcess{G_fromTp: -8, G_m: 48, G_head: 128}
	for path, is := range map[string]goProcess{inGo: what, inC: {}} {
		n.take()
		testenv.Run(t, exec.Command(path, "-c", ":"))
		told := n.take().programs
		n.know(*fileOf(t, told, path), is)
	}
	for _, c := range []struct {
		from, to string
		isGo     bool
	}{{inC, inGo, true}, {unknown, inGo, true}, {inGo, inC, false}, {inGo, unknown, false}} {
		cmd := exec.Command(c.from, "-c", `exec "$0" -c "echo; read end"`, c.to)
		in, out := testenv.Start(t, cmd)
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		var is goProcess
		if isGo := s.flags.of(pid)&processIsGo != 0; isGo != c.isGo {
			t.Errorf("from %s to %s: a Go program: %v", c.from, c.to, isGo)
		} else if err := s.maps.GoProcesses.Lookup(uint32(pid), &is); isGo && (err != nil || is != what) {
			t.Errorf("from %s to %s: %+v, %v", c.from, c.to, is, err)
		}
		in.Close()
		_ = cmd.Wait() // read fails
	}
}

// Where a program's processes have frames is known of the next one before it runs, and of what it forks; not any more
// when it becomes another.
func TestProgramFrames(t *testing.T) {
	s := startSession(t, Config{Frequency: 1, NewPrograms: true, PIDs: []int{os.Getpid()}, FollowChildren: true})
	n := s.NewPrograms()
	dir := t.TempDir()
	known, other := copyOf(t, "sh", dir, 1), copyOf(t, "sh", dir, 2)
	n.take()
	testenv.Run(t, exec.Command(known, "-c", ":"))
	f := fileOf(t, n.take().programs, known)
	images := procstate.NewImages(0)
	im, err := images.Open(&procstate.FileRef{PID: int32(os.Getpid()), Path: known, Dev: userDev(f.Dev), Inode: f.Inode, Gen: uint64(f.Generation), HasGen: true})
	if err != nil {
		t.Fatal(err)
	}
	const bias, at, bounds, own = 1 << 40, 64, 128, 1 << 32
	program := &procstate.Mapping{Image: im, Bias: bias, Path: known}
	// begun tells where a process of the program has frames, and what it forks.
	begun := func(command ...string) (start uint64, frames, ofFork gen.SamplerThreadFrames) {
		cmd := exec.Command(command[0], command[1:]...)
		in, out := testenv.Start(t, cmd)
		var fork int
		if _, err := fmt.Fscan(out, &fork); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		for of, into := range map[int]*gen.SamplerThreadFrames{pid: &frames, fork: &ofFork} {
			if s.flags.of(of)&processHasFrames == 0 {
				continue
			} else if err := s.maps.ThreadFrames.Lookup(framesOfProcess(of), into); err != nil {
				t.Error(err)
			}
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Sscanf(string(maps), "%x", &start)
		in.Close()
		_ = cmd.Wait()
		return start, frames, ofFork
	}
	const script = "{ sleep 0.1; :; } & echo $!; read end" // the first is no other program
	for _, c := range []struct {
		told, want ThreadFrames
		isCounted  bool // want is, from where the program is mapped
		isKnown    bool
	}{
		{ThreadFrames{Current: bias + at, Previous: 8}, ThreadFrames{Current: at, Previous: 8}, true, true},
		{ThreadFrames{Current: bias + at, Bounds: bias + bounds, IsFrame: true}, ThreadFrames{Current: at, Bounds: bounds, IsFrame: true}, true, true},
		{ThreadFrames{Current: own + at, Own: own, FromThreadPointer: -16}, ThreadFrames{Current: at}, false, true},
		{ThreadFrames{Current: own - at, Own: own, IsThreadPointer: true}, ThreadFrames{Current: ^uint64(at) + 1}, false, true},
		{ThreadFrames{Current: bias + 1<<30}, ThreadFrames{}, false, false}, // in its heap
		{ThreadFrames{Current: bias + at, Bounds: bias + 1<<30}, ThreadFrames{}, false, false},
	} {
		_ = s.maps.ProgramFrames.Delete(f)
		if isKnown, err := s.SetProgramFrames(program, c.told); err != nil || isKnown != c.isKnown {
			t.Fatalf("%+v: is known: %v, %v", c.told, isKnown, err)
		}
		start, got, ofFork := begun(known, "-c", script)
		want := framesInKernel(c.want)
		want.FromTp, want.From = c.told.FromThreadPointer, got.From
		if c.isCounted {
			if want.Current += start; want.Bounds != 0 {
				want.Bounds += start
			}
		}
		if got != want || ofFork != got {
			t.Errorf("%+v: %+v, want %+v, and what is forked %+v", c.told, got, want, ofFork)
		}
		if _, got, ofFork = begun(known, "-c", `exec "$0" -c "$1"`, other, script); got != (gen.SamplerThreadFrames{}) || ofFork != got {
			t.Errorf("%+v: another program has %+v, and what it forks %+v", c.told, got, ofFork)
		}
	}
}

// Where only some processes are sampled, others' programs are not told of.
func TestNewProgramsOfOthers(t *testing.T) {
	n := newProgramsOf(t, false)
	runCopy(t, copyOf(t, "cat", t.TempDir(), 1))
	if told := n.take().programs; len(told) != 0 {
		t.Errorf("told of %+v", told)
	}
}

// More programs than there is room for, in the ring and among those known.
func TestNewProgramsMany(t *testing.T) {
	n := newProgramsOf(t, true)
	path := copyOf(t, "cat", t.TempDir(), 1)
	n.take()
	room := os.Getpagesize() / 32
	if os.Getpagesize() > 4096 {
		t.Skip("a page is too large to be filled by programs that are executed")
	}
	for range room + 1 {
		runCopy(t, path)
	}
	told := n.take().programs
	if len(told) == 0 || len(told) > room {
		t.Fatalf("%d told of, with room for %d", len(told), room)
	}
	runCopy(t, path)
	if told = n.take().programs; fileOf(t, told, path) == nil {
		t.Error("none is told of after the ring was full")
	}
	most := int(n.known.MaxEntries())
	for i := range most + 1 {
		n.know(programFile{Inode: uint64(i), Dev: ^uint32(0)}, goProcess{})
		if len(n.programs) == 0 || len(n.programs) > most {
			t.Fatalf("%d of at most %d are known", len(n.programs), most)
		}
	}
}

// The news of a fork may come behind those of its child's programs, from another
// CPU. A program in Go is known nevertheless before the next is executed, and stays so
// while its file is open, whatever others are closed.
func TestProgramBeforeFork(t *testing.T) {
	n := newProgramsOf(t, true)
	images := procstate.NewImages(0)
	defer images.Close()
	const parent, child = 1 << 29, 1<<29 + 1
	p := NewProcesses(ProcessesConfig{Images: images, PIDs: []int32{parent}})
	p.programs = n
	exe, err := os.Executable() // is in Go
	if err != nil {
		t.Fatal(err)
	}
	var events []SidebandEvent
	var started []programFile
	for _, cmd := range []*exec.Cmd{exec.Command(exe, "-test.run=^$"), exec.Command(copyOf(t, "cat", t.TempDir(), 1))} {
		n.take()
		testenv.Run(t, cmd)
		told := n.take().programs
		f := *fileOf(t, told, cmd.Path)
		started = append(started, f)
		e := SidebandEvent{Kind: SidebandMmap, PID: child, TID: child, Path: cmd.Path, Len: 1 << 12}
		e.Dev, e.Inode, e.Gen = userDev(f.Dev), f.Inode, uint64(f.Generation)
		events = append(events, e)
	}
	for i := range events {
		p.take(&events[i])
	}
	p.take(&SidebandEvent{Kind: SidebandFork, PPID: parent, PID: child})
	p.lookAgain(started)
	p.know(started, false)
	if is, ok := n.isKnown(started[0]); !ok || is.G_head == 0 {
		t.Errorf("known is %v, as %+v", ok, is)
	}
	if is, ok := n.isKnown(started[1]); !ok || is != (goProcess{}) {
		t.Errorf("what is not in Go: known is %v, as %+v", ok, is)
	}
	// Opened a last time with the first.
	for range 2 {
		images.CloseIdle(func(im *procstate.Image) bool { return im.ID.Inode == started[0].Inode })
	}
	p.forgetPrograms()
	if _, ok := n.isKnown(started[1]); ok {
		t.Error("a file is known that is closed")
	}
	if is, ok := n.isKnown(started[0]); !ok || is != p.goPrograms[started[0]] {
		t.Errorf("a file is forgotten that is open: %v, %+v", ok, is)
	}
}

// A new program ends the rest of who watches.
func TestRestEnds(t *testing.T) {
	n := newProgramsOf(t, true)
	path := copyOf(t, "cat", t.TempDir(), 1)
	n.take()
	sb, err := OpenSideband(SidebandConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	p := NewProcesses(ProcessesConfig{Sideband: sb})
	if err := p.Heed(n); err != nil {
		t.Fatal(err)
	}
	rested := make(chan struct{})
	go func() {
		defer close(rested)
		p.rest(24 * time.Hour)
	}()
	runCopy(t, path)
	select {
	case <-rested:
	case <-time.After(patience):
		t.Fatal("still resting when a new program was executed")
	}
}

// endsAreKnown has nobody asked to learn where the stacks of this process's threads end.
func endsAreKnown(t *testing.T, s *Session) {
	t.Helper()
	if err := s.SetThreadEnds(os.Getpid(), 1); err != nil {
		t.Fatal(err)
	}
}

// Who reads is asked to learn where the stacks of a process's threads end with the first of
// them, and by each CPU once a second.
func TestEndsAsked(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "4")
	s := startSession(t, Config{Frequency: 4999, PIDs: []int{p.pid}, NewPrograms: true})
	cut := func(smp *Sample) bool { return smp.TID != smp.PID && smp.StackEnd == StackEndLimit }
	began, n, asked := time.Now(), 0, 0
	readUntil(t, s, func(smp *Sample) bool {
		if !cut(smp) {
			return false
		}
		if s.NewPrograms().take().endUnknown {
			asked++
		}
		if n++; asked == 0 {
			t.Error("not asked by the first one")
			return true
		}
		return n == 200
	})
	if most := CPUs() * (1 + int(time.Since(began)/time.Second)); asked > most {
		t.Errorf("asked %d times by %d samples, want %d at the most", asked, n, most)
	}
}

// A ring is told of at once when it has room for less than two stacks of the greatest
// length in its first half, where they are copied whole, and a quarter of it is full.
func TestRingTold(t *testing.T) {
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	const ring = 128 << 10
	for _, c := range []struct{ stack, from int }{{0, ring / 4}, {ring / 4, ring / 4}, {ring / 16, ring/2 - ring/8}} {
		s := startSession(t, Config{
			Event: mustParse(t, "syscalls:sys_enter_getppid"), PIDs: []int{os.Getpid()}, NewPrograms: true,
			RingBytes: ring * possible, StackBytes: c.stack,
		})
		if s.cpuRing != ring {
			t.Fatalf("a ring of %d bytes, want %d", s.cpuRing, ring)
		}
		endsAreKnown(t, s)
		for at, told := uint32(0), false; !told; {
			unix.Getppid()
			told = s.NewPrograms().take().ringFills
			for i := range s.rings.cpus {
				at = max(at, unpackPos(s.rings.cpus[i].head.Load()).at)
			}
			if told != (at >= uint32(c.from)) {
				t.Fatalf("told %v of %d bytes in a ring of %d", told, at, ring)
			}
		}
	}
}

// Whoever watches tells on of a ring that fills up.
func TestRingFills(t *testing.T) {
	s := startSession(t, Config{Frequency: 997, NewPrograms: true, PIDs: []int{os.Getpid()}, RingBytes: 1})
	sb, err := OpenSideband(SidebandConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	endsAreKnown(t, s)
	filled := make(chan struct{}, 1000)
	p := NewProcesses(ProcessesConfig{Sideband: sb, Images: procstate.NewImages(0), OnFilled: func() { filled <- struct{}{} }})
	if err := p.Heed(s.NewPrograms()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = p.Watch(ctx)
	}()
	defer func() {
		stop()
		<-watched
	}()
	for deadline := time.After(patience); ; {
		select {
		case <-filled:
			return
		case <-deadline:
			t.Fatal("not told of a ring that fills up")
		default: // be sampled
		}
	}
}
