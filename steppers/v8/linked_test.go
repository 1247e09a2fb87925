package v8

import (
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// linkedStep is an instruction, and where the return address is before it.
type linkedStep struct {
	code string
	want unframed
}

var (
	linkedOthers = unframed{} // know it
	linkedFrame  = unframed{ok: true, framed: true}
	linkedInLR   = unframed{ok: true, inRegister: true, reg: procstate.ARM64.LR}
)

// Functions of V8's own for AArch64, in parts, as V8 13.6 has them.
func TestV8Linked(t *testing.T) {
	for name, c := range map[string]struct {
		inFrame bool
		steps   []linkedStep
	}{
		"BaselineLeaveFrame": {true, []linkedStep{
			{"\x6a\x00\x00\x54", linkedFrame},  // b.ge to the next but two
			{"\x84\x77\x02\x94", linkedFrame},  // bl
			{"\xe0\x0f\xc1\xa8", linkedFrame},  // ldp x0, x3, [sp], #16
			{"\xae\x83\x5e\xf8", linkedFrame},  // ldur x14, [x29, #-24]
			{"\xbf\x03\x00\x91", linkedFrame},  // mov sp, x29
			{"\xfd\x7b\xc1\xa8", linkedFrame},  // ldp x29, x30, [sp], #16
			{"\x6f\x04\x00\x91", linkedInLR},   // add x15, x3, #0x1
			{"\xff\x6f\x2f\x8b", linkedInLR},   // add sp, sp, x15, lsl #3
			{"\xc0\x03\x5f\xd6", linkedInLR},   // ret
			{"\xcc\xcc\xcc\xcc", linkedOthers}, // nothing gets here
		}},
		"ContinueToJavaScriptBuiltin": {true, []linkedStep{
			{"\xfd\xc3\x03\x91", linkedOthers}, // add x29, sp, #0xf0
			{"\xbc\x6f\x71\xa9", linkedFrame},  // ldp x28, x27, [x29, #-240]
			{"\xbf\x03\x00\x91", linkedFrame},  // mov sp, x29
			{"\xfd\x7b\xc1\xa8", linkedFrame},  // ldp x29, x30, [sp], #16
			{"\x20\x02\x1f\xd6", linkedInLR},   // br x17
		}},
		"InterpreterEnterAtBytecode": {true, []linkedStep{
			{"\x20\x02\x3f\xd6", linkedFrame}, // blr x17
			{"\xa1\x03\x5f\xf8", linkedFrame}, // ldur x1, [x29, #-16]
			{"\x20\x02\x1f\xd6", linkedFrame}, // br x17
		}},
		"BaselineOrInterpreterEnterAtBytecode": {true, []linkedStep{
			{"\xfd\x7b\x01\xa9", linkedFrame},  // stp x29, x30, [sp, #16]
			{"\xfd\x43\x00\x91", linkedFrame},  // add x29, sp, #0x10
			{"\x84\x77\x02\x94", linkedOthers}, // bl
			{"\xbf\x03\x00\x91", linkedOthers}, // mov sp, x29
			{"\xfd\x7b\xc1\xa8", linkedOthers}, // ldp x29, x30, [sp], #16
			{"\xfb\xff\xff\x17", linkedFrame},  // b to the first
		}},
		"ResumeGeneratorTrampoline": {false, []linkedStep{
			{"\xb0\x00\x10\x36", linkedOthers}, // tbz w16, #2, behind the call
			{"\xfe\x7f\xbf\xa9", linkedOthers}, // stp x30, xzr, [sp, #-16]!
			{"\x25\xbc\x00\x91", linkedOthers}, // add x5, x1, #0x2f
			{"\xf6\xd8\xff\x97", linkedOthers}, // bl
			{"\xfe\x7f\xc1\xa8", linkedOthers}, // ldp x30, xzr, [sp], #16
			{"\xff\x6f\x2b\xcb", linkedOthers}, // sub sp, sp, x11, lsl #3
			{"\xff\x7b\x2b\xf8", linkedInLR},   // str xzr, [sp, x11, lsl #3]
			{"\x20\x02\x1f\xd6", linkedInLR},   // br x17
		}},
		"ResumeGeneratorTrampoline, with a signed address": {false, []linkedStep{
			{"\x7f\x23\x03\xd5", linkedOthers}, // pacibsp
			{"\xfe\x7f\xbf\xa9", linkedOthers}, // stp x30, xzr, [sp, #-16]!
			{"\xf6\xd8\xff\x97", linkedOthers}, // bl
			{"\xfe\x7f\xc1\xa8", linkedOthers}, // ldp x30, xzr, [sp], #16
			{"\xff\x23\x03\xd5", linkedOthers}, // autibsp
			{"\xff\x6f\x2b\xcb", linkedOthers}, // sub sp, sp, x11, lsl #3
			{"\xff\x7b\x2b\xf8", linkedInLR},   // str xzr, [sp, x11, lsl #3]
			{"\x20\x02\x1f\xd6", linkedInLR},   // br x17
		}},
		"InterpreterOnStackReplacement": {false, []linkedStep{
			{"\xbf\x03\x00\x91", linkedOthers}, // mov sp, x29
			{"\xfd\x7b\xc1\xa8", linkedOthers}, // ldp x29, x30, [sp], #16
			{"\x5e\x00\x00\x10", linkedOthers}, // adr x30, to behind the return
			{"\xc0\x03\x5f\xd6", linkedOthers}, // ret
			{"\x20\x02\x1f\xd6", linkedOthers}, // br x17
		}},
	} {
		var code []byte
		for _, s := range c.steps {
			code = append(code, s.code...)
		}
		got := findLinked(procstate.ARM64, code, 0x1000, c.inFrame)
		for i, s := range c.steps {
			if got[i] != s.want {
				t.Errorf("%s: before instruction %d: %+v, want %+v", name, i, got[i], s.want)
			}
		}
		for n := range code {
			findLinked(procstate.ARM64, code[:n], 0x1000, c.inFrame) // does not panic
		}
	}
}

// What compiled code begins with.
func TestV8InCompiled(t *testing.T) {
	const check = "\x50\x80\x5f\xf8" + "\x70\x00\x00\x36" + "\x71\x17\x00\x58" + "\x20\x02\x1f\xd6" // ldur x16, [x2, #-8]; tbz w16, #0, behind; ldr x17; br x17
	const code = "\xfd\x7b\xbf\xa9" + "\xfd\x03\x00\x91" + "\x02\x14\x80\xd2"                       // stp x29, x30, [sp, #-16]!; mov x29, sp; mov x2, #0xa0
	for off, want := range map[uint64]unframed{0: linkedInLR, 4: linkedInLR, 8: linkedFrame, 12: linkedFrame, 1000: linkedFrame} {
		if got := inCompiled(procstate.ARM64, []byte(code), true, off); got != want {
			t.Errorf("baseline at %d: %+v, want %+v", off, got, want)
		}
	}
	for off := uint64(0); off < uint64(len(check+code)); off += 4 {
		got, isBefore := inCompiled(procstate.ARM64, []byte(check+code), false, off), off < uint64(len(check))+8
		if got.ok != isBefore || isBefore && got != linkedInLR {
			t.Errorf("optimised at %d: %+v", off, got)
		}
	}
	if got := inCompiled(procstate.ARM64, []byte(code[:4]), true, 1000); got != (unframed{}) {
		t.Errorf("code that cannot be read: %+v", got)
	}
	if !returns([]byte("\xff\x43\x00\x91\xc0\x03\x5f\xd6")).ok || returns([]byte("\xc0\x03\x5f\xd6\xff\x43\x00\x91")).ok || returns(nil).ok {
		t.Error("a return is not seen, or another instruction is one")
	}
}

// What calls JavaScript from C++ loads more than its frame in the end.
func TestV8Entry(t *testing.T) {
	const (
		enter  = "\x7f\x23\x03\xd5" + "\xfd\x7b\xbf\xa9" + "\xfd\x03\x00\x91" // pacibsp; stp x29, x30, [sp, #-16]!; mov x29, sp
		called = "\xf6\xd8\xff\x97" + "\xff\x83\x00\x91"                      // bl; add sp, sp, #32
		frame  = "\xfd\x7b\xc1\xa8" + "\xff\x23\x03\xd5"                      // ldp x29, x30, [sp], #16; autibsp
		saved  = "\xf3\x53\xc1\xa8" + "\xe8\x27\xc1\x6c"                      // ldp x19, x20, [sp], #16; ldp d8, d9, [sp], #16
		ret    = "\xc0\x03\x5f\xd6"
		jump   = "\x02\x00\x00\x14"
	)
	for code, want := range map[string]uint64{
		enter + called + frame + saved + ret: 48, enter + called + frame + ret: 16,
		enter + called + frame + saved: 0, enter + called + frame + jump + saved + ret: 0, enter + called + ret: 0,
	} {
		if got := entryAbove(procstate.ARM64, []byte(code)); got != want {
			t.Errorf("%x: %d bytes, want %d", code, got, want)
		}
	}
}

// Code may be anything, jump anywhere and end in the middle of an instruction: there is an end, and an answer for each.
func TestV8LinkedOfAnything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 20_000 {
		code := make([]byte, r.IntN(128))
		for i := range code {
			code[i] = byte(r.Uint32())
			if i%4 == 3 && r.IntN(2) == 0 {
				code[i-2], code[i-1], code[i] = byte(-r.IntN(2)), byte(-r.IntN(2)), 0x14|byte(r.IntN(2))*0x40 // b or b.cond to near by, or far away
			}
		}
		if places := findLinked(procstate.ARM64, code, 0x1000, n%2 == 0); len(places) != len(code)/4 {
			t.Fatalf("%x: %d places", code, len(places))
		}
	}
}
