package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

func buildHeap(t *testing.T) string {
	return build(t, "heap", "gcc", "-O1", "-g", "-fno-builtin", "-pthread", "-o", "OUT", "testdata/targets/heap.c")
}

// buildShim makes a library with an allocator that calls the C library's.
func buildShim(t *testing.T) string {
	return build(t, "libshimmalloc.so", "gcc", "-O1", "-shared", "-fPIC", "-o", "OUT", "testdata/targets/shimmalloc.c")
}

// byCaller is what functions of testdata/targets/heap.c have got, in blocks and bytes: those that call an allocator.
type byCaller map[string][2]int64

// heapOf is what was held at the end and when that was most, and allocated in all.
func heapOf(t *testing.T, r *recording) (held, peak, allocated byCaller) {
	t.Helper()
	held, peak, allocated = byCaller{}, byCaller{}, byCaller{}
	events := []byCaller{held, peak, allocated}
	for i, name := range []string{"held", "peak", "allocated"} {
		for j, want := range []string{name + "_samples count", name + " bytes"} {
			if typ := r.profile.SampleType[2*i+j]; typ.Type+" "+typ.Unit != want {
				t.Fatalf("value %d is %v, want %s", 2*i+j, typ, want)
			}
		}
	}
	for _, s := range r.profile.Sample {
		stack := stackOf(s)
		if last := len(stack) - 1; stack[last] == "reallocarray" { // it calls realloc
			stack = stack[:last]
		}
		leaf := stack[len(stack)-1]
		if caller := stack[len(stack)-2]; !strings.HasPrefix(caller, "main") && caller != "take_and_use" && leaf != "get" {
			continue // it is the C library's own
		}
		for i, in := range events {
			if s.Value[2*i] != 0 {
				in[leaf] = [2]int64{in[leaf][0] + s.Value[2*i], in[leaf][1] + s.Value[2*i+1]}
			}
		}
	}
	return held, peak, allocated
}

// wantHeap checks these, if each function was called n times.
func wantHeap(t *testing.T, what string, got byCaller, want byCaller) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: %v\nwant %v", what, got, want)
	}
}

// heldOf is what testdata/targets/heap.c holds that has called each function n times; n is even.
func heldOf(n int64) byCaller {
	return byCaller{
		"keep": {n, n * 1000}, "zeroed": {n, n * 700}, "aligned": {n, n * 640}, "posix_aligned": {n / 2, n / 2 * 8192},
		"grow": {1, n * 100}, "grow_array": {1, n * 100},
	}
}

// allocatedOf is all that it has got.
func allocatedOf(n int64) byCaller {
	return byCaller{
		"keep": {n, n * 1000}, "zeroed": {n, n * 700}, "aligned": {n, n * 640}, "posix_aligned": {n, n * 8192},
		"grow": {n, n * (n + 1) / 2 * 100}, "grow_array": {n, n * (n + 1) / 2 * 100},
		"give_back": {n, n * 3000}, "memaligned": {n, n * 500}, "nothing": {n, n * 200}, "taken": {n, n * 150},
	}
}

// Each block is counted that is got by each of the C library's functions, once, with the bytes that were asked for and
// under its caller; and what is not given back is what is held.
func TestRecordHeap(t *testing.T) {
	r := runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "200")
	held, _, allocated := heapOf(t, r)
	wantHeap(t, "held", held, heldOf(200))
	wantHeap(t, "allocated", allocated, allocatedOf(200))
	if r.stats.Lost != 0 || r.stats.Complete != r.stats.Samples || !strings.Contains(r.stderr, "\nheld at the end: 1.3 MiB in 702 blocks; at most: 1.3 MiB, after ") || !strings.Contains(r.stderr, "; allocated: 6.6 MiB\n") {
		t.Errorf("lost %d, complete %d of %d\n%s", r.stats.Lost, r.stats.Complete, r.stats.Samples, r.stderr)
	}
	for _, want := range []string{
		"\nheld by (each function is called by the next):\n   61.7 %  800.0 KiB  posix_aligned < main < __libc_start_call_main < ",
		"\nallocated by (each function is called by the next):\n   29.1 %    1.9 MiB  grow < main < ", " %    1.9 MiB  grow_array < main < ",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%q is not told:\n%s", want, r.stderr)
		}
	}
}

