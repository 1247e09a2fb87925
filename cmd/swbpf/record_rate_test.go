package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// onCPU is the time that a command and all that it started were on a CPU, by
// the kernel's own accounts of that very time.
type onCPU struct {
	clock   time.Duration // as perf counts: on while an interrupt or the hypervisor has the CPU
	charged time.Duration // by the scheduler: without these
	turns   int           // that it was split into
}

// runClocked records a command as runRecord does, and its time on the CPU.
func runClocked(t *testing.T, flags []string, command ...string) (*recording, onCPU) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clock")
	clocked := build(t, "clocked", "gcc", "-O2", "-static", "-o", "OUT", "testdata/targets/clocked.c")
	r := runRecord(t, slices.Concat(flags, []string{"--", clocked, file}, command)...)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, r.stderr)
	}
	var c onCPU
	if _, err := fmt.Sscan(string(b), &c.clock, &c.charged, &c.turns); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return r, c
}

// wantRate checks the number of samples against the time that the target was on
// a CPU, within 5 %, and that none is lost. A tick that is due while the
// hypervisor or an interrupt has the CPU comes late, and only one of several
// comes: so the samples are as many as the one account or the other says, or
// between. Where another thread runs in between, by chance a tick more or less
// falls into a turn: a turn of a part p of a period has one more with the
// probability p, which is a variance of p(1-p). Five standard deviations are
// allowed for that: next to nothing for a target that has a CPU to itself, and
// more than chance brings about in a million runs for one that has not. A tick
// that is due while the kernel switches to the target, with interrupts off, comes
// when it turns them on again, on the target's account: so ticks in the kernel
// are none too many, which are few in these targets where nothing else runs.
func (r *recording) wantRate(t *testing.T, c onCPU, hz float64) {
	t.Helper()
	got, least, most := float64(r.stats.Samples), c.charged.Seconds()*hz, c.clock.Seconds()*hz
	chance := 5 * math.Sqrt(min(most, float64(c.turns)/4))
	kernel := 0.0
	for _, s := range r.profile.Sample {
		if len(s.Location) > 0 && inKernel(s.Location[0]) {
			kernel += float64(s.Value[0])
		}
	}
	t.Logf("%.0f samples, %.0f of them in the kernel, %.0f to %.0f expected of %v in %d turns, by chance %.0f more or less",
		got, kernel, least, most, c.charged, c.turns, chance)
	if got < 0.95*least-chance || got-kernel > 1.05*most+chance {
		t.Errorf("%.0f samples, want %.0f to %.0f within 5 %%, and %.0f for chance", got, least, most, chance)
	}
	if r.stats.Lost != 0 {
		t.Errorf("%d samples lost: %v", r.stats.Lost, r.stats.LostByReason)
	}
}
