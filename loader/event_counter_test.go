package loader

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Counters, those of caches among them, and modifiers are what perf asks the kernel for by the same name.
func TestCountersArePerfs(t *testing.T) {
	t.Parallel()
	perf, err := exec.LookPath("perf")
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	names := []string{"r01c2", "rFFFFFFFF", "cycles:u", "cycles:k", "instructions:p", "branches:ppp", "cache-misses:upp", "cpu-clock:u", "page-faults:k", "cs:uk", "L1-dcache-loads:u"}
	for i := 0; i < len(cacheEvents); i += 5 {
		names = append(names, cacheEvents[i].Name)
	}
	for _, name := range names {
		e, err := ParseEvent(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// It prints what it asks for even where there are no counters.
		out, _ := exec.Command(perf, "record", "-vv", "-e", name, "-o", os.DevNull, "true").CombinedOutput()
		asked := make(map[string]uint64)
		_, text, _ := strings.Cut(string(out), "perf_event_attr:")
		text, _, _ = strings.Cut(text, "-----")
		for _, m := range regexp.MustCompile(`(?m)^ +(\w+) +((?:0x)?[0-9a-f]+)\b`).FindAllStringSubmatch(text, -1) {
			asked[m[1]], _ = strconv.ParseUint(m[2], 0, 64)
		}
		if len(asked) == 0 {
			t.Errorf("%s: perf says\n%s", name, out)
			continue
		}
		a := e.attr()
		bit := func(mask uint64) uint64 { return min(a.Bits&mask, 1) }
		for field, got := range map[string]uint64{
			"type": uint64(a.Type), "config": a.Config,
			"exclude_user": bit(unix.PerfBitExcludeUser), "exclude_kernel": bit(unix.PerfBitExcludeKernel), "exclude_hv": bit(unix.PerfBitExcludeHv),
			"precise_ip": bit(unix.PerfBitPreciseIPBit1) | bit(unix.PerfBitPreciseIPBit2)<<1,
		} {
			if got != asked[field] {
				t.Errorf("%s: %s is %#x, perf's %#x", name, field, got, asked[field])
			}
		}
		if hasChain := a.Sample_type&unix.PERF_SAMPLE_CALLCHAIN != 0; hasChain != (asked["precise_ip"] > 0) {
			t.Errorf("%s: with a call chain: %v", name, hasChain)
		}
		if e.Name != name {
			t.Errorf("%s is called %s", name, e.Name)
		}
	}
}

// madePMU makes a directory of sources of events with one, cpu.
func madePMU(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"type": "4\n", "format/event": "config:0-7,32-35\n", "format/umask": "config:8-15\n", "format/edge": "config:18\n",
		"format/ldlat": "config1:0-15\n", "format/all": "config2:0-63\n", "format/odd": "config9:0-1\n", "format/bad": "config:9-3\n",
		"events/loads": "event=0xcd,umask=0x1,ldlat=3\n",
	} {
		name = filepath.Join(dir, "cpu", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// An event of a source is what the fields of the kernel say, in bits that need not be side by side.
func TestPMUEvent(t *testing.T) {
	dir := madePMU(t)
	for name, want := range map[string][3]uint64{
		"cpu//":                                 {},
		"cpu/event=0xc2,umask=1/":               {0x1c2, 0, 0},
		"cpu/event=0xac2,edge/":                 {0xa000400c2, 0, 0},
		"cpu/loads/":                            {0x1cd, 3, 0},
		"cpu/loads,ldlat=30/":                   {0x1cd, 30, 0},
		"cpu/config=0xff,umask=2/":              {0x2ff, 0, 0},
		"cpu/all=0xffffffffffffffff,config1=7/": {0, 7, 1<<64 - 1},
		"r1c2":                                  {0x1c2, 0, 0},
	} {
		e, ok, err := counterEvent(dir, name)
		if got := [3]uint64{e.config, e.config1, e.config2}; !ok || err != nil || got != want || e.typ != unix.PERF_TYPE_RAW || !e.HasDefaultFrequency() {
			t.Errorf("%s: %#x, %v, %v; want %#x", name, got, ok, err, want)
		}
	}
	for name, want := range map[string]string{
		"cpu/event=0x1000/":                "0x1000 is too large for field event",
		"cpu/edge=2/":                      "2 is too large for field edge",
		"cpu/umask=x/":                     `"x" is not a number`,
		"cpu/evnt=1/":                      `cpu has no event and no field "evnt"; did you mean event?`,
		"cpu/load/":                        "did you mean loads",
		"cpu/../../cpu/type/":              "",
		"cpu/..,event=1/":                  `no field ".."`,
		"cpu/odd=1/":                       "field odd is in config9, which is not known",
		"cpu/bad=1/":                       "the bits of field bad are not known",
		"cqu/event=1/":                     "this machine has no cqu; did you mean cpu?",
		"r11111111111111111":               "",
		"../cpu/event=1/":                  "",
		"cpu/event=1/u":                    "",
		"cpu/event=1,umask=1=2/":           "is not a number",
		"cpu/event=1,umask=-1/":            "is not a number",
		"cpu/event=999999999999999999999/": "is not a number",
	} {
		_, ok, err := counterEvent(dir, name)
		if ok != (want != "") || ok && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v; want %q", name, ok, err, want)
		}
	}
}

// What has no modifiers, and what is none, is said.
func TestModifiers(t *testing.T) {
	for _, name := range []string{"cycles:", "cycles:x", "cycles:upppp", "cycles:pP", "cpu-clock:H"} {
		_, err := ParseEvent(name)
		var unknown *UnknownEventError
		if !errors.As(err, &unknown) || !strings.Contains(err.Error(), "modifiers may be") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"wall:u", "off-cpu:k"} {
		if e, err := ParseEvent(name); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// In place of cycles that are not counted stands the clock, of the same part of the machine; but not of
// cycles that have to be precise.
func TestClockInPlaceOfCycles(t *testing.T) {
	kernelTest(t)
	for name, clock := range map[string]string{"cycles:u": "cpu-clock:u", "cpu-cycles": "cpu-clock", "cycles:kP": "cpu-clock:kP"} {
		e, err := ParseEvent(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Event: e})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := s.Event(); got.Name != name && (got.Name != clock || got.bits != e.bits) {
			t.Errorf("%s: %+v", name, got)
		}
		s.Close()
	}
	e, err := ParseEvent("cycles:pp")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Event: e})
	var missing *MissingError
	if err == nil {
		s.Close()
	} else if !errors.As(err, &missing) || missing.What != "a counter of cycles:pp on this machine" {
		t.Errorf("%v", fmt.Errorf("cycles:pp: %w", err))
	}
}
