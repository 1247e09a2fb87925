package steppers

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestGoRulesOfAnyCode: the rules of assembly functions of the runtime are made
// of whatever code stands under their names, up to the 1 KiB that is read of it.
func TestGoRulesOfAnyCode(t *testing.T) {
	parts := [][]byte{
		{0x48, 0x8b, 0x23}, {0xff, 0xe3}, {0x48, 0x8b, 0x6b, 8}, {0x49, 0x8b, 0x66, 0x38}, {0x48, 0x8b, 0x62, 0x38}, {0x48, 0x8b, 0x60, 0x38},
		{0x48, 0x89, 0xfc}, {0x48, 0x8b, 0x66, 0x38}, {0x48, 0x83, 0xe4, 0xf0}, {0x48, 0x89, 0xf4}, {0x48, 0x8b, 0x7c, 0x24, 8}, {0x0f, 0x05},
		moveX0ToSP, moveX2ToSP, moveX5ToSP, moveX13ToSP, storeX2, {1, 0, 0, 0x94}, {0xfe, 0x0f, 0x1e, 0xf8}, {0xf3, 0x53, 1, 0xa9}, {0x90}, {0},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var code []byte
		for range rng.IntN(12) {
			code = append(code, parts[rng.IntN(len(parts))]...)
		}
		code = bytes.Clone(code) // without room behind
		for _, at := range []uint64{0, 1, rng.Uint64N(uint64(len(code)) + 1), uint64(len(code)), uint64(len(code)) + 1, 1 << 20, 1 << 63} {
			for _, kind := range []goKind{goMcall, goMorestack} {
				leavingARM64(code, at, &goRule{kind: kind})
			}
			for _, amd64 := range []bool{true, false} {
				onSystemstack(code, at, amd64)
				onGoroutineInCallback(code, at, amd64)
				savedSPReg(code, at, amd64)
				cloneKind(code, at, amd64)
			}
			gogoRule(code, at, &goRule{})
			asmcgocallSlots(code, at, &goRule{})
			asmcgocallMet(code, at, &goRule{})
			lostLR(code, at)
			savedLR(code, at, 64)
			overwritesLR(code)
			poppedDelta(code, at, 64)
			asmcgocallARM64(code, at, &goRule{})
			crosscall2Saves(code, at)
			for kind := goForeign; kind <= goLeaving; kind++ {
				rule386(code, at, true, &goRule{kind: kind})
			}
			crosscall2ARM64(code, at, &goRule{})
		}
	}
}
