package steppers

import (
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// hostileWorld is an address space of real files, for snapshots that are all
// lies.
type hostileWorld struct {
	libs  *procstate.AddressSpace
	codes []uint64 // run-time addresses of code
}

func newHostileWorld(t testing.TB, arch *procstate.Arch, paths ...string) *hostileWorld {
	h := &hostileWorld{libs: &procstate.AddressSpace{}}
	base := uint64(0x10000000)
	for _, path := range paths {
		img := steptest.OpenImage(t, path)
		if img.Arch() != arch {
			t.Fatalf("%s is for %s", path, img.Arch().Name)
		}
		for _, s := range img.Segments() {
			if s.Flags&1 == 0 {
				continue
			}
			start := base + s.Vaddr&^4095
			h.libs.Insert(&procstate.Mapping{Start: start, End: base + (s.Vaddr+s.Memsz+4095)&^4095,
				Offset: s.Off &^ 4095, Path: path, Image: img})
			for i := uint64(0); i < 64; i++ {
				h.codes = append(h.codes, base+s.Vaddr+s.Memsz*i/64&^3)
			}
			h.codes = append(h.codes, base+img.Entry())
		}
		base += 0x10000000
	}
	return h
}

// snapshot makes registers and a stack from random numbers: addresses of
// code, of the stack, of nothing, and small numbers.
func (h *hostileWorld) snapshot(rng *rand.Rand, arch *procstate.Arch, stack []byte) (*procstate.Snapshot, *procstate.Regs) {
	const sp = 0x7ff000000000
	word := func() uint64 {
		switch rng.IntN(6) {
		case 0:
			return h.codes[rng.IntN(len(h.codes))] + rng.Uint64N(64)
		case 1, 2:
			return sp + rng.Uint64N(uint64(len(stack)))&^7
		case 3:
			return rng.Uint64N(128)
		case 4:
			return rng.Uint64()
		}
		return 0
	}
	for i := 0; i+8 <= len(stack); i += 8 {
		v := word()
		for k := range 8 {
			stack[i+k] = byte(v >> (8 * k))
		}
	}
	var regs procstate.Regs
	regs.ThreadPointer = word()
	for r := range procstate.Reg(arch.NumRegs) {
		if rng.IntN(8) > 0 {
			regs.Set(r, word())
		}
	}
	regs.Set(arch.PC, h.codes[rng.IntN(len(h.codes))]+rng.Uint64N(64))
	regs.Set(arch.SP, sp+rng.Uint64N(uint64(len(stack)))&^7)
	snap := procstate.NewSnapshot(arch, 1, "", h.libs)
	snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
	return snap, &regs
}

// allSteppers is the default group and whatever else there is.
func allSteppers() *unwind.AddressRangeGroup {
	g := Default(unwind.NewTables())
	_ = g.AddStepper(NewWanderer(nil, nil))
	return g
}

// Whatever registers and stack hold, a walk ends, without a panic, and says
// why.
func TestHostileStacks(t *testing.T) {
	amd64 := hostilePrograms(t)
	t.Setenv("GOARCH", "arm64")
	t.Setenv("CGO_ENABLED", "0")
	for _, tc := range []struct {
		arch  *procstate.Arch
		paths []string
	}{
		{procstate.AMD64, amd64},
		{procstate.ARM64, []string{buildGo(t, "go")}},
	} {
		h := newHostileWorld(t, tc.arch, tc.paths...)
		group := allSteppers()
		stack := make([]byte, 4096)
		var pcs []unwind.PC
		for seed := range uint64(3000) {
			rng := rand.New(rand.NewPCG(seed, 1))
			snap, regs := h.snapshot(rng, tc.arch, stack)
			w := unwind.NewWalker(snap, group, nil)
			w.MaxFrames = 1000
			var err error
			if pcs, err = w.WalkPCs(pcs[:0], regs); err != nil && unwind.ReasonOf(err) == unwind.StepperFailed {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
}

func hostilePrograms(t testing.TB) []string {
	exe, err := os.Executable() // a Go program
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{steptest.Compile(t, []string{"gcc", "-static"}, "main.c", emptyMain),
		steptest.Compile(t, []string{"musl-gcc", "-static"}, "main.c", emptyMain)}
	if runtime.GOARCH == "amd64" {
		paths = append(paths, exe)
	}
	return paths
}

// FuzzSteppers lets the fuzzer choose the stack.
func FuzzSteppers(f *testing.F) {
	h := newHostileWorld(f, procstate.AMD64, hostilePrograms(f)...)
	group := allSteppers()
	f.Add(uint64(1), uint16(0), make([]byte, 64))
	f.Add(uint64(2), uint16(99), []byte("\x01\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, seed uint64, at uint16, data []byte) {
		stack := make([]byte, 2048)
		rng := rand.New(rand.NewPCG(seed, 2))
		snap, regs := h.snapshot(rng, procstate.AMD64, stack)
		copy(stack[int(at)%len(stack):], data)
		w := unwind.NewWalker(snap, group, nil)
		w.MaxFrames = 1000
		if _, err := w.WalkPCs(nil, regs); err != nil && unwind.ReasonOf(err) == unwind.StepperFailed {
			t.Fatal(err)
		}
	})
}

// Once they know the code, the steppers allocate nothing.
func TestNoAllocation(t *testing.T) {
	h := newHostileWorld(t, procstate.AMD64, hostilePrograms(t)...)
	stack := make([]byte, 4096)
	pcs := make([]unwind.PC, 0, 1000)
	for name, s := range map[string]unwind.FrameStepper{
		"bottom": NewBottom(), "signal": NewSigHandler(), "go": NewGo(), "frame-pointer": NewFrameFunc(nil), "wanderer": NewWanderer(nil, nil),
	} {
		group := unwind.NewGroup(s)
		for seed := range uint64(50) {
			snap, regs := h.snapshot(rand.New(rand.NewPCG(seed, 3)), procstate.AMD64, stack)
			w := unwind.NewWalker(snap, group, nil)
			w.MaxFrames = 20 // so few that no two share a slot of a cache
			if n := testing.AllocsPerRun(10, func() { pcs, _ = w.WalkPCs(pcs[:0], regs) }); n != 0 {
				t.Errorf("%s: %v allocations in a walk, seed %d", name, n, seed)
				break
			}
		}
	}
}
