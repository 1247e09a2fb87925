package loader

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// kernelTest skips a test where this process may not load programs, and
// fails it there when SWBPF_REQUIRE_KERNEL says that it must be possible.
func kernelTest(t testing.TB) {
	t.Helper()
	err := checkSystem()
	if err == nil {
		return
	}
	testenv.Lacks(t, "%v", err)
}

// targetDir holds the targets built by this run.
var targetDir string

func TestMain(m *testing.M) {
	if role := os.Getenv("SWBPF_TEST_ROLE"); role != "" {
		os.Exit(playRole(role))
	}
	dir, err := os.MkdirTemp("", "swbpf-loader")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	targetDir = dir
	types := btf.NewCache()
	newTypes = func() *btf.Cache { return types }
	once := sync.OnceValues(gen.LoadSampler)
	loadSampler = func() (*ebpf.CollectionSpec, error) {
		spec, err := once()
		if err != nil {
			return nil, err
		}
		spec = spec.Copy()
		// Tables with room for as many threads as there may be take longer to make than most tests.
		spec.Maps[gen.SamplerMapTimes].MaxEntries, spec.Maps[gen.SamplerMapLengths].MaxEntries = 2*minTimes, minTimes
		return spec, nil
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var builds struct {
	sync.Mutex
	done map[string]error
}

// build compiles a source of testdata once with gcc and the given flags, and
// returns the program.
func build(t testing.TB, source string, flags ...string) string {
	t.Helper()
	testenv.Needs(t, "gcc")
	out := filepath.Join(targetDir, strings.TrimSuffix(source, filepath.Ext(source)))
	builds.Lock()
	defer builds.Unlock()
	err, done := builds.done[out]
	if !done {
		args := append([]string{"-o", out, filepath.Join("testdata", source)}, flags...)
		var msg []byte
		if msg, err = exec.Command("gcc", args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("gcc %s: %w\n%s", source, err, msg)
		}
		if builds.done == nil {
			builds.done = make(map[string]error)
		}
		builds.done[out] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// stackTarget is the program of testdata/stack.c.
func stackTarget(t testing.TB) string { return build(t, "stack.c", "-O2", "-pthread") }

// target is a process under test.
type target struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	pid   int
}

// startTarget starts a program and waits until it says that it is ready.
func startTarget(t testing.TB, path string, args ...string) *target {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	// A test that panics leaves nothing spinning behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, stdout := testenv.Start(t, cmd)
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		t.Fatalf("%s %v does not get ready: %v", path, args, err)
	}
	return &target{cmd: cmd, stdin: stdin, pid: cmd.Process.Pid}
}

// memory reads the target's memory as the kernel shows it in /proc.
func (p *target) memory(t testing.TB, addr uint64, n int) []byte {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, int64(addr)); err != nil {
		t.Fatalf("memory at %#x: %v", addr, err)
	}
	return b
}

// startSession opens and starts a session that ends with the test.
func startSession(t testing.TB, cfg Config) *Session {
	t.Helper()
	kernelTest(t)
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// patience bounds how long a test waits for something that must happen, on
// however busy a machine.
const patience = 2 * time.Minute

// steady tells when a thread of a program that spins has come to its loop, by
// two samples with the same registers in a row: what it did before, it did not
// do for so long.
type steady struct{ last procstate.Regs }

func (s *steady) holds(p *Sample) bool {
	same := p.Regs == s.last
	s.last = p.Regs
	return same
}

// allowedCPU is one of those that this process may run on.
func allowedCPU(t testing.TB) int {
	t.Helper()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	for cpu := range maxCPUs {
		if set.IsSet(cpu) {
			return cpu
		}
	}
	t.Fatal("no CPU")
	return 0
}

// stayOnCPU keeps the goroutine of the test on one CPU, until the test ends.
func stayOnCPU(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	one.Set(allowedCPU(t))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
}

// readUntil reads samples until fn has seen what it wants.
func readUntil(t testing.TB, s *Session, fn func(*Sample) (enough bool)) {
	t.Helper()
	errEnough := errors.New("enough")
	for end := time.Now().Add(patience); ; {
		err := s.ReadSamples(monotonic(), func(p *Sample) error {
			if fn(p) {
				return errEnough
			}
			return nil
		})
		if err == errEnough {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			st, err := s.Stats()
			t.Fatalf("the samples waited for do not come; %+v, %v", st, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// drain reads all samples that there are.
func drain(t testing.TB, s *Session, fn func(*Sample)) {
	t.Helper()
	err := s.ReadSamples(^uint64(0), func(p *Sample) error {
		fn(p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func stats(t testing.TB, s *Session) Stats {
	t.Helper()
	st, err := s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// symbolValue returns the link-time address of a symbol, by the standard library's reader.
func symbolValue(t testing.TB, path, name string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			return s.Value
		}
	}
	t.Fatalf("%s has no symbol %s", path, name)
	return 0
}

// readMainStack returns where the kernel put SP at the start of a program:
// field startstack of /proc/PID/stat.
func readMainStack(t *testing.T, pid int) uint64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	v, err := strconv.ParseUint(fields[28-3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// processState returns the letter of a process's state in /proc/PID/stat.
func processState(t *testing.T, pid int) byte {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[0]
}
