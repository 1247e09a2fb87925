package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// The caller of an address that holds no code is taken from where a call leaves it, and
// only if it is behind a call. Of a sample, whose newest mappings may not be known, an
// address must be one at which there can be no code.
func TestBadCallOfSample(t *testing.T) {
	const sp = 0x7ff000000000
	arch := procstate.AMD64
	h := newHostileWorld(t, arch, "/bin/true")
	snap := procstate.NewSnapshot(arch, 1, "", h.libs)
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	s := NewBadCall()
	var behind uint64 // a call
	m := h.libs.MappingAt(h.codes[10])
	for at := m.Start + mcode.MaxCallLen; at < m.End && behind == 0; at++ {
		if _, _, ok := s.calls.IsPrevInstrACall(w, at); ok {
			behind = at
		}
	}
	if behind == 0 {
		t.Fatal("no call")
	}
	for _, c := range []struct {
		name        string
		pc, word    uint64
		interrupted bool
		want        unwind.Verdict
	}{
		{"null", 0, behind, true, unwind.Success},
		{"no address of user code", 1 << 63, behind, true, unwind.Success},
		{"perhaps a mapping that is not known yet", 0x414141414000, behind, true, unwind.NotMe},
		{"code", h.codes[10], behind, true, unwind.NotMe},
		{"not behind a call", 0, m.Start + 1, true, unwind.NotMe},
		{"not code", 0, sp, true, unwind.NotMe},
		{"a return address", 0, behind, false, unwind.NotMe},
	} {
		stack := binary.LittleEndian.AppendUint64(nil, c.word)
		var regs procstate.Regs
		regs.Set(arch.PC, c.pc)
		regs.Set(arch.SP, sp)
		snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
		var in, out unwind.Frame
		in.Load(arch, &regs)
		if !c.interrupted {
			in.Flags &^= unwind.Interrupted
		}
		v, err := s.CallerFrame(w, &in, &out)
		if v != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.name, v, err)
		}
		if v == unwind.Success && (out.PC() != behind || out.SP() != sp+8 || out.Flags != unwind.Heuristic) {
			t.Errorf("%s: PC %#x, SP %#x, %v", c.name, out.PC(), out.SP(), out.Flags)
		}
	}
}
