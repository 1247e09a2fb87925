package steppers

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// startJava compiles and starts testdata/walk/Busy.java.
func startJava(t *testing.T, java testenv.Program, flags ...string) (pid int) {
	t.Helper()
	return startJavaClass(t, java, nil, append(flags, "Busy", "600000")...)
}

// startJavaClass compiles and starts a class of testdata/walk, with the flags and
// arguments of java around its name.
func startJavaClass(t *testing.T, java testenv.Program, out io.Writer, args ...string) (pid int) {
	t.Helper()
	i := slices.IndexFunc(args, func(arg string) bool { return arg[0] != '-' })
	classes := testenv.CompileJava(t, java, filepath.Join("..", "testdata", "walk", args[i]+".java"))
	command := java.Command(slices.Insert(args, i, "-cp", classes)...)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// Java that keeps frame pointers tells itself where its frames are: what its
// virtual machine has noted of them says the same. Where a thread was in
// generated code, which may be building a frame, neither is sure at every
// instruction. Where a method has gone before its frame was walked, the walk ends.
func TestJavaFrames(t *testing.T) {
	t.Parallel()
	needPtrace(t)
	testenv.EachJava(t, func(t *testing.T, java testenv.Program) { testJavaFrames(t, java, "Busy") })
}

// While compiled code compares strings, it keeps a word on the stack beyond its frame.
func TestJavaComparesStrings(t *testing.T) {
	t.Parallel()
	needPtrace(t)
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		t.Parallel()
		testJavaFrames(t, java, "Compares")
	})
}

// Stubs that make digests align SP, and use the frame pointer for other things.
func TestJavaDigests(t *testing.T) {
	t.Parallel()
	needPtrace(t)
	testenv.SomeJava(t, testJavaDigests)
}

func testJavaDigests(t *testing.T, java testenv.Program) {
	t.Parallel()
	pid := startJavaClass(t, java, nil, "Digests", "600000")
	time.Sleep(2 * time.Second) // until all is compiled
	group := Default(unwind.NewTables())
	interrupted, short, captures := 0, 0, 0
	var slowest time.Duration
	blocked := map[string]int{} // threads that could not be stopped
	mapped := spaces(pid)
	// Where the machine is slow, fewer stacks are looked at.
	for deadline := time.Now().Add(time.Minute); interrupted < 300 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		captures++
		begin := time.Now()
		c, err := procstate.CaptureProcess(pid, procstate.CaptureOptions{Space: mapped()})
		if err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
		for _, th := range c.CapturedThreads() {
			if th.Blocked {
				blocked[th.Name]++
			}
		}
		tids, err := c.Threads()
		if err != nil {
			t.Fatal(err)
		}
		w := unwind.NewWalker(c, group, nil)
		for _, tid := range tids {
			stack, err := w.WalkStack(nil, tid)
			if m := w.MappingAt(stack[0].PC()); m == nil || m.Image != nil {
				continue
			}
			interrupted++
			isMain := func(l unwind.CodeLine) bool { return l.Name == "Digests.main" }
			runsMain := func(f unwind.Frame) bool { return slices.ContainsFunc(w.Codes().Lines(f.Code), isMain) }
			if err != nil || !slices.ContainsFunc(stack, runsMain) {
				short++
			}
		}
	}
	t.Logf("%d of %d stacks are short; %d captures, in %v at most, %v could not be stopped", short, interrupted, captures, slowest, blocked)
	if interrupted < 20 || short*50 > interrupted {
		t.Error("too few, or too many")
	}
}

// spaces returns what tells what a process has mapped, as it was a tenth of a second ago at most: to read that of
// Java takes longer than the rest of a capture.
func spaces(pid int) func() *procstate.AddressSpace {
	var space *procstate.AddressSpace
	var read time.Time
	return func() *procstate.AddressSpace {
		if time.Since(read) > 100*time.Millisecond {
			space, read = procstate.SpaceOfProcess(pid), time.Now()
		}
		return space
	}
}

