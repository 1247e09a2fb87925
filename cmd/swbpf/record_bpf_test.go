package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// spinProgram loads a BPF program that takes some microseconds; what it
// computes depends on seed.
func spinProgram(name string, seed int32) (*ebpf.Program, error) {
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, seed)}
	for range 4000 {
		insns = append(insns, asm.Mul.Imm(asm.R0, seed))
	}
	insns = append(insns, asm.Mov.Imm(asm.R0, 0), asm.Return())
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SocketFilter, License: "GPL", Instructions: insns})
}

// spin runs a program for 200 ms of CPU time.
func spin(p *ebpf.Program) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := func() int64 {
		var ts unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
		return ts.Nano()
	}
	for begin := cpu(); cpu()-begin < 200e6; {
		if _, _, err := p.Benchmark(make([]byte, 64), 1000, nil); err != nil {
			return err
		}
	}
	return nil
}

// TestSpinBPF is what TestRecordBPF records: a program that was there before,
// and two that come, of the same size, all of which go.
func TestSpinBPF(t *testing.T) {
	early := os.Getenv("SWBPF_TEST_EARLY")
	if early == "" {
		t.Skip("for TestRecordBPF")
	}
	id, gate, _ := strings.Cut(early, ",")
	n, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	old, err := ebpf.NewProgramFromID(ebpf.ProgramID(n))
	if err != nil {
		t.Fatal(err)
	}
	// From now on it is ours alone.
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the program to be given away", func() bool { _, err := os.Stat(gate); return err != nil })
	if err := spin(old); err != nil {
		t.Fatal(err)
	}
	old.Close()
	for i, name := range []string{"swbpf_first", "swbpf_second", "swbpf_first"} {
		p, err := spinProgram(name, int32(3+i%2*2))
		if err != nil {
			t.Fatal(err)
		}
		if err := spin(p); err != nil {
			t.Fatal(err)
		}
		p.Close()
	}
}

// TestRecordBPF names BPF programs that have gone when the recording ends,
// though others took their place: the kernel packs them into few pages.
func TestRecordBPF(t *testing.T) {
	early, err := spinProgram("swbpf_early", 7)
	if err != nil {
		testenv.Lacks(t, "load a BPF program: %v", err)
	}
	defer early.Close()
	info, err := early.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		testenv.Lacks(t, "BPF programs have no numbers")
	}
	gate := t.TempDir() + "/gate"
	t.Setenv("SWBPF_TEST_EARLY", fmt.Sprintf("%d,%s", id, gate))
	given := make(chan struct{})
	go func() {
		defer close(given)
		waitFor(t, "the program to be taken", func() bool { _, err := os.Stat(gate); return err == nil })
		early.Close()
		os.Remove(gate)
	}()
	r := runRecord(t, "-F", "997", "--", os.Args[0], "-test.run=^TestSpinBPF$", "-test.v")
	<-given
	if r.exit != 0 {
		t.Fatalf("exit status %d\n%s", r.exit, r.stderr)
	}
	found := map[string]int64{}
	for _, s := range r.profile.Sample {
		for _, name := range stackOf(s) {
			if _, after, ok := strings.Cut(name, "_swbpf_"); ok && strings.HasPrefix(name, "bpf_prog_") {
				found[after] += s.Value[0]
			}
			if strings.HasPrefix(name, "[bpf]") {
				t.Errorf("%d samples without a name: %s", s.Value[0], strings.Join(stackOf(s), ";"))
			}
		}
	}
	for _, name := range []string{"early", "first", "second"} {
		if found[name] == 0 {
			t.Errorf("no sample in %s:\n%.3000s", name, r.folded)
		}
	}
}
