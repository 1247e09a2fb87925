/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Alternate stacks. A thread that handles a signal on one has the frames that
 * were interrupted on another stack: which, the kernel has written into the
 * ucontext at the top of the alternate stack.
 */
#ifndef SWBPF_SIGNAL_H
#define SWBPF_SIGNAL_H

#include "task.h"

/*
 * The kernel puts the floating-point state first, whose size is the machine's,
 * and below it the rest of the frame: how far the ucontext, which is aligned,
 * can be from the aligned top of the stack, and where in it the interrupted SP is
 * (the kernel's get_sigframe).
 */
#if defined(__TARGET_ARCH_x86)
enum { UCONTEXT_ALIGN = 64, NEAREST_UCONTEXT = 960, FURTHEST_UCONTEXT = 16 << 10, UCONTEXT_SP = 160 };
#else
enum { UCONTEXT_ALIGN = 16, NEAREST_UCONTEXT = 4576, FURTHEST_UCONTEXT = 8 << 10, UCONTEXT_SP = 432 };
#endif

/* What precedes the registers in a ucontext. */
struct ucontext_head {
	u64 flags, link, stack, stack_flags, stack_size;
};

/* The alternate stack that a thread is on. */
struct signal_stack {
	u64 end; /* 0: it is on none */
	u64 met; /* SP of what the signal has interrupted; 0: not known */
};

/* At how many places is looked at a time: the verifier follows each turn of a loop. */
enum { SEARCHED = 8 };

/* Finds the ucontext of a thread on the alternate stack [lo, hi), at an address or one
 * of the next below. How far down from hi it is; 0 when it is not there, negative
 * when that cannot be read. */
GLOBAL int find_ucontext_from(u64 at, u64 lo, u64 hi)
{
	struct ucontext_head uc;

	for (int i = 0; i < SEARCHED; i++, at -= UCONTEXT_ALIGN) {
		if (bpf_probe_read_user(&uc, sizeof(uc), (void *)at))
			return -1;
		if (uc.flags <= 0xff && !uc.link && uc.stack == lo && uc.stack_size == hi - lo)
			return hi - at;
	}
	return 0;
}

/*
 * Finds the interrupted SP in the outermost ucontext on the alternate stack
 * [lo, hi): signals that came later are handled below it. How far down from the
 * top it is, 0 when it is not there.
 */
GLOBAL int find_ucontext(u64 lo, u64 hi)
{
	u64 top = hi & ~(UCONTEXT_ALIGN - 1ULL);

	for (u64 below = NEAREST_UCONTEXT; below < FURTHEST_UCONTEXT; below += SEARCHED * UCONTEXT_ALIGN) {
		int found = find_ucontext_from(top - below, lo, hi);
		if (found)
			return found > 0 ? found : 0;
	}
	return 0;
}

#if defined(__TARGET_ARCH_x86)
/*
 * The frame of a signal in a 32-bit program: below the floating-point state, which
 * is aligned, one of the form before FXSAVE's and, further down, the
 * registers, which point to that. A handler that does not ask for siginfo
 * has room for more between them (the kernel's ia32_setup_frame).
 */
enum { MATH_ALIGN = 64, NEAREST_MATH = 512, OLD_MATH = 112, REGISTERS = 224, REGISTERS_NO_INFO = 844, REGISTERS_SP = 28, REGISTERS_CS = 60, CS_32 = 0x23 };

/* The interrupted SP of a 32-bit program by registers at an address, if they
 * point to math; else 0. */
INLINE u32 compat_sp(u64 registers, u32 math)
{
	struct {
		u32 cs, flags, sp, ss, math;
	} r;

	if (bpf_probe_read_user(&r, sizeof(r), (void *)(registers + REGISTERS_CS)) || r.math != math || (u16)r.cs != CS_32)
		return 0;
	return r.sp;
}

/* The same by floating-point state at an address, or at one of the next below. */
GLOBAL int find_compat_sp_from(u64 math)
{
	for (int i = 0; i < SEARCHED; i++, math -= MATH_ALIGN) {
		u32 sp = compat_sp(math - REGISTERS, math - OLD_MATH);
		if (!sp)
			sp = compat_sp(math - REGISTERS_NO_INFO, math - OLD_MATH);
		if (sp)
			return sp;
	}
	return 0;
}

/* Finds the interrupted SP of a 32-bit program on the alternate stack that ends
 * at hi: of the outermost signal, as above. 0 when it is not there. */
GLOBAL int find_compat_sp(u64 hi)
{
	u64 top = hi & ~(MATH_ALIGN - 1ULL);

	for (u64 below = NEAREST_MATH; below < FURTHEST_UCONTEXT; below += SEARCHED * MATH_ALIGN) {
		u32 sp = find_compat_sp_from(top - below);
		if (sp)
			return sp;
	}
	return 0;
}
#endif

/* Whether sp is on the alternate stack of the current task. */
INLINE bool is_on_signal_stack(struct task_struct *task, u64 sp)
{
	return sp - task_field(task, sas_ss_sp) - 1 < task_field(task, sas_ss_size);
}

INLINE struct signal_stack signal_stack_of(struct task_struct *task, u64 sp)
{
	struct signal_stack s = {};

	if (!is_on_signal_stack(task, sp))
		return s;
	u64 lo = task_field(task, sas_ss_sp);
	s.end = lo + task_field(task, sas_ss_size);
	u64 below = (u32)find_ucontext(lo, s.end);
	if (below)
		bpf_probe_read_user(&s.met, sizeof(s.met), (void *)(s.end - below + UCONTEXT_SP));
#if defined(__TARGET_ARCH_x86)
	else if (s.end >> 32 == 0)
		s.met = (u32)find_compat_sp(s.end);
#endif
	return s;
}

#endif