func testJavaFrames(t *testing.T, java testenv.Program, class string) {
	pid := startJavaClass(t, java, nil, "-XX:+PreserveFramePointer", class, "600000")
	tables := unwind.NewTables()
	noted := unwind.NewGroup(NewBottom(), NewSigHandler(), NewDebug(tables), NewHotSpot(), NewFrameFunc(nil), NewAnalysis())
	linked := unwind.NewGroup(NewBottom(), NewSigHandler(), NewDebug(tables), NewFrameFunc(nil), NewAnalysis())
	calls, interrupted, differ, gone, unsure, frames := 0, 0, 0, 0, 0, 0
	mapped := spaces(pid)
	for deadline := time.Now().Add(time.Minute); frames < 1200 && time.Now().Before(deadline); { // fewer where the machine is slow
		c, err := procstate.CaptureProcess(pid, procstate.CaptureOptions{Space: mapped()})
		if err != nil {
			t.Fatal(err)
		}
		tids, err := c.Threads()
		if err != nil {
			t.Fatal(err)
		}
		wn, wl := unwind.NewWalker(c, noted, nil), unwind.NewWalker(c, linked, nil)
		for _, tid := range tids {
			want, err := wl.WalkStack(nil, tid)
			if err != nil {
				continue
			}
			got, err := wn.WalkStack(nil, tid)
			heuristic := slices.ContainsFunc(want, func(f unwind.Frame) bool { return f.Flags&unwind.Heuristic != 0 })
			samePC := func(a, b unwind.Frame) bool { return a.PC() == b.PC() }
			begins := len(got) <= len(want) && slices.EqualFunc(got, want[:len(got)], samePC)
			same := err == nil && begins && len(got) == len(want)
			// Before a function has its frame, frame pointers lead past its caller.
			entered := err == nil && len(got) == len(want)+1 && got[1].SP() == got[0].SP()+8 &&
				slices.EqualFunc(slices.Delete(slices.Clone(got), 1, 2), want, samePC)
			m := wn.MappingAt(want[0].PC())
			switch inCall := m == nil || m.Image != nil; {
			case inCall && begins && err == unwind.NoUnwindInfo:
				gone++
			case inCall && !same && heuristic:
				unsure++
			case inCall && !same:
				t.Errorf("thread %d: %d frames and %v, want %d", tid, len(got), err, len(want))
			case inCall:
				calls++
			case !same && !entered:
				differ++
				fallthrough
			default:
				interrupted++
			}
			for i := range got {
				if st := wn.Stepper(&got[i]); st != nil && st.Name() == "hotspot" {
					frames++
				}
			}
		}
	}
	if frames < 100 {
		t.Errorf("%d frames of Java", frames)
	}
	if differ*33 > interrupted {
		t.Errorf("%d of %d stacks are others than by frame pointers", differ, interrupted)
	}
	if gone*1000 > calls {
		t.Errorf("%d of %d stacks end in a method that has gone", gone, calls)
	}
	if unsure*500 > calls {
		t.Errorf("%d of %d stacks are others than by frame pointers that are not sure", unsure, calls)
	}
	t.Logf("%d stacks of calls, %d with a method that has gone, %d others by frame pointers that are not sure; %d interrupted in Java, %d of them others; %d frames of Java",
		calls, gone, unsure, interrupted, differ, frames)
}

// A compiled method that has become invalid returns where there is no call: its
// frames are walked all the same.
func TestJavaDeoptimized(t *testing.T) {
	t.Parallel()
	needPtrace(t)
	testenv.SomeJava(t, testJavaDeoptimized)
}

func testJavaDeoptimized(t *testing.T, java testenv.Program) {
	for name, flags := range map[string][]string{"C1": {"-XX:TieredStopAtLevel=1"}, "C2": {"-XX:-TieredCompilation"}} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			pid := startJavaClass(t, java, w, append(flags, "-Xbatch", "-XX:-UseOnStackReplacement", "-XX:CompileCommand=dontinline,Deopt.bottom",
				"-XX:CompileCommand=quiet", "-XX:CompileCommand=inline,Deopt$Base.f", "Deopt")...)
			told := make(chan bool, 1)
			go func() {
				lines := bufio.NewScanner(r)
				told <- lines.Scan()
				_, _ = io.Copy(io.Discard, r)
			}()
			select {
			case <-told:
			case <-time.After(2 * time.Minute):
				t.Fatal("nothing was deoptimized")
			}
			p, err := procstate.Attach(pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Detach()
			wk := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				handlers, methods := 0, 0
				var last error
				tids, _ := p.Threads()
				for _, tid := range tids {
					stack, err := wk.WalkStack(nil, tid)
					n := 0
					for i := range stack {
						if s := wk.Stepper(&stack[i]); s == nil || s.Name() != "hotspot" {
							continue
						}
						n++
						var code [16]byte
						if k, _ := p.ReadMemory(stack[i].PC(), code[:]); isDeoptHandler(code[:k], stack[i].PC()) ||
							bytes.HasPrefix(code[:k], []byte("\xeb\xf9")) { // from JDK 26 on behind a call, to which it jumps
							handlers++
						}
					}
					if n > 0 {
						methods, last = n, err
					}
				}
				if handlers > 10 && last == nil {
					t.Logf("%d of %d frames of methods at deoptimisation", handlers, methods)
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d frames at deoptimisation, of %d; %v", handlers, methods, last)
				}
			}
		})
	}
}

