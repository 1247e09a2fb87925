package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/internal/chromium"
	"github.com/swbpf/swbpf/internal/testenv"
)

// These tests run the built command on real programs with real BPF. They are
// skipped only where the machine cannot, and SWBPF_REQUIRE_KERNEL=1 turns a
// skip into a failure.

// binDir holds what the tests build, for the whole run.
var binDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "swbpf-test-*") })

func TestMain(m *testing.M) {
	if refused := os.Getenv(refuseVariable); refused != "" {
		fmt.Fprintln(os.Stderr, runRefused(refused, os.Args[1:]))
		os.Exit(99)
	}
	code := m.Run()
	chromium.Close()
	if dir, err := binDir(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// built has a mutex for each name that build was asked for, which is held while that is made.
var built sync.Map

// build runs a compiler once for each output name and returns its path. The
// arguments may contain OUT, which stands for that path.
func build(t *testing.T, name string, command ...string) string {
	t.Helper()
	dir, err := binDir()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, name)
	making, _ := built.LoadOrStore(name, new(sync.Mutex))
	making.(*sync.Mutex).Lock()
	defer making.(*sync.Mutex).Unlock()
	if _, err := os.Stat(out); err == nil {
		return out
	}
	testenv.Needs(t, command[0])
	args := slices.Clone(command[1:])
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "OUT", out)
	}
	testenv.Run(t, exec.Command(command[0], args...))
	return out
}

func swbpf(t *testing.T) string {
	t.Helper()
	return build(t, "swbpf", "go", "build", "-o", "OUT", ".")
}

// forOthers copies the command to a directory of its own where every user may
// run it, whatever the umask.
func forOthers(t *testing.T) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "swbpf-others-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "swbpf")
	// What this process has open for writing another test's new process has, too, for a moment,
	// and nobody may run it then.
	testenv.Run(t, exec.Command("cp", swbpf(t), path))
	if err := errors.Join(os.Chmod(path, 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return path
}

// recording is what a run of the command left behind.
type recording struct {
	stats      recordStats
	profile    *pprof.Profile
	folded     string
	html       string
	stderr     string
	exit       int
	statsBytes []byte
}

// runRecord records with the given arguments and reads back all it wrote.
func runRecord(t *testing.T, args ...string) *recording {
	t.Helper()
	return runRecordBy(t, swbpf(t), args...)
}

// runRecordBy does so with some build of the command.
func runRecordBy(t *testing.T, program string, args ...string) *recording {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "recording needs root")
	}
	dir := t.TempDir()
	full := append([]string{"record",
		"-o", filepath.Join(dir, "p.pb.gz"), "-o", filepath.Join(dir, "p.folded"), "-o", filepath.Join(dir, "p.html"),
		"--stats", filepath.Join(dir, "stats.json"), "--stats-detail"}, args...)
	cmd := exec.Command(program, full...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r := &recording{stderr: stderr.String(), exit: cmd.ProcessState.ExitCode()}
	if r.exit == exitCannot {
		testenv.Lacks(t, "record: %s", r.stderr)
	}
	r.statsBytes = read(t, filepath.Join(dir, "stats.json"), r)
	if err := json.Unmarshal(r.statsBytes, &r.stats); err != nil {
		t.Fatalf("stats: %v", err)
	}
	r.folded = string(read(t, filepath.Join(dir, "p.folded"), r))
	r.html = string(read(t, filepath.Join(dir, "p.html"), r))
	r.profile, err = pprof.ParseData(read(t, filepath.Join(dir, "p.pb.gz"), r))
	if err != nil {
		t.Fatalf("pprof: %v", err)
	}
	if err := r.profile.CheckValid(); err != nil {
		t.Fatalf("pprof: %v", err)
	}
	r.checkSums(t)
	return r
}

func read(t *testing.T, path string, r *recording) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("exit status %d: %v\n%s", r.exit, err, r.stderr)
	}
	return b
}