// Kernels before 6.6 take probes one by one.
func TestRecordHeapOneByOne(t *testing.T) {
	t.Parallel()
	r := runRecordBy(t, swbpf58(t), "--heap", "-c", "1", "--", buildHeap(t), "200")
	held, _, allocated := heapOf(t, r)
	wantHeap(t, "held", held, heldOf(200))
	wantHeap(t, "allocated", allocated, allocatedOf(200))
}

// A sample each so many bytes stands for these: what they come to is all that was allocated, but for the last few, and
// what is held is right within the error of sampling.
func TestRecordHeapSampled(t *testing.T) {
	r := runRecord(t, "--heap", "-c", "20000", "--", buildHeap(t), "2000")
	var held, allocated, wantHeld, wantAllocated float64
	gotHeld, _, gotAllocated := heapOf(t, r)
	for _, c := range []struct {
		sum *float64
		of  byCaller
	}{{&held, gotHeld}, {&allocated, gotAllocated}, {&wantHeld, heldOf(2000)}, {&wantAllocated, allocatedOf(2000)}} {
		for _, v := range c.of {
			*c.sum += float64(v[1])
		}
	}
	t.Logf("held %.0f of %.0f bytes, allocated %.0f of %.0f, %d samples", held, wantHeld, allocated, wantAllocated, r.stats.Samples)
	// Blocks that are larger are nearly all sampled, and of 13.3 MB that are held one in 20 KB: some 650 samples.
	if allocated < 0.98*wantAllocated || allocated > 1.02*wantAllocated {
		t.Errorf("allocated %.0f bytes, want %.0f", allocated, wantAllocated)
	}
	if held < 0.8*wantHeld || held > 1.2*wantHeld {
		t.Errorf("held %.0f bytes, want %.0f", held, wantHeld)
	}
	if n := r.stats.Events[heldEvent].Samples; n < 500 || n > 800 {
		t.Errorf("%d samples of %.0f bytes held", n, wantHeld)
	}
}

// What a thread gives back that another one got is given back; what a program held that another has
// replaced is nothing any more.
func TestRecordHeapEnds(t *testing.T) {
	held, _, allocated := heapOf(t, runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "100", "threads"))
	wantHeap(t, "held, got by another thread", held, byCaller{"get": {100, 40000}})
	wantHeap(t, "allocated by another thread", allocated, byCaller{"get": {1000, 400000}})

	held, _, allocated = heapOf(t, runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "100", "exec"))
	wantHeap(t, "held after an exec", held, heldOf(10))
	if want := allocatedOf(100)["keep"][0] + 10; allocated["keep"][0] != want {
		t.Errorf("allocated before and after an exec: %v, want %d in keep", allocated, want)
	}
}

// What processes held at their ends is held to the end of the recording, also where they are so many blocks that the
// kernel side is to forget them.
func TestRecordHeapOfEnded(t *testing.T) {
	t.Parallel()
	const processes, times = 4, 2000
	r := runRecord(t, "--heap", "-c", "1", "--", "sh", "-c", fmt.Sprintf("for i in $(seq %d); do %s %d; done", processes, buildHeap(t), times))
	held, peak, allocated := heapOf(t, r)
	for _, c := range []struct {
		what      string
		got, want byCaller
		least     int64 // of processes
	}{{"held", held, heldOf(times), processes}, {"allocated", allocated, allocatedOf(times), processes}} {
		for function, want := range c.want {
			want[0], want[1] = c.least*want[0], c.least*want[1]
			if c.got[function] != want {
				t.Errorf("%s by %s: %v, want %v", c.what, function, c.got[function], want)
			}
		}
	}
	// One after the other: at most one of them held something.
	if most := heldOf(times)["keep"]; peak["keep"][0] > most[0] || peak["keep"][0] < most[0]-most[0]/peakStep-2 {
		t.Errorf("keep held at most %v, want %v", peak["keep"], most)
	}
	blocks := int64(0)
	for _, v := range heldOf(times) {
		blocks += processes * v[0]
	}
	if want := "\n  (of processes that ended meanwhile, what they held then counts as held at the end; at most was held at one time)\n"; !strings.Contains(r.stderr, want) {
		t.Errorf("it is not told:\n%s", r.stderr)
	}
	if r.stats.Lost != 0 || r.stats.Processes < processes || blocks < maxPast*3/2 {
		t.Errorf("lost %v, %d processes, %d blocks", r.stats.LostByReason, r.stats.Processes, blocks)
	}
}

