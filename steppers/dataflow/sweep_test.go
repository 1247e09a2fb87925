package dataflow

import (
	"debug/elf"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/steppers/isa"
)

// A sweep that goes by what is kept of the first one visits the same instructions, and those
// that matter with all that they do.
func TestSweepAgain(t *testing.T) {
	random := make([]byte, 3*codeBlock)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(rng.Uint32())
	}
	check := func(c *Code) {
		t.Helper()
		for n := range c.spans {
			type visited struct {
				addr  uint64
				in    isa.Inst
				fresh bool
			}
			var first []visited
			c.sweep(n, func(addr uint64, in *isa.Inst, fresh bool) { first = append(first, visited{addr, *in, fresh}) })
			i := 0
			c.sweep(n, func(addr uint64, in *isa.Inst, fresh bool) {
				if i >= len(first) {
					i++
					return
				}
				want := first[i]
				if i++; addr != want.addr || fresh != want.fresh || in.Len != want.in.Len || in.Flow != want.in.Flow ||
					in.Target != want.in.Target || lowersSP(c.arch, in) != lowersSP(c.arch, &want.in) {
					t.Fatalf("%#x: %+v, fresh %t, want %#x: %+v, fresh %t", addr, *in, fresh, want.addr, want.in, want.fresh)
				}
			})
			if i != len(first) {
				t.Errorf("%d instructions, want %d", i, len(first))
			}
		}
	}
	for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		c, err := New(codeImage(t, machine, random))
		if err != nil {
			t.Fatal(err)
		}
		check(c)
	}
	for _, path := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/usr/aarch64-linux-gnu/lib/libc.so.6"} {
		if _, err := os.Stat(path); err != nil {
			testenv.Lacks(t, "no %s", path)
		}
		c, err := New(hiding(t, path))
		if err != nil {
			t.Fatal(err)
		}
		check(c)
	}
}
