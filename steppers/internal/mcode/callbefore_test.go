package mcode

import (
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// A call is found whatever it begins with: that no other bytes can is what the decoder says.
func TestCallsBegin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	found := map[isa.Flow]int{}
	for range 2_000_000 {
		code := make([]byte, MaxCallLen)
		for i := range code {
			code[i] = byte(r.Uint32())
		}
		if r.Uint32()%2 == 0 { // or else there are few
			code[r.IntN(len(code))] = []byte{0xe8, 0xff, 0x9a}[r.IntN(3)]
		}
		var in isa.Inst
		if !isa.DecodeAMD64(code, 0x1000, &in) || in.Flow != isa.Call && in.Flow != isa.IndirectCall {
			continue
		}
		found[in.Flow]++
		if !isa.MayBeginCallAMD64(code[0]) {
			t.Fatalf("% x is a call", code)
		}
		if _, _, ok := CallBefore(procstate.AMD64, code[:in.Len], 0x1000+uint64(in.Len)); !ok {
			t.Fatalf("% x is not found", code[:in.Len])
		}
	}
	if found[isa.Call] < 1000 || found[isa.IndirectCall] < 1000 {
		t.Errorf("calls: %v", found)
	}
}