// onesMemory is memory that is full of ones, and counts how often it is read.
type onesMemory struct{ reads int }

func (m *onesMemory) ReadMemory(_ uint64, buf []byte) (int, error) {
	m.reads++
	for i := range buf {
		buf[i] = 1
	}
	return len(buf), nil
}

func (m *onesMemory) ReadWord(uint64) (uint64, bool) { return 0x0101010101010101, true }

// The map of a code heap may be the longest way there is; it takes few reads.
func TestSegmentMap(t *testing.T) {
	mem := &onesMemory{}
	vm := &hotspotVM{mem: mem, fields: &vmFields{blobEnd: 64, blockBytes: 16, blockUsed: 8}, heaps: []codeHeap{{low: 1 << 32, high: 1 << 33, segments: 1 << 40, log2: 7}}}
	if b := vm.blobAt(1<<33 - 1); b != nil {
		t.Errorf("%+v", b)
	}
	if most := 2 * maxSegmentHops / len(vm.buf); mem.reads > most {
		t.Errorf("%d reads, of at most %d", mem.reads, most)
	}
}

// A method that has been freed leaves its header behind, and its end may be given to
// another: it is not taken for that.
func TestFreedMethod(t *testing.T) {
	heap := make([]byte, 1<<12)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(heap[at:], v) }
	const low = 1 << 32
	f := &vmFields{blobComplete: 0, blobFrame: 4, blobCodeBegin: 8, blobCodeEnd: 16, blobName: 24, blobEnd: 32, blockBytes: 16, blockUsed: 8}
	// method makes a block with the code [begin, end) of a method.
	method := func(at, begin, end int, words uint32) {
		put(at+8, 1)
		put(at+16, 4|uint64(words)<<32)
		put(at+24, low+uint64(begin))
		put(at+32, low+uint64(end))
		put(at+40, low+3<<10)
	}
	copy(heap[3<<10:], "nmethod\x00")
	segments := 2 << 10
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: low, Data: heap}})
	vm := &hotspotVM{mem: mem, fields: f, heaps: []codeHeap{{low: low, high: low + 1<<10, segments: low + uint64(segments), log2: 7}}}
	method(0, 128, 1024, 14)
	for i := range 8 {
		heap[segments+i] = byte(i)
	}
	const pc = low + 900
	if b := vm.blobAt(pc); b == nil || b.frame != 14*8 || !b.fixed {
		t.Fatalf("%+v", b)
	}
	put(8, 0) // it is free,
	if b := vm.blobAt(pc); b != nil {
		t.Errorf("of a free block %+v", b)
	}
	method(512, 640, 1024, 21) // and its end another method's
	for i := range 4 {
		heap[segments+4+i] = byte(i)
	}
	if b := vm.blobAt(pc); b == nil || b.frame != 21*8 {
		t.Errorf("%+v", b)
	}
}

