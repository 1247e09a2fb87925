/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is asked of a task: its IDs and the registers of its user code. */
#ifndef SWBPF_TASK_H
#define SWBPF_TASK_H

#include "config.h"

enum { MAX_PID_LEVELS = 32 }; /* MAX_PID_NS_LEVEL */

/*
 * The kernel keeps mappings at least this far below the main stack (MIN_GAP),
 * so an SP farther away is on some other stack, a coroutine's for example.
 */
enum { MAIN_STACK_REACH = 128 << 20 };

/*
 * The number of a struct pid in the loader's PID namespace, 0 when it has
 * none there. A task has a number at each level from the first namespace down
 * to its own; ours is nearly always the last or the one before.
 */
INLINE u32 number_in_namespace(struct pid *pid)
{
	u32 level = kernel_read(pid, level);
	struct upid *numbers = (void *)kernel_address(pid, numbers);

	for (int i = 0; i < MAX_PID_LEVELS; i++) {
		if (level >= MAX_PID_LEVELS)
			return 0;
		struct upid *at = (void *)numbers + level * sizeof(struct upid);
		struct pid_namespace *ns = kernel_read(at, ns);
		if (kernel_read(ns, ns.inum) == pid_namespace)
			return kernel_read(at, nr);
		level--; /* below 0 it wraps, which ends the loop */
	}
	return 0;
}

/*
 * The current task. With a recent kernel, its fields and those of what it
 * points to can be read by plain loads: see task_field.
 */
INLINE struct task_struct *current_task(void)
{
	return have_task_pt_regs ? bpf_get_current_task_btf() : bpf_get_current_task();
}

/* The value of ptr->field, where ptr comes from current_task(). For each pointer that
 * is read so of a task the verifier searches all of the kernel's types: it
 * is for what the usual sample reads, or a pointer is needed for. */
#define task_field(ptr, field) (have_task_pt_regs ? (ptr)->field : kernel_read(ptr, field))

/* The tgid of any task in the loader's PID namespace, 0 when not visible. */
INLINE u32 tgid_of(struct task_struct *task)
{
	if (!pid_namespace)
		return kernel_read(task, tgid);
	struct task_struct *leader = kernel_read(task, group_leader);
	return number_in_namespace(kernel_read(leader, thread_pid));
}

/* The tid of any task in the loader's PID namespace, 0 when not visible. */
INLINE u32 tid_of(struct task_struct *task)
{
	if (!pid_namespace)
		return kernel_read(task, pid);
	return number_in_namespace(kernel_read(task, thread_pid));
}

/* Those of the current task. */
INLINE u32 current_tid(struct task_struct *task)
{
	if (!pid_namespace)
		return task_field(task, pid);
	return number_in_namespace(kernel_read(task, thread_pid));
}

INLINE u32 current_tgid(struct task_struct *task)
{
	if (!pid_namespace)
		return task_field(task, tgid);
	return tgid_of(task);
}

/* Copies the name of the current task. What is behind its zero byte may be
 * left from a longer name before. */
INLINE void copy_comm(u8 comm[16], struct task_struct *task)
{
	u64 *to = (void *)comm;

	if (have_task_pt_regs) {
		const u64 *from = (void *)task->comm;
		to[0] = from[0];
		to[1] = from[1];
	} else
		bpf_probe_read_kernel(to, 16, kernel_address(task, comm));
}

/*
 * Where the kernel keeps the registers of the current task's user code: at
 * the top of the task's kernel stack, whatever has interrupted what since.
 */
INLINE void *saved_user_regs(struct task_struct *task)
{
	if (have_task_pt_regs)
		return bpf_task_pt_regs(task);
	return kernel_read(task, stack) + thread_size - kernel_sizeof(struct pt_regs);
}

/*
 * Whether a sample taken in the kernel, whose stack pointer was kernel_sp, fell
 * in the instructions that are just saving the user's registers at saved. Only
 * a true NMI can do that. On x86 these instructions run on the user's stack
 * pointer at first (its addresses are those of the lower half), then with the
 * stack pointer inside of what is being saved. On arm64 NMIs stay masked there.
 */
INLINE bool is_saving_regs(u64 kernel_sp, void *saved)
{
#if defined(__TARGET_ARCH_x86)
	void *end = saved + sizeof(struct user_regs);
	hide(end); /* the verifier lets pointers be compared, not subtracted */
	return !(kernel_sp >> 63) || (kernel_sp >= (u64)saved && kernel_sp < (u64)end);
#else
	return false;
#endif
}

/* Whether the task is executing a new program. */
INLINE bool is_in_exec(struct task_struct *task)
{
	return kernel_has(task, in_execve) && kernel_read_bits(task, in_execve);
}

/* Completes the user registers of a sample. Returns its state. */
INLINE enum user_state user_state_of(struct task_struct *task, struct sample_header *h)
{
	h->thread_pointer = thread_pointer_of(task);
	return is_compat32(&h->regs) ? USER_COMPAT32 : USER_NATIVE;
}

/*
 * Fills the user registers of a sample. Returns its state. kernel_sp is the stack
 * pointer of the event when it fell in the kernel and that is known, else 0.
 */
INLINE enum user_state read_user_regs(struct task_struct *task, struct sample_header *h, u64 kernel_sp)
{
	if (task_field(task, flags) & PF_KTHREAD)
		return USER_NONE;
	if (!kernel_read(task, mm))
		return USER_EXITED;
	void *saved = saved_user_regs(task);
	if (kernel_sp && is_saving_regs(kernel_sp, saved))
		return USER_PARTIAL;
	if (bpf_probe_read_kernel(&h->regs, sizeof(h->regs), saved))
		return USER_PARTIAL;
	return user_state_of(task, h);
}

#endif