// checkSums checks that the figures add up, among themselves and with the
// profile.
func (r *recording) checkSums(t *testing.T) {
	t.Helper()
	s := &r.stats
	sum := func(m map[string]uint64) (n uint64) {
		for v := range maps.Values(m) {
			n += v
		}
		return n
	}
	if s.Samples != s.UserSamples+s.KernelOnlySamples {
		t.Errorf("%d samples are not %d with and %d without user part", s.Samples, s.UserSamples, s.KernelOnlySamples)
	}
	if s.UserSamples != s.Complete+s.Truncated {
		t.Errorf("%d user samples are not %d complete and %d truncated", s.UserSamples, s.Complete, s.Truncated)
	}
	if s.Truncated != sum(s.TruncatedByReason) {
		t.Errorf("%d truncated, by reason %v", s.Truncated, s.TruncatedByReason)
	}
	if s.Lost != sum(s.LostByReason) {
		t.Errorf("%d lost, by reason %v", s.Lost, s.LostByReason)
	}
	var inProfile uint64
	count := 0
	if s.Event == "heap" { // all that was allocated: before it come parts of that
		count = 2 * allocatedEvent
	}
	for _, smp := range r.profile.Sample {
		inProfile += uint64(smp.Value[count])
	}
	if inProfile != s.Samples {
		t.Errorf("%d samples in the profile, %d in the figures", inProfile, s.Samples)
	}
	var inFolded uint64
	for line := range strings.Lines(r.folded) {
		var n uint64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
			t.Fatalf("folded line %q: %v", line, err)
		}
		inFolded += n
	}
	want := s.Samples
	if s.Event == "off-cpu" { // stacks are weighed by their time
		want = sum(s.OffCPUNSByState)
	} else if s.Event == "wall" || s.Weight != "" {
		want = 0
		for _, smp := range r.profile.Sample {
			want += uint64(smp.Value[len(smp.Value)-1])
		}
	} else if s.Event == "heap" {
		want = 0
		for _, smp := range r.profile.Sample {
			want += uint64(smp.Value[1])
		}
	}
	if inFolded != want {
		t.Errorf("%d in the folded stacks, %d in the figures", inFolded, want)
	}
}

// stackOf returns the names of a pprof sample's functions as symbols have
// them, root first.
func stackOf(s *pprof.Sample) []string {
	var names []string
	for _, loc := range s.Location {
		if len(loc.Line) == 0 {
			names = append(names, fmt.Sprintf("%#x", loc.Address))
		}
		for _, l := range loc.Line {
			names = append(names, l.Function.SystemName)
		}
	}
	slices.Reverse(names)
	return names
}

// wantShare checks a share of samples against a bound in percent.
func wantShare(t *testing.T, what string, part, whole uint64, percent float64) {
	t.Helper()
	share := 100 * float64(part) / float64(whole)
	t.Logf("%s: %d of %d, %.2f %%", what, part, whole, share)
	if !(share >= percent) {
		t.Errorf("%s: %d of %d samples, %.2f %%; want %g %%", what, part, whole, share, percent)
	}
}

// chainStart is how a C program's main thread begins, root first.
var chainStart = regexp.MustCompile(`^_start;(__libc_start_main[^;]*);(__libc_start_call_main);main(;|$)`)

var level30 = regexp.MustCompile(`^_ZN5chainILi(\d+)EE5levelEl$`)

// besideChain are the functions of testdata/targets/budget.h that main calls
// beside those of the chain.
var besideChain = []string{"_ZL5parseiPPc", "_ZL11cpu_secondsv"}

// checkDepth30 checks the frames that main of testdata/targets/depth30.cc calls.
func checkDepth30(calls []string) error {
	if len(calls) > 0 && slices.Contains(besideChain, calls[0]) {
		return nil
	}
	for i, name := range calls[:min(len(calls), 30)] { // level 0 calls others
		if m := level30.FindStringSubmatch(name); m == nil || m[1] != fmt.Sprint(29-i) {
			return fmt.Errorf("frame %d below main is %s", i, name)
		}
	}
	return nil
}

// checkDepth200 checks the frames that main of testdata/targets/depth200.cc calls.
func checkDepth200(calls []string) error {
	if len(calls) > 0 && slices.Contains(besideChain, calls[0]) {
		return nil
	}
	deep := 0
	for deep < len(calls) && calls[deep] == "_ZL4deepil" {
		deep++
	}
	rest := calls[deep:]
	switch {
	case deep > 200:
		return fmt.Errorf("%d levels", deep)
	case len(rest) > 0 && (deep < 200 || rest[0] != "_ZL4leafl"):
		return fmt.Errorf("level %d calls %s", deep, rest[0])
	case len(rest) > 1:
		return fmt.Errorf("leaf calls %s", rest[1])
	}
	return nil
}

