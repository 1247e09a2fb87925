/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Programs on uprobes. The kernel runs them where it may preempt them, so that
 * another thread's run of the same program can come in between on that CPU. Since
 * Linux 6.13 the stack of a program may be one for each CPU, and such a run would
 * write over it: values of the one thread would be used for the other, pointers
 * among them.
 */
#ifndef SWBPF_UPROBE_H
#define SWBPF_UPROBE_H

#include "kernel.h"

KFUNC void bpf_preempt_disable(void);
KFUNC void bpf_preempt_enable(void);

/* Stays empty: to call what is in there does nothing. */
struct {
	MAP_UINT(type, MAP_PROG_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} no_programs SEC(".maps");

/* Whether the kernel lets a program call functions of its own that it has verified
 * apart (GLOBAL) while it cannot be preempted. */
#define MAY_STAY kernel_has((struct bpf_subprog_info *)0, might_sleep)

/*
 * From here to end_uprobe no other thread runs on this CPU, so that its ring is not
 * in use for longer than the program takes. Before Linux 6.15 that cannot be had; the
 * stack is the thread's own all the same: programs that make tail calls have no other.
 */
INLINE void begin_uprobe(void *ctx)
{
	if (kernel_has((struct bpf_subprog_info *)0, priv_stack_mode))
		bpf_tail_call(ctx, &no_programs, 0);
	if (MAY_STAY)
		bpf_preempt_disable();
}

INLINE void end_uprobe(void)
{
	if (MAY_STAY)
		bpf_preempt_enable();
}

#endif