// When a process has ended, what holds code that was walked is still known, whatever else was since.
func TestBlobOfEnded(t *testing.T) {
	heap := make([]byte, 1<<12)
	const low, stub, method, end, name = 1 << 32, 0, 512, 2 << 10, 3 << 10
	f := &vmFields{blobComplete: 0, blobFrame: 4, blobCodeBegin: 8, blobCodeEnd: 16, blobName: 24, blobEnd: 32, blockBytes: 16, blockUsed: 8}
	for _, at := range [][2]int{{stub, method}, {method, end}} {
		binary.LittleEndian.PutUint64(heap[at[0]+8:], 1)
		binary.LittleEndian.PutUint64(heap[at[0]+24:], low+uint64(at[0])+128)
		binary.LittleEndian.PutUint64(heap[at[0]+32:], low+uint64(at[1]))
		binary.LittleEndian.PutUint64(heap[at[0]+40:], low+name)
		for i := range (at[1] - at[0]) / 128 {
			heap[end+at[0]/128+i] = byte(i)
		}
	}
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: low, Data: heap}})
	vm := &hotspotVM{mem: mem, fields: f, heaps: []codeHeap{{low: low, high: low + end, segments: low + end, log2: 7}}}
	for pc := uint64(low + stub + 128); pc < low+end; pc++ {
		if b := vm.blobAt(pc); b == nil && (pc < low+method || pc >= low+method+128) {
			t.Fatalf("nothing at %#x", pc)
		}
	}
	vm.heaps[0].segments = 0
	for pc := uint64(low + stub + 128); pc < low+method; pc++ {
		if b := vm.blobAt(pc); b == nil || b.header != low+stub+f.blockBytes {
			t.Fatalf("at %#x %+v", pc, b)
		}
	}
}

// What holds code is told by its name: frames of some kinds have the size that is
// noted, wherever they call.
func TestBlobKinds(t *testing.T) {
	const addr = 1 << 32
	for name, want := range map[string]codeBlob{
		"nmethod":                          {fixed: true},
		"native nmethod":                   {fixed: true},
		"ExceptionBlob":                    {fixed: true},
		"UncommonTrapBlob":                 {fixed: true},
		"_new_instance_Java":               {fixed: true},
		"C2 Runtime new_instance":          {fixed: true},
		"new_instance_blob (C2 runtime)":   {fixed: true},
		"new_instance_blob (C1 runtime)":   {},
		"Interpreter":                      {interpreter: true},
		"vtable chunks":                    {jumps: true},
		"DeoptimizationBlob":               {},
		"StubRoutines (1)":                 {},
		"UncommonTrapBlob of another kind": {},
	} {
		text := make([]byte, 64)
		copy(text, name)
		mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
		mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: addr, Data: text}})
		b := codeBlob{name: addr, frame: 32}
		(&hotspotVM{mem: mem}).classify(&b)
		if want.name, want.frame = addr, 32; b != want {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// execAgain is loaded into Java: a signal has it execute its program anew.
const execAgain = `
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static void again(int sig) {
	static char line[1 << 16], *args[256];
	int fd = open("/proc/self/cmdline", O_RDONLY), n = 0;
	long size = read(fd, line, sizeof line - 1);
	for (char *p = line; p < line + size && n < 255; p += strlen(p) + 1)
		args[n++] = p;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	execve("/proc/self/exe", args, environ);
}
__attribute__((constructor)) static void catch(void) { signal(SIGUSR1, again); }
`

// What is known of a virtual machine goes with it, when its process executes
// another.
func TestJavaExecutesJava(t *testing.T) {
	needPtrace(t)
	lib := steptest.Compile(t, []string{"gcc", "-shared", "-fPIC", "-O1"}, "again.c", execAgain)
	t.Setenv("LD_PRELOAD", lib)
	testenv.NeedsJava(t)
	java, err := exec.LookPath("java")
	if err != nil {
		t.Fatal(err)
	}
	pid := startJava(t, testenv.Program{Path: java})
	os.Unsetenv("LD_PRELOAD")
	p, err := procstate.Attach(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Detach()
	group := Default(unwind.NewTables())
	w := unwind.NewWalker(p, group, nil)
	// javaFrames walks until there are frames of compiled methods.
	javaFrames := func() {
		t.Helper()
		const want = 20
		frames := 0
		for deadline := time.Now().Add(2 * time.Minute); frames < want; {
			if time.Now().After(deadline) {
				t.Fatalf("%d frames of Java", frames)
			}
			tids, err := p.Threads()
			if err != nil {
				t.Fatal(err)
			}
			for _, tid := range tids {
				stack, _ := w.WalkStack(nil, tid)
				for i := range stack {
					if s := w.Stepper(&stack[i]); s != nil && s.Name() == "hotspot" {
						frames++
					}
				}
			}
		}
	}
	javaFrames()
	base := func() uint64 {
		for _, lib := range p.Libraries().Libraries() {
			if filepath.Base(lib.Path) == "libjvm.so" {
				return lib.Bias
			}
		}
		return 0
	}
	before := base()
	if err := syscall.Kill(pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); base() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it has executed nothing")
		}
		_ = p.Libraries().Update()
	}
	javaFrames()
}