// TestRecordChain checks each stack of the C++ programs against the chain
// that their source dictates.
func TestRecordChain(t *testing.T) {
	for _, tc := range []struct {
		name  string
		at99  []string                   // flags at 99 Hz, where rings are small: a recorder that is late has long stacks cut
		check func(calls []string) error // the frames called by main
	}{
		{"depth30", nil, checkDepth30},
		{"depth200", []string{"--stack-bytes", "1M"}, checkDepth200},
	} {
		for _, hz := range []int{99, 997} {
			t.Run(fmt.Sprintf("%s/%dHz", tc.name, hz), func(t *testing.T) {
				t.Parallel()
				target := build(t, tc.name, "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", "testdata/targets/"+tc.name+".cc")
				flags := []string{"-F", fmt.Sprint(hz)}
				if hz == 99 {
					flags = append(flags, tc.at99...)
				}
				r, clock := runClocked(t, flags, target, "2")
				r.wantRate(t, clock, float64(hz))
				wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99.5)
				r.wantChain(t, tc.name, tc.check)
			})
		}
	}
}

// TestRecordModifiers: with u the samples are of user space, with k of the kernel, in the same proportion as without.
func TestRecordModifiers(t *testing.T) {
	t.Parallel()
	user, kernel := make(map[string]float64), make(map[string]float64)
	for _, event := range []string{"cpu-clock:u", "cpu-clock:k", "cpu-clock"} {
		r := runRecord(t, "-F", "997", "-e", event, "--", "timeout", "0.8", "dd", "if=/dev/zero", "of=/dev/null", "bs=64", "status=none")
		for _, s := range r.profile.Sample {
			if inKernel(s.Location[0]) {
				kernel[event] += float64(s.Value[0])
			} else {
				user[event] += float64(s.Value[0])
			}
		}
	}
	u, k := user["cpu-clock:u"], kernel["cpu-clock:k"]
	if u < 100 || k < 100 || kernel["cpu-clock:u"] > 0 || user["cpu-clock:k"] > 0 {
		t.Errorf("samples of user space %v, of the kernel %v", user, kernel)
	}
	if share, both := k/(u+k), kernel["cpu-clock"]/(user["cpu-clock"]+kernel["cpu-clock"]); math.Abs(share-both) > 0.1 {
		t.Errorf("%.2f of the samples are of the kernel, and %.2f of those without modifiers", share, both)
	}
}

// wantChain checks the frames that main calls in each stack of a program.
func (r *recording) wantChain(t *testing.T, comm string, check func(calls []string) error) {
	t.Helper()
	var checked, wrong int64
	for _, s := range r.profile.Sample {
		if s.Label["comm"][0] != comm {
			continue // what starts it
		}
		names := slices.DeleteFunc(stackOf(s), func(n string) bool { return strings.HasPrefix(n, "[truncated") })
		if len(names) != len(stackOf(s)) {
			continue // short, and said so
		}
		m := chainStart.FindString(strings.Join(names, ";"))
		if m == "" {
			continue // before main: in the dynamic loader
		}
		checked += s.Value[0]
		if err := check(userPart(s, names)[4:]); err != nil {
			wrong += s.Value[0]
			t.Errorf("%v in %d samples of\n%s", err, s.Value[0], framesOf(s))
		}
	}
	wantShare(t, "stacks under main", uint64(checked), r.stats.Samples, 98)
	if wrong > 0 {
		t.Errorf("%d samples with a wrong chain", wrong)
	}
}

// framesOf tells a pprof sample's frames, leaf first: address, name, mapping.
func framesOf(s *pprof.Sample) string {
	var b strings.Builder
	for _, loc := range s.Location {
		mapping := "no mapping"
		if m := loc.Mapping; m != nil {
			mapping = fmt.Sprintf("%s %#x-%#x", m.File, m.Start, m.Limit)
		}
		for i := range max(1, len(loc.Line)) {
			name := "no name"
			if i < len(loc.Line) {
				name = loc.Line[i].Function.SystemName
			}
			fmt.Fprintf(&b, "\t%#x %s (%s)\n", loc.Address, name, mapping)
		}
	}
	return b.String()
}

// inKernel reports whether a frame is one of the kernel or of a BPF program.
func inKernel(loc *pprof.Location) bool {
	return loc.Mapping != nil && (strings.HasPrefix(loc.Mapping.File, "[kernel") || loc.Mapping.File == "[bpf]")
}

// userPart cuts the kernel frames off the leaf end of names, root first.
func userPart(s *pprof.Sample, names []string) []string {
	kernel := 0
	for _, loc := range s.Location {
		if !inKernel(loc) {
			break
		}
		kernel += max(1, len(loc.Line))
	}
	return names[:len(names)-kernel]
}
