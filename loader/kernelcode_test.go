package loader

import (
	"strings"
	"testing"
)

// Of what is in the section of interrupts' entries, exceptions and system calls are the thread's own.
func TestInterruptEntries(t *testing.T) {
	const x86 = `ffffffff81000300 T __irqentry_text_start
ffffffff81000300 T irq_entries_start
ffffffff81000c60 T asm_exc_page_fault
ffffffff81000c90 T asm_int80_emulation
ffffffff81000d40 T asm_common_interrupt
ffffffff81000df0 T asm_sysvec_apic_timer_interrupt
ffffffff81000f70 T __irqentry_text_end
ffffffff81001000 T try_to_wake_up
ffffffff82000000 T common_interrupt
ffffffff82000100 T exc_page_fault
ffffffff82000200 T sysvec_apic_timer_interrupt
ffffffff82000300 t next
`
	const arm64 = `ffff800080010000 T __irqentry_text_start
ffff800080010000 t gic_handle_irq
ffff800080010100 t gic_handle_irq
ffff800080010200 T __irqentry_text_end
ffff800080010200 T el1h_64_sync
`
	for _, c := range []struct {
		text string
		pc   uint64
		want bool
	}{
		{x86, 0xffffffff81000c80, false}, {x86, 0xffffffff81000ca0, false}, {x86, 0xffffffff81001010, false},
		{x86, 0xffffffff82000000, true}, {x86, 0xffffffff820000ff, true}, {x86, 0xffffffff82000100, false},
		{x86, 0xffffffff82000231, true}, {x86, 0xffffffff82000300, false}, {x86, 0, false}, {x86, ^uint64(0), false},
		{arm64, 0xffff800080010050, true}, {arm64, 0xffff8000800101ff, true}, {arm64, 0xffff800080010200, false},
	} {
		code, err := parseKernelCode(strings.NewReader(c.text), true)
		if err != nil || code.isInterrupt(c.pc) != c.want {
			t.Errorf("%#x is of an interrupt: %v, %v; %x", c.pc, !c.want, err, code.interrupts)
		}
	}
}