// What was held when that was most is known although it was given back.
func TestRecordHeapPeak(t *testing.T) {
	r := runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "100", "peak")
	held, peak, allocated := heapOf(t, r)
	wantHeap(t, "held", held, heldOf(100))
	want := byCaller{"get_much": {1000, 10000000}}
	for b := range peak["get_much"] { // or up to a fiftieth less
		if got, want := peak["get_much"][b], want["get_much"][b]; got > want || got < want-want/peakStep {
			t.Errorf("at most held: %v, want %v", peak, want)
		}
	}
	delete(peak, "get_much")
	wantHeap(t, "at most held, beside get_much", peak, byCaller{})
	maps.Copy(want, allocatedOf(100))
	wantHeap(t, "allocated", allocated, want)
	if !strings.Contains(r.stderr, "; at most: 9.") || !strings.Contains(r.stderr, "\nheld at most by (each function is called by the next):\n  100.0 %    9.") {
		t.Errorf("it is not told:\n%s", r.stderr)
	}
}

// The allocators are those of the process: here one that calls the C library's, which count together as one.
func TestRecordHeapOfProcess(t *testing.T) {
	t.Parallel()
	for _, preload := range []string{"", buildShim(t)} {
		target := exec.Command(buildHeap(t), "100", "wait")
		target.Env = append(os.Environ(), "LD_PRELOAD="+preload)
		in, out := startWaiting(t, target)
		r := runRecord(t, "--heap", "-c", "1", "-p", fmt.Sprint(target.Process.Pid), "--", "sh", "-c", fmt.Sprintf("echo > %s; read x < %s", in, out))
		held, _, allocated := heapOf(t, r)
		wantHeap(t, preload+" held", held, heldOf(100))
		wantHeap(t, preload+" allocated", allocated, allocatedOf(100))
	}
}

// The allocator of a command is seen from its start on, whose ever it is.
func TestRecordHeapOfCommand(t *testing.T) {
	testenv.Needs(t, "musl-gcc")
	musl := build(t, "heap-musl", "musl-gcc", "-O1", "-g", "-fno-builtin", "-o", "OUT", "testdata/targets/heap.c")
	shim := buildShim(t)
	linked := func(name string, flags ...string) string {
		return build(t, name, append([]string{"gcc", "-O1", "-g", "-fno-builtin", "-pthread", "-o", "OUT", "testdata/targets/heap.c"}, flags...)...)
	}
	byPath := linked("heap-by-path", shim)
	byName := linked("heap-by-name", "-L"+filepath.Dir(shim), "-l:"+filepath.Base(shim), "-Wl,-rpath,$ORIGIN")
	for _, c := range []struct{ program, preload string }{{musl, ""}, {byPath, ""}, {byName, ""}, {buildHeap(t), shim}} {
		swbpf(t)
		t.Setenv("LD_PRELOAD", c.preload)
		held, _, allocated := heapOf(t, runRecord(t, "--heap", "-c", "1", "--", c.program, "200"))
		os.Unsetenv("LD_PRELOAD")
		wantHeap(t, c.program+" "+c.preload+": held", held, heldOf(200))
		wantHeap(t, c.program+" "+c.preload+": allocated", allocated, allocatedOf(200))
	}
}

// Allocators are seen, too, of programs that are started while it is recorded, and of libraries that are loaded then:
// from soon after they are met.
func TestRecordHeapLater(t *testing.T) {
	static := build(t, "heap-static", "gcc", "-O1", "-g", "-fno-builtin", "-pthread", "-static", "-o", "OUT", "testdata/targets/heap.c")
	script := func(preload, program string) []string {
		return []string{"--heap", "-c", "1", "--", "sh", "-c", fmt.Sprintf("export LD_PRELOAD=%s; %s 0; sleep 0.3; %s 200", preload, program, program)}
	}
	for what, args := range map[string][]string{"static program": script("", static), "library": script(buildShim(t), buildHeap(t))} {
		r := runRecord(t, args...)
		if r.stats.AllocatorsMissed > 0 {
			testenv.Lacks(t, "the kernel takes probes one by one")
		}
		held, _, allocated := heapOf(t, r)
		wantHeap(t, what+": held", held, heldOf(200))
		wantHeap(t, what+": allocated", allocated, allocatedOf(200))
	}

	r := runRecordBy(t, swbpf58(t), script("", static)...)
	held, _, _ := heapOf(t, r)
	wantHeap(t, "held, one by one", held, byCaller{})
	if r.stats.AllocatorsMissed != 1 || !strings.Contains(r.stderr, "\n  (allocators of 1 file started or loaded meanwhile are not seen)\n") {
		t.Errorf("allocators of %d files missed, want 1:\n%s", r.stats.AllocatorsMissed, r.stderr)
	}
}

