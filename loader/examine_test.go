package loader

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestExamine checks the findings against what a Session makes of the same
// machine: nothing required is missing exactly where recording works.
func TestExamine(t *testing.T) {
	kernelTest(t)
	if n, err := Rehearse(); err != nil || n == 0 {
		t.Errorf("rehearsal: %d samples, %v", n, err)
	}
	for _, f := range append(ExamineSystem(), ExamineSampling()...) {
		if f.Name == "" || f.Found == "" {
			t.Errorf("%+v: no name, or nothing found", f)
		}
		if f.Level != OK && f.Without == "" {
			t.Errorf("%s: %s, but nothing says what it costs", f.Name, f.Level)
		}
		if f.Required && f.Level == Missing {
			t.Errorf("recording works without %s, which is required: %s", f.Name, f.Found)
		}
	}
}

// TestExamineUnprivileged checks what is found missing without privileges, and
// with the two capabilities that recording needs.
func TestExamineUnprivileged(t *testing.T) {
	kernelTest(t)
	for _, c := range []struct {
		caps  []uintptr
		works bool
	}{
		{nil, false},
		{[]uintptr{unix.CAP_BPF}, false},
		{[]uintptr{unix.CAP_BPF, unix.CAP_PERFMON}, true},
	} {
		out, err := asNobody(t, "examine", c.caps...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var findings []struct {
			Name, State string
			Required    bool
		}
		if err := json.Unmarshal([]byte(out), &findings); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		missing := map[string]bool{}
		for _, f := range findings {
			if f.Required && f.State == "missing" {
				missing[f.Name] = true
			}
		}
		if c.works && len(missing) > 0 {
			t.Errorf("capabilities %v: missing %v, but recording works", c.caps, missing)
		}
		if !c.works && (!missing["capabilities"] || missing["side-band events"] != sidebandRestricted(t) || missing["kernel"] || missing["BTF"]) {
			t.Errorf("capabilities %v: missing %v", c.caps, missing)
		}
	}
}

// printFindings is the role of TestExamineUnprivileged.
func printFindings() error {
	return json.NewEncoder(os.Stdout).Encode(append(ExamineSystem(), ExamineSampling()...))
}

func TestCgroupLimits(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"memory.max":                       "max",
		"a/memory.max":                     "1073741824",
		"a/cpu.max":                        "150000 100000",
		"a/b/memory.max":                   "max",
		"a/b/cpu.max":                      "max 100000",
		"memory/c/memory.limit_in_bytes":   "268435456",
		"memory/c/d/memory.limit_in_bytes": "9223372036854771712",
		"memory/bad/memory.limit_in_bytes": "many",
		"zero/cpu.max":                     "100000 0",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		list   string
		memory uint64
		cpus   float64
	}{
		{"0::/", 0, 0},
		{"0::/a/b\n", 1 << 30, 1.5},
		{"9:name=systemd:/\n4:memory:/c/d\n0::/\n", 256 << 20, 0},
		{"4:memory:/bad\n", 0, 0},
		{"0::/zero\n", 0, 0},
		{"0::/../../a\n", 1 << 30, 1.5},
		{"malformed\n\n", 0, 0},
	} {
		memory, cpus := cgroupLimits(root, c.list)
		if memory != c.memory || cpus != c.cpus {
			t.Errorf("%q: %d bytes, %v CPUs; want %d, %v", c.list, memory, cpus, c.memory, c.cpus)
		}
	}
}

func TestCausesAndRemedies(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("open: %w", unix.ENOENT), "no such file or directory"},
		{&MissingError{What: "a thing", Err: fmt.Errorf("x: %w", unix.EINVAL)}, "invalid argument"},
		{&MissingError{What: "a thing"}, "no a thing"},
		{fmt.Errorf("one\ntwo"), "one"},
	} {
		if got := causeOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
	if got := remedyOf(fmt.Errorf("x: %w", &MissingError{Remedy: "get it"}), "other"); got != "get it" {
		t.Errorf("remedy %q", got)
	}
	if got := remedyOf(unix.EINVAL, "other"); got != "other" {
		t.Errorf("remedy %q", got)
	}
}

