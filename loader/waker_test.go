package loader

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/gen"
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
