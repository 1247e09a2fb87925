package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

func buildHeap(t *testing.T) string {
	return build(t, "heap", "gcc", "-O1", "-g", "-fno-builtin", "-pthread", "-o", "OUT", "testdata/targets/heap.c")
}

// heapOf is what the functions of testdata/targets/heap.c hold and have allocated, in blocks and bytes: those that
// call an allocator.
func heapOf(t *testing.T, r *recording) (held, allocated map[string][2]int64) {
	t.Helper()
	held, allocated = map[string][2]int64{}, map[string][2]int64{}
	for i, typ := range r.profile.SampleType {
		want := [][2]string{{"held_samples", "count"}, {"held", "bytes"}, {"allocated_samples", "count"}, {"allocated", "bytes"}}
		if want[i] != [2]string{typ.Type, typ.Unit} {
			t.Fatalf("values are %v", r.profile.SampleType)
		}
	}
	for _, s := range r.profile.Sample {
		stack := stackOf(s)
		leaf := stack[len(stack)-1]
		if leaf == "reallocarray" { // it calls realloc
			leaf = stack[len(stack)-2]
		}
		for i, in := range []map[string][2]int64{held, allocated} {
			if s.Value[2*i] != 0 {
				in[leaf] = [2]int64{in[leaf][0] + s.Value[2*i], in[leaf][1] + s.Value[2*i+1]}
			}
		}
	}
	return held, allocated
}

// wantHeap checks these, if each function was called n times.
func wantHeap(t *testing.T, what string, got map[string][2]int64, want map[string][2]int64) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("%s: %v\nwant %v", what, got, want)
	}
}

// heldOf is what testdata/targets/heap.c holds that has called each function n times; n is even.
func heldOf(n int64) map[string][2]int64 {
	return map[string][2]int64{
		"keep": {n, n * 1000}, "zeroed": {n, n * 700}, "aligned": {n, n * 640}, "posix_aligned": {n / 2, n / 2 * 8192},
		"grow": {1, n * 100}, "grow_array": {1, n * 100},
	}
}

// allocatedOf is all that it has got.
func allocatedOf(n int64) map[string][2]int64 {
	return map[string][2]int64{
		"keep": {n, n * 1000}, "zeroed": {n, n * 700}, "aligned": {n, n * 640}, "posix_aligned": {n, n * 8192},
		"grow": {n, n * (n + 1) / 2 * 100}, "grow_array": {n, n * (n + 1) / 2 * 100},
		"give_back": {n, n * 3000}, "memaligned": {n, n * 500}, "nothing": {n, n * 200},
	}
}

// Each block is counted that is got by each of the C library's functions, once, with the bytes that were asked for and
// under its caller; and what is not given back is what is held.
func TestRecordHeap(t *testing.T) {
	r := runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "200")
	held, allocated := heapOf(t, r)
	wantHeap(t, "held", held, heldOf(200))
	wantHeap(t, "allocated", allocated, allocatedOf(200))
	if r.stats.Lost != 0 || r.stats.Complete != r.stats.Samples || !strings.Contains(r.stderr, "\nheld at the end: 1.3 MiB in about 702 blocks, of 6.5 MiB that were allocated\n") {
		t.Errorf("lost %d, complete %d of %d\n%s", r.stats.Lost, r.stats.Complete, r.stats.Samples, r.stderr)
	}
	for _, want := range []string{
		"\nheld by (each function is called by the next):\n   61.7 %  800.0 KiB  posix_aligned < main < __libc_start_call_main < ",
		"\nallocated by (each function is called by the next):\n   29.3 %    1.9 MiB  grow < main < ", " %    1.9 MiB  grow_array < main < ",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%q is not told:\n%s", want, r.stderr)
		}
	}
}

// Kernels before 6.6 take probes one by one.
func TestRecordHeapOneByOne(t *testing.T) {
	r := runRecordBy(t, swbpf58(t), "--heap", "-c", "1", "--", buildHeap(t), "200")
	held, allocated := heapOf(t, r)
	wantHeap(t, "held", held, heldOf(200))
	wantHeap(t, "allocated", allocated, allocatedOf(200))
}

// A sample each so many bytes stands for these: what they come to is all that was allocated, but for the last few, and
// what is held is right within the error of sampling.
func TestRecordHeapSampled(t *testing.T) {
	r := runRecord(t, "--heap", "-c", "20000", "--", buildHeap(t), "2000")
	var held, allocated, wantHeld, wantAllocated float64
	gotHeld, gotAllocated := heapOf(t, r)
	for _, c := range []struct {
		sum *float64
		of  map[string][2]int64
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
	held, allocated := heapOf(t, runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "100", "threads"))
	delete(held, "calloc") // the dynamic loader's, for the thread
	delete(allocated, "calloc")
	delete(held, "allocate_dtv")
	delete(allocated, "allocate_dtv")
	wantHeap(t, "held, got by another thread", held, map[string][2]int64{"get": {100, 40000}})
	wantHeap(t, "allocated by another thread", allocated, map[string][2]int64{"get": {1000, 400000}})

	held, allocated = heapOf(t, runRecord(t, "--heap", "-c", "1", "--", buildHeap(t), "100", "exec"))
	wantHeap(t, "held after an exec", held, heldOf(10))
	if want := allocatedOf(100)["keep"][0] + 10; allocated["keep"][0] != want {
		t.Errorf("allocated before and after an exec: %v, want %d in keep", allocated, want)
	}
}

// The allocators are those of the process: here one that calls the C library's, which count together as one.
func TestRecordHeapOfProcess(t *testing.T) {
	shim := build(t, "libshimmalloc.so", "gcc", "-O1", "-shared", "-fPIC", "-o", "OUT", "testdata/targets/shimmalloc.c")
	for _, preload := range []string{"", shim} {
		target := exec.Command(buildHeap(t), "100", "wait")
		target.Env = append(os.Environ(), "LD_PRELOAD="+preload)
		in, out := startWaiting(t, target)
		r := runRecord(t, "--heap", "-c", "1", "-p", fmt.Sprint(target.Process.Pid), "--", "sh", "-c", fmt.Sprintf("echo > %s; read x < %s", in, out))
		held, allocated := heapOf(t, r)
		delete(allocated, "_IO_file_doallocate") // of getchar
		delete(held, "_IO_file_doallocate")
		wantHeap(t, preload+" held", held, heldOf(100))
		wantHeap(t, preload+" allocated", allocated, allocatedOf(100))
	}
}

// startWaiting starts a command whose standard input and output are two pipes with names.
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
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		for _, f := range files {
			f.Close()
		}
	})
	return in, out
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
	} {
		out, err := exec.Command(swbpf(t), append([]string{"record", "-o", os.DevNull}, strings.Fields(c.args)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("record %s: %v, %s", c.args, err, out)
		}
	}
}