// A kernel that is too old is told of by what is missing, as an error and as a cause.
func TestTooOldKernel(t *testing.T) {
	assumedRelease = "5.7.19-old"
	t.Cleanup(func() { assumedRelease = "" })
	err := checkSystem()
	if err == nil {
		t.Fatal("it will do")
	}
	for _, c := range [][2]string{
		{err.Error(), "missing Linux 5.8 or later: this is 5.7.19-old; run a newer kernel"},
		{causeOf(err), "no Linux 5.8 or later: this is 5.7.19-old"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

// CAP_PERFMON overrides perf_event_paranoid up to 2, what distributions have added not
// everywhere.
func TestParanoidFound(t *testing.T) {
	const perfmon, admin = 1 << unix.CAP_PERFMON, 1 << unix.CAP_SYS_ADMIN
	for _, c := range []struct {
		level  int
		caps   uint64
		status Level
		word   string
	}{
		{-1, 0, OK, ""},
		{2, 0, Limited, "have CAP_PERFMON"},
		{2, perfmon, OK, ""},
		{3, perfmon, Limited, "cap_sys_admin"},
		{4, perfmon, Limited, "kernel.perf_event_paranoid=2"},
		{4, perfmon | admin, OK, ""},
		{3, admin, OK, ""},
	} {
		f := found("perf_event_paranoid", "").ofParanoid(c.level, c.caps)
		if f.Level != c.status || !strings.Contains(f.Remedy, c.word) || (c.word == "") != (f.Remedy == "") {
			t.Errorf("%d with capabilities %#x: %+v", c.level, c.caps, f)
		}
		if overrides := strings.Contains(f.Found, "overridden"); overrides != (c.caps != 0 && c.status == OK) {
			t.Errorf("%d with capabilities %#x: %s", c.level, c.caps, f.Found)
		}
	}
}

// A refusal of events is laid to perf_event_paranoid where that is above 2, and only
// without CAP_SYS_ADMIN.
func TestRefusedByParanoid(t *testing.T) {
	const both, admin = 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON, 1 << unix.CAP_SYS_ADMIN
	for _, c := range []struct {
		caps  uint64
		level int
		doing string
		told  bool
	}{
		{both, 3, "open event cycles", true},
		{both, 2, "open event cycles", false},
		{both | admin, 3, "open event cycles", false},
		{both, 3, "load the sampling program", false},
	} {
		err := refusedTo(c.caps, c.level, unix.EACCES, c.doing)
		if told := err.Remedy == adminRemedy; told != c.told || told != strings.Contains(err.What, "paranoid is 3") {
			t.Errorf("capabilities %#x, %d, %s: %v", c.caps, c.level, c.doing, err)
		}
	}
}

// The remedy for cgroups that cannot be opened by their IDs is that of the cause.
func TestByIDRemedy(t *testing.T) {
	for _, c := range []struct {
		err                    error
		allowed, first, filter bool
		want                   string
	}{
		{unix.EPERM, false, true, true, "CAP_DAC_READ_SEARCH"},
		{unix.EPERM, true, false, true, "outside"},
		{unix.EPERM, true, true, true, "seccomp"},
		{unix.EPERM, true, true, false, "security module"},
		{unix.ENOSYS, true, true, true, "seccomp"},
		{unix.ENOSYS, true, true, false, "CONFIG_FHANDLE"},
		{unix.EMFILE, false, true, false, "ulimit -n"},
		{unix.ESTALE, false, true, false, ""},
	} {
		got := byIDRemedy(fmt.Errorf("cgroup 1: %w", c.err), c.allowed, c.first, c.filter)
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%+v: %q", c, got)
		}
	}
	c, err := OpenCgroups()
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	defer c.Close()
	if path, err := c.find(1 << 62); err == nil || path != "" || causeOf(err) == err.Error() {
		t.Errorf("a cgroup that is not there: %q, %v", path, err)
	}
}

func TestCapabilitiesFound(t *testing.T) {
	all := uint64(1<<41 - 1)
	for _, c := range []struct {
		caps uint64
		want Level
		says string
	}{
		{0, Missing, "CAP_BPF and CAP_PERFMON"},
		{all, OK, ""},
		{1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON, Limited, "CAP_SYS_PTRACE"},
		{all &^ (1 << unix.CAP_SYSLOG), Limited, "CAP_SYSLOG"},
	} {
		f := found("capabilities", "").ofCaps(c.caps)
		if f.Level != c.want || !strings.Contains(f.Without, c.says) {
			t.Errorf("%#x: %+v", c.caps, f)
		}
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 8 << 20: "8 MiB", 1 << 62: "4194304 TiB",
	} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
