package hotspot

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Where an adapter has the return address and the caller's SP its instructions tell, as JDK 21 makes them.
func TestAdapterPlaces(t *testing.T) {
	type inst struct {
		code string
		want adapterPlace
	}
	none := adapterPlace{}
	onStack, inRegister, popped := adapterPlace{noted: true}, adapterPlace{noted: true, popped: true}, adapterPlace{popped: true}
	for name, code := range map[string][]inst{
		"to compiled": {
			{"\x4c\x8b\xdc", onStack},        // mov r11,rsp
			{"\x58", onStack},                // pop rax
			{"\x48\x83\xe4\xf0", inRegister}, // and rsp,-16
			{"\x50", inRegister},             // push rax
			{"\x49\x8b\xc3", onStack},        // mov rax,r11
			{"\x4c\x8b\x5b\x40", onStack},    // mov r11,[rbx+64]
			{"\x76\x03", onStack},            // jbe over the next one
			{"\x48\x8b\xc3", onStack},        // mov rax,rbx
			{"\x41\xff\xe3", onStack},        // jmp r11
		},
		"to interpreted, 25": {
			{"\x4c\x8d\x6c\x24\x08", adapterPlace{}}, // lea r13,[rsp+8]
			{"\x58", onStack},                        // pop rax
			{"\x48\x83\xec\x10", inRegister},         // sub rsp,16
			{"\x48\x89\x04\x24", inRegister},         // mov [rsp],rax
			{"\x48\x8b\x4b\x38", onStack},            // mov rcx,[rbx+56]
			{"\xff\xe1", onStack},                    // jmp rcx
		},
		"to interpreted": {
			{"\x48\x83\x7b\x48\x00", none},           // cmp [rbx+72],0
			{"\x74\x0d", none},                       // je over the call
			{"\x4c\x8b\xec", adapterPlace{}},         // mov r13,rsp
			{"\x50", adapterPlace{}},                 // push rax
			{"\xe8\x00\x00\x00\x00", adapterPlace{}}, // call
			{"\x58", adapterPlace{}},                 // pop rax
			{"\x49\x8b\xe5", adapterPlace{}},         // mov rsp,r13
			{"\x58", none},                           // pop rax
			{"\x4c\x8b\xec", popped},                 // mov r13,rsp
			{"\x48\x83\xec\x10", inRegister},         // sub rsp,16
			{"\x48\x89\x04\x24", inRegister},         // mov [rsp],rax
			{"\x48\x89\x54\x24\x08", onStack},        // mov [rsp+8],rdx
			{"\xff\xe1", onStack},                    // jmp rcx
		},
	} {
		w := unwind.NewWalker(steptest.MadeUp(procstate.AMD64, steptest.NoMapping), unwind.NewGroup(), nil)
		const begin = 0x1000
		var all []byte
		for _, in := range code {
			all = append(all, in.code...)
		}
		pc := uint64(begin)
		for i, in := range code {
			// Around a call and behind it, until its registers are off the stack, nothing is known.
			isKnown := name != "to interpreted" || i < 2 || i > 6
			place, ok := adapterAt(w, all[pc-begin:], pc, begin, begin+uint64(len(all)))
			if ok != isKnown || ok && place != in.want {
				t.Errorf("%s, instruction %d: %+v, %v, want %+v", name, i, place, ok, in.want)
			}
			pc += uint64(len(in.code))
		}
	}
}
