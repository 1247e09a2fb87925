package loader

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
)

// Where the kernel hides its addresses, wakers are refused, with the reason.
func TestWakersNeedAddresses(t *testing.T) {
	hidden := "0000000000000000 T __irqentry_text_start\n0000000000000000 T sysvec_apic_timer_interrupt\n0000000000000000 T next\n"
	code, err := parseKernelCode(strings.NewReader(hidden), true)
	if err != nil {
		t.Fatal(err)
	}
	s := Session{cfg: Config{Wakers: true}, code: code}
	var missing *MissingError
	if err := s.checkWakers(); !errors.As(err, &missing) || !strings.Contains(err.Error(), "kptr_restrict") {
		t.Errorf("%v", err)
	}
	s.cfg.Wakers = false
	if err := s.checkWakers(); err != nil {
		t.Errorf("without wakers: %v", err)
	}
}

// A record that is cut, or lies about its lengths, is an error, and fn is not called.
func TestBadWaker(t *testing.T) {
	for what, spoil := range map[string]func(*sampleHeader){
		"nothing": func(*sampleHeader) {},
		"frames":  func(h *sampleHeader) { h.KernelFrames = 127 },
		"regions": func(h *sampleHeader) { h.Regions = 3 },
		"parts":   func(h *sampleHeader) { h.Parts = 1 },
		"returns": func(h *sampleHeader) { h.Returns = 64 },
	} {
		h := sampleHeader{OffCpu: uint8(gen.SamplerOffCpuStateOFF_CPU_WAKER), Woken: 7, Weight: 5}
		spoil(&h)
		rec := unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h))
		var s Session
		called := false
		err := s.emitWaker(rec, func(p *Sample) error {
			called = true
			if p.Waker != (Waker{TID: 7, Left: 5}) || p.Blocked != NotBlocked {
				t.Errorf("%+v, %v", p.Waker, p.Blocked)
			}
			return nil
		})
		if (err == nil) != (what == "nothing") || called != (err == nil) {
			t.Errorf("%s: %v, called %v", what, err, called)
		}
		if err := s.emitWaker(rec[:len(rec)-8], func(*Sample) error { return nil }); err == nil {
			t.Errorf("%s: a record that is cut is none", what)
		}
	}
}

// Where a ring has no room for what wakes threads up, that is counted, and the times off the CPU are still told of.
func TestWakersOfFullRing(t *testing.T) {
	const threads = 5 // each of which has been woken at most that does not run yet
	kernelTest(t)
	testenv.Needs(t, "gcc")
	program := filepath.Join(t.TempDir(), "pingpong")
	testenv.Run(t, exec.Command("gcc", "-O1", "-pthread", "-o", program, "../cmd/swbpf/testdata/targets/wakers.c"))
	target := exec.Command(program, "1000000000")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = target.Process.Kill()
		_ = target.Wait()
	})
	s := startSession(t, Config{Event: OffCPU, Wakers: true, Kernel: true, PIDs: []int{target.Process.Pid}, RingBytes: 128 << 10})
	for end := time.Now().Add(patience); stats(t, s).MissedWakers == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there is room for all: %+v", stats(t, s))
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	type wait struct {
		tid  int32
		left uint64
	}
	told := map[wait]bool{}
	known := 0
	drain(t, s, func(p *Sample) {
		switch w := (wait{p.TID, p.Left}); {
		case p.Waker.TID != 0:
			told[wait{p.Waker.TID, p.Waker.Left}] = true
		case told[w]:
			known++
			delete(told, w)
		}
	})
	st := stats(t, s)
	if known == 0 || len(told) > threads || st.MissedWakers == 0 || st.LostRingFull != 0 {
		t.Errorf("%d times off the CPU with what ended them, of which more is told of %v; %+v", known, told, st)
	}
}
