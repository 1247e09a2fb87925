/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The stack of a child that has its parent's memory until it executes a program,
 * as with posix_spawn. The C library makes it for this child alone, so that
 * nothing can be learned from earlier samples. But the parent waits in the
 * system call that names it.
 */
#ifndef SWBPF_SPAWN_H
#define SWBPF_SPAWN_H

#include "task.h"

enum { NR_CLONE3 = 435, CLONE3_STACK = 40 }; /* where in its argument the stack is */

/*
 * What C libraries' clone has put on the stack that it gives to the system call: an argument,
 * in glibc the function too. The child takes them off, and calls the function from there.
 */
enum { ABOVE_CLONE_STACK = 16 };

struct clone3_stack {
	u64 lo, size;
};

/* A word of what the kernel saved of a task's registers. */
INLINE u64 saved_word(const u64 *at)
{
	u64 word = 0;
	bpf_probe_read_kernel(&word, sizeof(word), at);
	return word;
}

/*
 * How far above sp the stack ends that the current task was given by a parent
 * that waits for it; negative when that is not known. In an exec the parent has
 * been let go on for a while before the memory is given up. It may have got as
 * far as to a child with another stack: that of clone3 must hold sp, and with
 * that of clone more may be copied than is live.
 */
GLOBAL int spawned_stack(u64 sp)
{
	struct task_struct *task = current_task();

	if (!kernel_read(task, vfork_done) && !is_in_exec(task))
		return -1;
	struct task_struct *parent = task_field(task, real_parent);
	if (!parent || kernel_read(parent, mm) != kernel_read(task, mm))
		return -1;
	struct user_regs *saved = saved_user_regs(parent);
	if (is_mode32(saved_word(&mode_of(*saved))))
		return -1;
	u64 nr = saved_word(&system_call_of(*saved)), end = 0;
	struct clone3_stack stack;
	if (nr == NR_CLONE)
		end = saved_word(&second_argument_of(*saved)) + ABOVE_CLONE_STACK;
	else if (nr == NR_CLONE3) {
		u64 args = saved_word(&first_argument_of(*saved));
		if (!bpf_probe_read_user(&stack, sizeof(stack), (void *)(args + CLONE3_STACK)) && stack.lo <= sp)
			end = stack.lo + stack.size;
	}
	return end >= sp && end - sp <= MAIN_STACK_REACH ? end - sp : -1;
}

#endif
