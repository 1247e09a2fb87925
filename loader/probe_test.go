package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// asNobody runs a role of the test binary as an unprivileged user with some
// capabilities, and returns what it printed.
func asNobody(t *testing.T, role string, caps ...uintptr) (string, error) {
	t.Helper()
	// The user must be able to reach the program.
	dir, err := os.MkdirTemp("/tmp", "swbpf-nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "test")
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(exe, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "SWBPF_TEST_ROLE="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
		AmbientCaps: caps,
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// CAP_BPF and CAP_PERFMON are all it takes to sample by a timer.
func TestTwoCapabilitiesSuffice(t *testing.T) {
	kernelTest(t)
	if out, err := asNobody(t, "sample", unix.CAP_BPF, unix.CAP_PERFMON); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The side-band fits in what each user may lock for perf events. All CPUs share
// that: the first must not take the room of the last.
func TestSidebandWithoutLockedMemory(t *testing.T) {
	kernelTest(t)
	if out, err := asNobody(t, "sideband", unix.CAP_BPF, unix.CAP_PERFMON); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func openSidebandUnlocked() error {
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
		return err
	}
	s, err := OpenSideband(SidebandConfig{RingBytes: 64 << 20})
	if err != nil {
		return err
	}
	defer s.Close()
	for cpu, ring := range s.rings {
		if len(ring.data) != s.ringBytes {
			return fmt.Errorf("ring of CPU %d: %d bytes, those of others %d", cpu, len(ring.data), s.ringBytes)
		}
	}
	return nil
}

func TestMissingCapabilities(t *testing.T) {
	kernelTest(t)
	for _, c := range []struct {
		caps []uintptr
		want string
	}{
		{nil, "missing CAP_BPF and CAP_PERFMON; run as root"},
		{[]uintptr{unix.CAP_BPF}, "missing CAP_PERFMON; run as root"},
		{[]uintptr{unix.CAP_PERFMON}, "missing CAP_BPF; run as root"},
	} {
		out, err := asNobody(t, "sample", c.caps...)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("capabilities %v: %v: %q, want %q", c.caps, err, out, c.want)
		}
	}
}

// openEvent opens an event by its name.
func openEvent(name string) error {
	e, err := ParseEvent(name)
	if err != nil {
		return err
	}
	s, err := Open(Config{Event: e})
	if err != nil {
		return err
	}
	return s.Close()
}

// What is said to suffice for an event beyond the two capabilities suffices.
func TestCapabilitiesOfEvents(t *testing.T) {
	kernelTest(t)
	two := []uintptr{unix.CAP_BPF, unix.CAP_PERFMON}
	mounted := slices.ContainsFunc(tracefsPlaces, func(dir string) bool {
		_, err := os.Stat(dir + "/events")
		return err == nil
	})
	for _, c := range []struct {
		event, remedy string
		more          uintptr
	}{
		{"sched:sched_switch", "setcap cap_bpf,cap_perfmon,", unix.CAP_DAC_READ_SEARCH},
		{"uprobe:libc:malloc", "setcap cap_sys_admin,", unix.CAP_SYS_ADMIN},
	} {
		if c.more == unix.CAP_DAC_READ_SEARCH && !mounted {
			continue // who may not mount it is told to have it mounted
		}
		if out, err := asNobody(t, "event "+c.event, two...); err != nil && !strings.Contains(out, c.remedy) {
			t.Errorf("%s: %v: %q", c.event, err, out)
		}
		if out, err := asNobody(t, "event "+c.event, append(two, c.more)...); err != nil {
			t.Errorf("%s with capability %d more: %v: %q", c.event, c.more, err, out)
		}
	}
}

// sampleMyself samples this process, which burns CPU time meanwhile.
func sampleMyself() error {
	s, err := Open(Config{Frequency: 997, PIDs: []int{os.Getpid()}, Kernel: true, RunStats: true})
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.Start(); err != nil {
		return err
	}
	n, user := 0, 0
	for end := time.Now().Add(patience); user < 20; {
		for i := range uint64(1 << 22) {
			sink += i
		}
		err := s.ReadSamples(monotonic(), func(p *Sample) error {
			n++
			if int(p.PID) != os.Getpid() {
				return fmt.Errorf("sample of process %d", p.PID)
			}
			if p.HasUser() && len(p.Regions[0].Data) > 0 {
				user++
			}
			return nil
		})
		if err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d samples, %d with a stack", n, user)
		}
	}
	return nil
}

// Where kernels want CAP_SYS_ADMIN for events, the command that gives capabilities names it.
func TestSetcapFor(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for level, want := range map[int]bool{-1: false, 0: false, 2: false, 3: true, 4: true} {
		s := setcapFor(level)
		if got := strings.Contains(s, ",cap_sys_admin+ep"); got != want || !strings.HasPrefix(s, "setcap cap_bpf,cap_perfmon,") || !strings.HasSuffix(s, "+ep "+self) {
			t.Errorf("%d: %s", level, s)
		}
	}
}

func TestMissingErrorText(t *testing.T) {
	e := &MissingError{What: "a thing", Remedy: "get it", Err: unix.EPERM}
	if got, want := e.Error(), "missing a thing (operation not permitted); get it"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(e, unix.EPERM) {
		t.Error("the cause is lost")
	}
}

func TestDiagnose(t *testing.T) {
	var missing *MissingError
	if err := diagnose(fmt.Errorf("wrapped: %w", unix.EPERM), "open"); !errors.As(err, &missing) || !errors.Is(err, unix.EPERM) {
		t.Errorf("permission denied is diagnosed as %v", err)
	}
	if err := diagnose(missing, "open"); err != error(missing) {
		t.Errorf("a diagnosis is diagnosed as %v", err)
	}
	if err := diagnose(unix.EMFILE, "open"); !errors.As(err, &missing) || !strings.Contains(err.Error(), "ulimit") {
		t.Errorf("a low limit on files is diagnosed as %v", err)
	}
	if err := diagnose(unix.ENOMEM, "load"); !errors.As(err, &missing) || !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "cgroup") {
		t.Errorf("no memory is diagnosed as %v", err)
	}
	for _, err := range []error{fmt.Errorf("list of CPUs: %w", &fs.PathError{Op: "open", Path: onlineCPUsPath, Err: unix.EMFILE}), diagnose(unix.ENOMEM, "load")} {
		if told := withFilesMissing(err); !errors.Is(told, err) || !strings.Contains(told.Error(), "raise") || errors.As(err, &missing) && told != err {
			t.Errorf("%v is told as %v", err, told)
		}
	}
	missing = nil
	if err := diagnose(unix.EBUSY, "open"); errors.As(err, &missing) || !errors.Is(err, unix.EBUSY) {
		t.Errorf("busy is diagnosed as %v", err)
	}
}

// Kernels before 5.11 charge maps to the limit on locked memory.
func TestDiagnoseLockedMemory(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: min(64<<10, limit.Max), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		assumedRelease = ""
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
			t.Error(err)
		}
	}()
	for release, want := range map[string]bool{"5.10.0-32-amd64": true, "5.11.0": false} {
		assumedRelease = release
		err := diagnoseLoad(unix.EPERM)
		var missing *MissingError
		if !errors.As(err, &missing) || strings.Contains(missing.Remedy, "ulimit -l") != want || !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", release, err)
		}
	}
}

