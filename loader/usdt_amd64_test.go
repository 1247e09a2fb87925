package loader

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// probesProgram compiles testdata/probes.c into a file of a name.
func probesProgram(t testing.TB, name string, flags ...string) string {
	t.Helper()
	testenv.Needs(t, "gcc")
	out := filepath.Join(targetDir, name)
	testenv.Run(t, exec.Command("gcc", append([]string{"-O2", "-fno-strict-aliasing", "-o", out, "testdata/probes.c"}, flags...)...))
	return out
}

// probeCount is what a program says of one of its probes.
type probeCount struct{ times, sum uint64 }

// countProbes has testdata/probes.c come n times to each of its locations, without anyone
// who watches.
func countProbes(t testing.TB, program string, n int) map[string]probeCount {
	t.Helper()
	out, err := exec.Command(program, "count", fmt.Sprint(n)).Output()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]probeCount)
	for line := range strings.Lines(string(out)) {
		var name string
		var c probeCount
		if _, err := fmt.Sscan(line, &name, &c.times, &c.sum); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		counts[name] = c
	}
	return counts
}

// Each time that a program comes to a probe is a sample or accounted for, and the samples'
// weights add up to what the program has counted itself, wherever the argument is.
func TestStaticProbes(t *testing.T) {
	t.Parallel()
	const n = 20
	// What depends on how the file is linked, and one that does not.
	linked := []string{"register4s", "indexed_back", "global", "static", "static_after", "absolute", "many", "guarded"}
	test := func(name string, all bool, program func(t *testing.T) (path, file string)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kernelTest(t)
			path, file := program(t)
			counts := countProbes(t, path, n)
			if _, ok := counts["guarded"]; ok || len(counts) < 4 {
				t.Fatalf("probes %v", counts)
			}
			counts["guarded"] = probeCount{n, 3 * n} // where someone watches
			for probe, want := range counts {
				if !all && !slices.Contains(linked, probe) {
					continue
				}
				argument := "arg1"
				if probe == "many" {
					argument = "arg2"
				}
				checkStaticProbe(t, Config{}, path, n, "usdt:"+file+":test:"+probe, argument, want)
				if all && (testenv.Long() || slices.Contains(linked, probe)) { // it has the number by the same way
					checkProbeFilter(t, path, n, "usdt:"+file+":test:"+probe, argument, want)
				}
				if probe == "many" || probe == "guarded" {
					checkStaticProbe(t, Config{}, path, n, "usdt:"+file+":"+probe, "", probeCount{want.times, want.times})
				}
			}
		})
	}
	program := func(name string, flags ...string) func(t *testing.T) (path, file string) {
		return func(t *testing.T) (path, file string) {
			path = probesProgram(t, name, flags...)
			return path, path
		}
	}
	test("position-independent", true, program("probes-pie", "-fPIE", "-pie"))
	test("at a fixed address", false, program("probes-fixed", "-fno-pie", "-no-pie"))
	test("library", false, func(t *testing.T) (path, file string) {
		file = probesProgram(t, "libprobes.so", "-DLIBRARY", "-fPIC", "-shared")
		return probesProgram(t, "probes-user", "-DUSER", file), file
	})
	test("32 bits", true, func(t *testing.T) (path, file string) {
		testenv.Needs32Bit(t)
		path = probesProgram(t, "probes-32", "-m32")
		return path, path
	})
}

// An argument that is at different places takes a program for each, in whatever way they
// are loaded.
func TestStaticProbeAtPlaces(t *testing.T) {
	kernelTest(t)
	const n = 20
	path := probesProgram(t, "probes-places")
	event, want := "usdt:"+path+":many", countProbes(t, path, n)["many"]
	for _, c := range []struct {
		name string
		cfg  Config
	}{
		{"changes", Config{Changes: true}},
		{"followed", Config{FollowChildren: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			testOldAndNew(t, func(t *testing.T) { checkStaticProbe(t, c.cfg, path, n, event, "arg2", want) })
		})
	}
	t.Run("changes rejected", func(t *testing.T) {
		testRejectChanges = true
		defer func() { testRejectChanges = false }()
		checkStaticProbe(t, Config{Changes: true}, path, n, event, "arg2", want)
	})
}

// All locations are events until the session is stopped, and no longer.
func TestStaticProbeStops(t *testing.T) {
	kernelTest(t)
	path := probesProgram(t, "probes-stopped")
	cmd := exec.Command(path, "visit", "1000000000")
	testenv.Start(t, cmd)
	s := startSession(t, Config{Event: mustParse(t, "usdt:"+path+":many"), PIDs: []int{cmd.Process.Pid}, Period: 1000})
	readUntil(t, s, func(*Sample) bool { return true })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	late := 0
	drain(t, s, func(p *Sample) {
		if p.Time > s.stopped {
			late++
		}
	})
	if late > CPUs() { // each may have been about one
		t.Errorf("%d samples came later", late)
	}
}

