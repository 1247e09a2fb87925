package isa

import "testing"

// What gcc 12 makes of call *%rax with -mindirect-branch=thunk-inline, with and without
// -mharden-sls=all.
var thunks = []string{
	"\xeb\x11" + thunkPush + "\x48\x89\x04\x24\xc3" + "\xe8\xea\xff\xff\xff",
	"\xeb\x12" + thunkPush + "\x48\x89\x04\x24\xc3\xcc" + "\xe8\xe9\xff\xff\xff",
}

func TestThunks(t *testing.T) {
	const pc = 0x1108
	for _, thunk := range thunks {
		code := []byte(thunk)
		var in Inst
		decode := func(at int) Inst {
			t.Helper()
			if !DecodeAMD64(code[at:], pc+uint64(at), &in) {
				t.Fatalf("%x is no instruction", code[at:])
			}
			return in
		}
		if in := decode(0); in.Flow != IndirectCall || int(in.Len) != len(code) || in.Reg != rax || !in.IsThunk() || int(in.ThunkCall()) != len(code)-5 {
			t.Errorf("the whole is %+v", in)
		}
		if in := decode(ThunkEntry); in.Flow != Jump || in.Len != 5 || in.Target != pc+ThunkStore || in.NumOps != 2 {
			t.Errorf("the push is %+v", in)
		}
		if in := decode(ThunkStore); in.Flow != IndirectJump || in.Len != 5 || in.Reg != rax {
			t.Errorf("the jump is %+v", in)
		}
		if in := decode(len(code) - 5); in.Flow != Call || in.Target != pc+ThunkEntry {
			t.Errorf("the call is %+v", in)
		}
		sizes := map[int]int64{ThunkEntry: 8, ThunkStore: 16, thunkRet: 16}
		for at := range code {
			size, ok := InThunk(code, at)
			if size != sizes[at] || ok != (sizes[at] != 0) {
				t.Errorf("at %d the frame has %d bytes, %t", at, size, ok)
			}
			reg, pushed, atTop, ok := InJumpThunk(code, at)
			if ok != (sizes[at] != 0) || ok && (reg != rax || pushed != sizes[at]-8 || atTop != (at == thunkRet)) {
				t.Errorf("at %d a jump to %d, %d bytes pushed, %t, %t", at, reg, pushed, atTop, ok)
			}
		}
		for at := range code {
			other := []byte(thunk)
			other[at] ^= 0x40
			DecodeAMD64(other, pc, &in)
			if in.IsThunk() || DecodeAMD64(code[:at], pc, &in) && in.IsThunk() {
				t.Errorf("with another byte at %d, or none, it is a thunk", at)
			}
		}
		if reg, ok := storesTarget([]byte("\x4c\x89\x1c\x24\xc3")); !ok || reg != r11 {
			t.Errorf("a jump by %d, %t", reg, ok)
		}
		if _, ok := storesTarget([]byte("\x48\x8b\x04\x24\xc3")); ok {
			t.Error("a load is taken for a jump")
		}
	}
}