// openWithFiles opens a session with a limit on open files.
func openWithFiles(limit string) error {
	n, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		return err
	}
	return openEvent("cpu-clock")
}

// Wherever the room for open files ends while a session is opened, that is what
// is said, whatever the part that met it makes of it.
func TestTooFewFiles(t *testing.T) {
	t.Parallel()
	kernelTest(t)
	step := 6
	if testenv.Long() {
		step = 2
	}
	for limit := 16; limit <= 76; limit += step {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("SWBPF_TEST_ROLE=files %d", limit))
		out, err := cmd.CombinedOutput()
		if err == nil && limit > 16 {
			return
		}
		if err == nil || !strings.Contains(string(out), "missing room for open files") || !strings.Contains(string(out), "ulimit -n") {
			t.Errorf("limit %d: %v: %s", limit, err, out)
		}
	}
}

func TestLackingCaps(t *testing.T) {
	bit := func(caps ...int) (set uint64) {
		for _, c := range caps {
			set |= 1 << c
		}
		return set
	}
	for _, c := range []struct {
		caps uint64
		want string
	}{
		{0, "CAP_BPF CAP_PERFMON"},
		{bit(unix.CAP_BPF), "CAP_PERFMON"},
		{bit(unix.CAP_PERFMON), "CAP_BPF"},
		{bit(unix.CAP_PERFMON, unix.CAP_BPF), ""},
		{bit(unix.CAP_SYS_ADMIN), ""},
		{bit(unix.CAP_SYS_PTRACE), "CAP_BPF CAP_PERFMON"},
	} {
		if got := strings.Join(lackingCaps(c.caps), " "); got != c.want {
			t.Errorf("capabilities %#x: lacking %q, want %q", c.caps, got, c.want)
		}
	}
}

func TestParseRelease(t *testing.T) {
	for _, c := range []struct {
		release      string
		major, minor int
		ok           bool
	}{
		{"5.8.0", 5, 8, true},
		{"6.1.0-13-amd64", 6, 1, true},
		{"6.18-rc1+", 6, 18, true},
		{"5.10", 5, 10, true},
		{"4.19.325", 4, 19, true},
		{"6", 0, 0, false},
		{"", 0, 0, false},
		{"x.y", 0, 0, false},
		{"6.", 0, 0, false},
	} {
		major, minor, ok := parseRelease(c.release)
		if ok != c.ok || ok && (major != c.major || minor != c.minor) {
			t.Errorf("%q: %d.%d, %v", c.release, major, minor, ok)
		}
	}
}

func TestSelectedWord(t *testing.T) {
	for s, want := range map[string]string{
		"[none] integrity confidentiality\n": "none",
		"none integrity [confidentiality]\n": "confidentiality",
		"":                                   "",
		"none":                               "",
	} {
		if got := selectedWord(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

// Where the kernel is locked down, tracefs is not touched.
func TestTracefsLockedDown(t *testing.T) {
	const security = "/sys/kernel/security"
	if os.Getenv("SWBPF_TEST_LOCKED") == "" {
		if _, err := os.Stat(security); err != nil || os.Getuid() != 0 {
			testenv.Lacks(t, "cannot pretend that the kernel is locked down: user %d, %v", os.Getuid(), err)
		}
		testenv.Needs(t, "unshare")
		cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^TestTracefsLockedDown$")
		cmd.Env = append(os.Environ(), "SWBPF_TEST_LOCKED=1")
		testenv.Run(t, cmd)
		return
	}
	if err := unix.Mount("none", security, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"integrity", "confidentiality"} {
		text := strings.Replace("none integrity confidentiality\n", mode, "["+mode+"]", 1)
		if err := os.WriteFile(security+"/lockdown", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := tracepointNames()
		if locked := err != nil && strings.Contains(err.Error(), "locked down"); locked != (mode == "confidentiality") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}