// checkStaticProbe records a run of testdata/probes.c with an event and its weight.
func checkStaticProbe(t *testing.T, cfg Config, program string, n int, event, argument string, want probeCount) {
	t.Helper()
	cfg.Event = mustParse(t, event)
	var err error
	if cfg.Weight, err = ParseWeight(cfg.Event, argument); err != nil {
		t.Error(err)
		return
	}
	offsets := make(map[uint64]bool)
	for _, p := range cfg.Event.places {
		offsets[p.offset&4095] = true
	}
	cmd, s := started(t, cfg, program, "visit", fmt.Sprint(n))
	finish(t, cmd, s)
	st := stats(t, s)
	sum := uint64(0)
	drain(t, s, func(p *Sample) {
		sum += p.Weight
		if pc := p.Regs.Raw(p.Arch.PC); !offsets[pc&4095] || len(p.Regions) == 0 {
			t.Errorf("%s: a sample at %#x, with %d regions", event, pc, len(p.Regions))
		}
	})
	lost := uint64(0)
	if strings.HasSuffix(event, ":nowhere") {
		lost = want.times
	}
	if got := st.Samples + st.Lost() + st.SkippedPeriod; got != want.times || st.Lost() != lost || st.LostNumber != lost {
		t.Errorf("%s: %d times, want %d: %+v", event, got, want.times, st)
	}
	if sum != want.sum {
		t.Errorf("%s: %s is %d in all, want %d", event, argument, sum, want.sum)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// checkProbeFilter does so with those times alone of which the argument is above the mean.
func checkProbeFilter(t *testing.T, program string, n int, event, argument string, want probeCount) {
	t.Helper()
	cfg := Config{Event: mustParse(t, event)}
	mean := want.sum / want.times
	var err1, err2 error
	cfg.Weight, err1 = ParseWeight(cfg.Event, argument)
	cfg.Filter, err2 = ParseFilter(cfg.Event, fmt.Sprintf("%s > %d", argument, mean))
	if err1 != nil || err2 != nil {
		t.Error(err1, err2)
		return
	}
	cmd, s := started(t, cfg, program, "visit", fmt.Sprint(n))
	finish(t, cmd, s)
	sum := uint64(0)
	drain(t, s, func(p *Sample) {
		if sum += p.Weight; p.Weight <= mean {
			t.Errorf("%s: a sample with %s = %d, which is not above %d", event, argument, p.Weight, mean)
		}
	})
	st := stats(t, s)
	below := want.sum - sum // of the others, that are not negative
	if st.Samples+st.SkippedNumbers+st.LostNumber != want.times || sum > want.sum || below > mean*st.SkippedNumbers {
		t.Errorf("%s: sum %d of %d above %d: %+v", event, sum, want.sum, mean, st)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A process that runs already is told by its semaphore that someone watches, until no one
// does.
func TestSemaphore(t *testing.T) {
	kernelTest(t)
	path := probesProgram(t, "probes-watched")
	var pids [2]int
	var asked [2]io.Writer
	var told [2]io.Reader
	for i := range pids {
		cmd := exec.Command(path, "watch")
		asked[i], told[i] = testenv.Start(t, cmd)
		pids[i] = cmd.Process.Pid
		readByte(t, told[i])
	}
	watched := func() (is [2]bool) {
		for i := range is {
			if _, err := asked[i].Write([]byte(".")); err != nil {
				t.Fatal(err)
			}
			is[i] = readByte(t, told[i]) == '1'
		}
		return is
	}
	event := mustParse(t, "usdt:"+path+":guarded")
	if is := watched(); is != [2]bool{} {
		t.Fatalf("watched before: %v", is)
	}
	for _, c := range []struct {
		name string
		cfg  Config
		want [2]bool
	}{
		{"one", Config{PIDs: pids[:1]}, [2]bool{true, false}},
		{"both", Config{PIDs: pids[:]}, [2]bool{true, true}},
		{"all", Config{}, [2]bool{true, true}},
	} {
		c.cfg.Event = event
		s := startSession(t, c.cfg)
		if is := watched(); is != c.want {
			t.Errorf("%s: watched %v, want %v", c.name, is, c.want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if is := watched(); is != [2]bool{} {
			t.Errorf("%s: watched afterwards %v", c.name, is)
		}
	}
}

func readByte(t *testing.T, r io.Reader) byte {
	t.Helper()
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		t.Fatal(err)
	}
	return b[0]
}

// Functions of 32 bits have no arguments in registers; what they return is half as long.
func TestArgumentsOf32Bits(t *testing.T) {
	kernelTest(t)
	testenv.Needs32Bit(t)
	path := probesProgram(t, "functions-32", "-m32", "-DLIBRARY", "-shared")
	if w, err := ParseWeight(mustParse(t, "uprobe:"+path+":visit"), "arg1"); err == nil || !strings.Contains(err.Error(), "only ret") {
		t.Errorf("%+v, %v", w, err)
	}
	w, err := ParseWeight(mustParse(t, "uretprobe:"+path+":watched"), "ret")
	if want := (operand{offset: 80, size: 4, signed: true}); err != nil || *w.operandAt(0) != want {
		t.Errorf("%+v, %v; want %+v", w, err, want)
	}
}
