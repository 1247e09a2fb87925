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

/*
 * Finds the interrupted SP in the outermost ucontext on the alternate stack
 * [lo, hi): signals that came later are handled below it. How far down from the
 * top it is, 0 when it is not there.
 */
GLOBAL int find_ucontext(u64 lo, u64 hi)
{
	u64 top = hi & ~(UCONTEXT_ALIGN - 1ULL);
	struct ucontext_head uc;

	for (u64 below = NEAREST_UCONTEXT; below < FURTHEST_UCONTEXT; below += UCONTEXT_ALIGN) {
		if (bpf_probe_read_user(&uc, sizeof(uc), (void *)(top - below)))
			return 0;
		if (uc.flags <= 0xff && !uc.link && uc.stack == lo && uc.stack_size == hi - lo)
			return hi - (top - below);
	}
	return 0;
}

INLINE struct signal_stack signal_stack_of(struct task_struct *task, u64 sp)
{
	struct signal_stack s = {};
	u64 lo = task_field(task, sas_ss_sp), size = task_field(task, sas_ss_size);

	if (sp <= lo || sp - lo > size)
		return s;
	s.end = lo + size;
	u64 below = (u32)find_ucontext(lo, s.end);
	if (below)
		bpf_probe_read_user(&s.met, sizeof(s.met), (void *)(s.end - below + UCONTEXT_SP));
	return s;
}

#endif
