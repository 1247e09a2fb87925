package symbols

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestBPFCode(t *testing.T) {
	var c BPFCode
	if _, ok := c.At(0x1000); ok {
		t.Error("code of which nothing was told")
	}
	if _, decided := c.Earlier(0x1000); decided {
		t.Error("code of which nothing was told is known")
	}
	c.Came(0x1000, 0x100, "a")
	c.Went(0x1000, 0x100, "a")
	c.Came(0x1080, 0x100, "b")
	c.Came(0x9000, 0x100, "a") // again, elsewhere
	c.Went(0x5000, 0x10, "before")
	c.Went(0x7000, 0, "nothing")
	c.Came(^uint64(0)-1, 4, "wraps around")
	place, _ := c.At(0x9010)
	if s, ok := c.Name(place); !ok || s != (KernelSymbol{"a", "bpf", 0x10}) {
		t.Errorf("%+v %v", s, ok)
	}
	again, _ := c.At(0x9011)
	if again != place+1 {
		t.Errorf("places %#x and %#x of one program", place, again)
	}
	for _, tc := range []struct {
		addr          uint64
		here, earlier string // "?": not known, "": nothing was told
	}{
		{0xfff, "", ""}, {0x1000, "?", "?"}, {0x107f, "?", "?"}, {0x1080, "b", "?"}, {0x117f, "b", "?"}, {0x1180, "", ""},
		{0x5000, "?", "before"}, {0x500f, "?", "before"}, {0x5010, "", ""}, {0x90ff, "a", "?"}, {0x9100, "", ""},
	} {
		if here, earlier := whatIsAt(&c, tc.addr), whatWasAt(&c, tc.addr); here != tc.here || earlier != tc.earlier {
			t.Errorf("%#x: %q, earlier %q; want %q, %q", tc.addr, here, earlier, tc.here, tc.earlier)
		}
	}
}

func whatIsAt(c *BPFCode, addr uint64) string {
	place, ok := c.At(addr)
	if !ok {
		return ""
	}
	if s, ok := c.Name(place); ok {
		return s.Name
	}
	return "?"
}

func whatWasAt(c *BPFCode, addr uint64) string {
	s, decided := c.Earlier(addr)
	if !decided {
		return ""
	}
	if s.Name == "" {
		return "?"
	}
	return s.Name
}

// Of trampolines a whole page is told, though programs lie behind them.
func TestTrampolines(t *testing.T) {
	var c BPFCode
	c.Came(0x1400, 0x40, "bpf_prog_a")
	c.Came(0x1040, 0x1000, "bpf_trampoline_1")
	c.Came(0x1100, 0x80, "bpf_prog_b")
	c.Came(0x1200, 0x1000, "bpf_trampoline_2")
	look := func(want map[uint64]string) {
		t.Helper()
		for addr, name := range want {
			if got := whatIsAt(&c, addr); got != name {
				t.Errorf("%#x: %q, want %q", addr, got, name)
			}
		}
	}
	look(map[uint64]string{
		0x103f: "", 0x1040: "bpf_trampoline_1", 0x10ff: "bpf_trampoline_1", 0x1100: "bpf_prog_b", 0x117f: "bpf_prog_b",
		0x1180: "?", 0x1200: "bpf_trampoline_2", 0x13ff: "bpf_trampoline_2", 0x1400: "bpf_prog_a", 0x143f: "bpf_prog_a",
	})
	c.Went(0x1040, 0x1000, "bpf_trampoline_1")
	look(map[uint64]string{0x1040: "?", 0x1100: "bpf_prog_b", 0x1200: "bpf_trampoline_2", 0x1400: "bpf_prog_a"})
	c.Went(0x1100, 0x80, "bpf_prog_b")
	c.Went(0x1200, 0x1000, "bpf_trampoline_2")
	look(map[uint64]string{0x1100: "?", 0x1200: "?", 0x1400: "bpf_prog_a"})
}

// TestBPFCodeModel compares with a table that has each byte of a small memory,
// over random events, overlapping ones as after losses included. Of a program of
// which a part was taken nothing is known any more.
func TestBPFCodeModel(t *testing.T) {
	const memory = 256
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		var c BPFCode
		var here, earlier [memory]string
		var event [memory]int // that brought the code
		for n := 1; n <= 100; n++ {
			start, size := r.Uint64N(memory-1), 1+r.Uint64N(24)
			size = min(size, memory-start)
			name := fmt.Sprint("bpf_prog_", r.IntN(6))
			told := false
			broken := map[int]bool{}
			for a := start; a < start+size; a++ {
				told = told || here[a] != ""
				broken[event[a]] = true
			}
			for a := range here {
				if here[a] != "" && broken[event[a]] {
					here[a] = "?"
				}
			}
			came := r.IntN(2) == 0
			for a := start; a < start+size; a++ {
				if earlier[a] == "" {
					if earlier[a] = "?"; !came && !told {
						earlier[a] = name
					}
				}
				if here[a], event[a] = "?", n; came {
					here[a] = name
				}
			}
			if came {
				c.Came(start, size, name)
			} else {
				c.Went(start, size, name)
			}
			for a := range uint64(memory) {
				if is, was := whatIsAt(&c, a), whatWasAt(&c, a); is != here[a] || was != earlier[a] {
					t.Fatalf("seed %d, %d: %q, earlier %q; want %q, %q", seed, a, is, was, here[a], earlier[a])
				}
			}
		}
	}
}

// TestBPFCodeBounds keeps no more than so much, and then knows nothing rather
// than something wrong.
func TestBPFCodeBounds(t *testing.T) {
	var c BPFCode
	for i := range uint64(maxBPFRanges + 2) {
		c.Came(1<<20+i*32, 16, fmt.Sprint("p", i))
		c.Went(1<<40+i*32, 16, "before")
	}
	if len(c.at) > maxBPFRanges+2 || len(c.programs) > maxBPFPrograms || len(c.earlier) > maxBPFRanges {
		t.Errorf("%d ranges, %d programs, %d earlier", len(c.at), len(c.programs), len(c.earlier))
	}
	if is := whatIsAt(&c, 1<<20); is != "?" {
		t.Errorf("%q at a place that was given up", is)
	}
	c.Came(1<<20, 16, "p1")
	if is := whatIsAt(&c, 1<<20); is != "p1" {
		t.Errorf("%q came there since", is)
	}
}
