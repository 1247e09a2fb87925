package loader

import (
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// goTarget is the program of testdata/goroutine.go.
func goTarget(t *testing.T) string {
	t.Helper()
	out := filepath.Join(targetDir, "goroutine")
	testenv.Run(t, exec.Command("go", "build", "-o", out, filepath.Join("testdata", "goroutine.go")))
	return out
}

// goOffsets reads the offsets from the program's debug information.
func goOffsets(t *testing.T, path string) (o GoOffsets) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int64)
	for r := info.Reader(); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if e.Tag != dwarf.TagStructType || name != "runtime.g" && name != "runtime.m" && name != "runtime.gobuf" {
			continue
		}
		typ, err := info.Type(e.Offset)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range typ.(*dwarf.StructType).Field {
			found[name+"."+m.Name] = m.ByteOffset
		}
	}
	at := func(name string) uint16 {
		off, ok := found[name]
		if !ok {
			t.Fatalf("no %s in the debug information", name)
		}
		return uint16(off)
	}
	o = GoOffsets{
		GFromThreadPointer: -8, // cmd/link: runtime.tlsg of a static executable
		GStack:             at("runtime.g.stack"),
		GM:                 at("runtime.g.m"),
		GSchedSP:           at("runtime.g.sched") + at("runtime.gobuf.sp"),
		MG0:                at("runtime.m.g0"),
		MCurg:              at("runtime.m.curg"),
		MGsignal:           at("runtime.m.gsignal"),
		MVDSOSP:            at("runtime.m.vdsoSP"),
	}
	return o
}

// The copy of a goroutine's stack ends where the runtime says that it ends, also
// when that is beyond the limit.
func TestGoroutineStack(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 a program without cgo keeps g in a register only")
	}
	prog := goTarget(t)
	offsets := goOffsets(t, prog)
	spin := symbolValue(t, prog, "main.spin")
	r14 := procstate.AMD64.RegByName("r14")
	for _, c := range []struct{ depth, least int }{{50, 50 * 16}, {4096, DefaultStackBytes}} {
		p := startTarget(t, prog, strconv.Itoa(c.depth))
		s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
		if err := s.SetGoProcess(p.pid, offsets); err != nil {
			t.Fatal(err)
		}
		var loop steady
		readUntil(t, s, func(smp *Sample) bool {
			if pc := smp.Regs.Raw(smp.Arch.PC); pc < spin || pc > spin+0x100 || smp.StackEnd != StackEndBottom || !loop.holds(smp) {
				return false
			}
			// Compiled Go code keeps g in R14 (cmd/compile/abi-internal.md).
			g := smp.Regs.Raw(r14)
			hi := binary.LittleEndian.Uint64(p.memory(t, g+uint64(offsets.GStack)+8, 8))
			stack := smp.Regions[0]
			if end := stack.Addr + uint64(len(stack.Data)); end != hi || len(smp.Regions) != 1 || len(stack.Data) < c.least {
				t.Errorf("%d regions, %d bytes up to %#x, the goroutine's stack ends at %#x", len(smp.Regions), len(stack.Data), end, hi)
			}
			return true
		})
		if err := s.ForgetGoProcess(p.pid); err != nil {
			t.Fatal(err)
		}
		if err := s.ForgetGoProcess(p.pid); err != nil {
			t.Errorf("forgotten twice: %v", err)
		}
		readUntil(t, s, func(smp *Sample) bool { return smp.StackEnd != StackEndBottom })
	}
}

// Most samples of a goroutine on its own stack are taken in the straight line of
// bpf/usual.h.
func TestUsualGoroutineSamples(t *testing.T) {
	prog := goTarget(t)
	for _, changes := range []bool{false, true} {
		p := startTarget(t, prog, "50")
		s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, Changes: changes})
		if err := s.SetGoProcess(p.pid, goOffsets(t, prog)); err != nil {
			t.Fatal(err)
		}
		before := stats(t, s).Usual
		home := uint64(0) // samples of nothing else than a goroutine's own stack: those of the scheduler's have no known end
		readUntil(t, s, func(smp *Sample) bool {
			if len(smp.Regions) == 1 && smp.StackEnd == StackEndBottom {
				home++
			}
			return home == 300
		})
		if usual := stats(t, s).Usual - before; 10*usual < 9*home {
			t.Errorf("changes %v: %d of %d in a straight line", changes, usual, home)
		}
	}
}

// On the thread's own stack the sample carries what leads to the goroutine
// being served, and that goroutine's stack to its end.
func TestServedGoroutine(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 a program without cgo keeps g in a register only")
	}
	prog := goTarget(t)
	o := goOffsets(t, prog)
	p := startTarget(t, prog, "50")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	if err := s.SetGoProcess(p.pid, o); err != nil {
		t.Fatal(err)
	}
	seen := 0
	readUntil(t, s, func(smp *Sample) bool {
		if len(smp.Regions) != 6 || smp.StackEnd != StackEndBottom {
			return false // not on g0, or a stack with holes
		}
		word := func(region int, off uint16) uint64 {
			return binary.LittleEndian.Uint64(smp.Regions[region].Data[off:])
		}
		if word(3, o.MCurg) == word(1, 0) {
			return false // in a signal handler, before it has a g of its own
		}
		if word(3, o.MCurg) == 0 && word(3, o.MG0) == smp.Regions[4].Addr {
			return false // in one that has met g0, which serves none
		}
		seen++
		own, g, m, curg, stack := smp.Regions[0], smp.Regions[2], smp.Regions[3], smp.Regions[4], smp.Regions[5]
		if at := smp.Regions[1].Addr; at != smp.Regs.ThreadPointer-8 || word(1, 0) != g.Addr {
			t.Errorf("g at %#x, the word at %#x says %#x", g.Addr, at, word(1, 0))
		}
		if word(2, o.GM) != m.Addr || word(3, o.MCurg) != curg.Addr {
			t.Errorf("g %#x of m %#x, curg %#x: have %#x, %#x", g.Addr, word(2, o.GM), word(3, o.MCurg), m.Addr, curg.Addr)
		}
		// The first frames on g0's stack are a little above its stack.hi.
		if above := own.Addr + uint64(len(own.Data)) - word(2, o.GStack+8); above > 1024 {
			t.Errorf("own stack up to %#x, that of g ends at %#x", own.Addr+uint64(len(own.Data)), word(2, o.GStack+8))
		}
		if end := stack.Addr + uint64(len(stack.Data)); end != word(4, o.GStack+8) {
			t.Errorf("served stack up to %#x, that of curg ends at %#x", end, word(4, o.GStack+8))
		}
		if word(3, o.MG0) == g.Addr && stack.Addr != word(4, o.GSchedSP) {
			t.Errorf("served stack from %#x, curg.sched.sp is %#x", stack.Addr, word(4, o.GSchedSP))
		}
		return seen == 20
	})
}

func TestGoOffsetsOutOfRange(t *testing.T) {
	s := &Session{}
	for _, o := range []GoOffsets{{GStack: 500}, {MCurg: 505}, {GM: 0xffff}} {
		if err := s.SetGoProcess(1, o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
}