// A recorder that is killed leaves no probe behind, and the program goes on.
func TestRecordHeapKilled(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, program := range []string{swbpf(t), swbpf58(t)} {
		target := exec.Command(buildHeap(t), "1000", "wait")
		in, out := startWaiting(t, target)
		if hasProbes(t, target.Process.Pid) {
			t.Fatal("there are probes before it is recorded")
		}
		cmd := exec.Command(program, "record", "--heap", "-o", filepath.Join(t.TempDir(), "p.pb.gz"),
			"-p", fmt.Sprint(target.Process.Pid), "--", "sh", "-c", "echo on; exec sleep 1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		_, on := testenv.Start(t, cmd)
		if _, err := io.ReadFull(on, make([]byte, 3)); err != nil {
			t.Fatalf("the command did not run: %v", err)
		}
		if !hasProbes(t, target.Process.Pid) {
			t.Error("there are no probes while it is recorded")
		}
		if err := os.WriteFile(in, []byte("\n"), 0); err != nil {
			t.Fatal(err)
		}
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if told := string(readPart(t, out, len("done\n"), 0)); told != "done\n" {
			t.Errorf("it tells %q", told)
		}
		waitFor(t, "probes to go", func() bool { return !hasProbes(t, target.Process.Pid) })
	}
}

// hasProbes reports whether the code of a process's C library is not that of the file.
func hasProbes(t *testing.T, pid int) bool {
	t.Helper()
	mappings, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", pid), true)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(mappings, func(m procstate.MapsEntry) bool { return strings.HasPrefix(filepath.Base(m.Path), "libc.so") })
	if i < 0 {
		t.Fatal("it has no C library")
	}
	m := mappings[i]
	is := readPart(t, fmt.Sprintf("/proc/%d/mem", pid), int(m.End-m.Start), int64(m.Start))
	return !bytes.Equal(is, readPart(t, m.Path, len(is), int64(m.Offset)))
}

// readPart reads some bytes of a file from an offset on, which is 0 for a pipe; past its end they are 0.
func readPart(t *testing.T, path string, n int, offset int64) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if offset > 0 {
		_, err = f.ReadAt(b, offset)
	} else {
		_, err = io.ReadFull(f, b)
	}
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

// startWaiting starts testdata/targets/heap.c, whose standard input and output are two pipes with names, and waits until it
// waits.
func startWaiting(t *testing.T, c *exec.Cmd) (in, out string) {
	t.Helper()
	dir := t.TempDir()
	in, out = filepath.Join(dir, "in"), filepath.Join(dir, "out")
	testenv.Run(t, exec.Command("mkfifo", in, out))
	var files []*os.File
	for _, name := range []string{in, out} {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	c.Stdin, c.Stdout = files[0], files[1]
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := files[1].Read(make([]byte, len("wait\n"))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		for _, f := range files {
			f.Close()
		}
	})
	return in, out
}

// A command that allocates nothing has nothing to show, and no time at which that was most.
func TestRecordHeapOfNothing(t *testing.T) {
	nothing := build(t, "nothing", "gcc", "-nostdlib", "-static", "-O1", "-o", "OUT", "testdata/targets/nothing.c")
	r := runRecord(t, "--heap", "--", nothing)
	if !strings.Contains(r.stderr, "\nheld at the end: 0 bytes; at most: 0 bytes; allocated: 0 bytes\n") || !strings.Contains(r.stderr, "(nothing was allocated, ") {
		t.Errorf("%s", r.stderr)
	}
}

// What goes with --heap, and what does not.
func TestRecordHeapUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--heap -e page-faults", "--heap excludes"},
		{"--heap -F 99", "--heap excludes"},
		{"--heap --off-cpu", "--heap excludes"},
		{"--heap --wall", "--heap excludes"},
		{"--heap -C 0", "-C excludes --heap"},
		{"--heap --every 1s", "--every excludes --heap"},
		{"-e heap,page-faults", "--heap goes with no other event"},
		{"-e heap -F 99 -- true", "only timers and counters are sampled by frequency"},
		{"--heap -p 4194304", "process 4194304: no such process"},
	} {
		out, err := exec.Command(swbpf(t), append([]string{"record", "--format", "folded", "-o", os.DevNull}, strings.Fields(c.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("record %s: %v, %s", c.args, err, out)
		}
	}
}