// A frame that takes the place of a deoptimised method's has the caller's SP before
// all else; FrameFunc walks one that is filled in.
func TestInterpretedFrame(t *testing.T) {
	const fp, sender, ra, callerFP = 0x7048, 0x7090, 0x7f0011112222, 0x70d0
	stack := make([]uint64, 0x140/8)
	word := func(addr uint64) *uint64 { return &stack[(addr-0x7000)/8] }
	*word(fp), *word(fp + 8), *word(fp - interpSenderSP) = callerFP, ra, sender
	walk := func(fp uint64) (unwind.Verdict, *unwind.Frame) {
		snap := madeUp(procstate.AMD64, noMapping, stack...)
		w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
		in := unwind.NewFrame(procstate.AMD64, 0x7f0011110000, 0x7000, fp)
		var out unwind.Frame
		v, err := NewHotSpot().interpreted(w, &hotspotVM{mem: snap, fields: &vmFields{interp: &interpFrame9}}, &in, &out)
		if err != nil {
			t.Error(err)
		}
		return v, &out
	}
	if v, out := walk(fp); v != unwind.Success || out.PC() != ra || out.SP() != sender || out.FP() != callerFP {
		t.Errorf("being made: verdict %d, PC %#x, SP %#x, FP %#x", v, out.PC(), out.SP(), out.FP())
	}
	for _, bad := range []uint64{0, fp + 8, sender + 4, fp + 16 + maxInterpLocals + 8} {
		*word(fp - interpSenderSP) = bad
		if v, _ := walk(fp); v != unwind.NotMe {
			t.Errorf("caller's SP %#x: verdict %d", bad, v)
		}
	}
	*word(fp - interpSenderSP), *word(fp - interpFrame9.locals), *word(fp - interpFrame9.initialSP) = sender, sender-8, 0x7000
	if v, _ := walk(fp); v != unwind.NotMe {
		t.Errorf("filled in: verdict %d", v)
	}
	below := int64(0x7000-fp) / 8
	*word(fp - interpFrame9.locals), *word(fp - interpFrame9.initialSP) = (sender-8-fp)/8, uint64(below) // as from JDK 21 on
	if v, _ := walk(fp); v != unwind.NotMe {
		t.Errorf("filled in, in words: verdict %d", v)
	}
	*word(fp - interpFrame9.initialSP) = uint64(below - 1)
	if v, _ := walk(fp); v != unwind.Success {
		t.Errorf("below SP, in words: verdict %d", v)
	}
	*word(fp - interpFrame9.locals), *word(fp - interpFrame9.initialSP) = sender-8, 0x7000
	if v, _ := walk(0x7040); v != unwind.NotMe {
		t.Errorf("too short: verdict %d", v)
	}
}

// Frames of the interpreter are told apart by where their words are: those of JDK 8 have one less.
func TestInterpretedFrames(t *testing.T) {
	const fp, sp, sender = 0x7080, 0x7000, 0x70b0
	for _, words := range []*interpFrame{&interpFrame9, &interpFrame8} {
		stack := make([]uint64, 0x100/8)
		word := func(addr uint64) *uint64 { return &stack[(addr-sp)/8] }
		*word(fp - interpSenderSP), *word(fp - words.locals), *word(fp - words.bytecode), *word(fp - words.initialSP) = sender, sender-8, 0x7f0000001234, fp-words.initialSP
		w := unwind.NewWalker(madeUp(procstate.AMD64, noMapping, stack...), unwind.NewGroup(), nil)
		if got, is, ok := senderSP(w, sp, fp); !ok || got != sender || is != words {
			t.Errorf("%+v: caller's SP %#x of %+v, %v", words, got, is, ok)
		}
		if _, _, ok := senderSP(w, fp-words.initialSP+8, fp); ok {
			t.Errorf("%+v: one that is too short", words)
		}
	}
}
