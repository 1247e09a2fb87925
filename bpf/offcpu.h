/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Time off the CPU. A thread's stack can be read while it is current, which
 * when it blocks is the case at the switch away from it, and no more when it
 * is switched to: so its sample is taken then. How long it was away is known
 * at the switch back, which sends a small record of its own; user space puts
 * the two together (record.h).
 */
#ifndef SWBPF_OFFCPU_H
#define SWBPF_OFFCPU_H

#include "task.h"

/* Bits of task_struct.__state and the tracepoint's prev_state (sched.h). */
enum {
	TASK_INTERRUPTIBLE = 0x01,
	TASK_UNINTERRUPTIBLE = 0x02,
	TASK_STOPPED_OR_TRACED = 0x04 | 0x08,
	TASK_EXITING = 0x10 | 0x20 | 0x80, /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
};

#if defined(__TARGET_ARCH_x86)
enum { NR_FUTEX = 202, NR_FUTEX_COMPAT32 = 240 };
#else
enum { NR_FUTEX = 98, NR_FUTEX_COMPAT32 = 240 };
#endif

/* The number of the system call that the current task is in; -1 for none. */
INLINE s64 current_syscall(struct task_struct *task)
{
	struct user_regs *regs = saved_user_regs(task);
#if defined(__TARGET_ARCH_x86)
	u64 nr = -1;
	bpf_probe_read_kernel(&nr, sizeof(nr), &regs->orig_ax);
	return nr;
#else
	return kernel_read((struct pt_regs *)regs, syscallno);
#endif
}

/* Why the current task leaves the CPU, from its state. */
INLINE u8 blocked_state(struct task_struct *task, u64 state)
{
	if (state & TASK_STOPPED_OR_TRACED)
		return OFF_CPU_STOPPED;
	if (state & TASK_UNINTERRUPTIBLE)
		return OFF_CPU_DISK;
	if (!(kernel_read(task, flags) & PF_KTHREAD)) {
		s64 nr = current_syscall(task);
		if (nr == NR_FUTEX || nr == NR_FUTEX_COMPAT32)
			return OFF_CPU_LOCK;
	}
	return OFF_CPU_SLEEP;
}

/* The state in which prev leaves the CPU; 0 when it could go on. */
INLINE u64 state_of_prev(const struct bpf_raw_tracepoint_args *ctx, struct task_struct *prev)
{
	if (ctx->args[0]) /* preempted */
		return 0;
	if (have_switch_state) /* __state may have changed again by a wake-up */
		return (u32)ctx->args[3];
	return kernel_has(prev, __state) ? kernel_read(prev, __state) :
					   kernel_read((struct task_struct___before_5_14 *)prev, state);
}

/*
 * Whether this CPU has taken all the samples that it may within a time: with
 * too many switches, the samples would be what they measure.
 */
INLINE bool too_many_switches(struct counters *n, u64 now)
{
	if (now - n->window_start >= OFF_CPU_WINDOW) {
		n->window_start = now;
		n->window_samples = 0;
	}
	return n->window_samples++ >= OFF_CPU_PER_WINDOW;
}

/* The next task comes back: says how long it was away. */
INLINE void end_off_cpu(struct counters *n, struct task_struct *next, u64 now)
{
	u32 pid = kernel_read(next, pid);
	struct off_cpu_start *start = bpf_map_lookup_elem(&off_cpu_starts, &pid);

	if (!start)
		return;
	struct off_cpu_end end = { .time = now, .start = start->time, .tid = start->tid };
	bool sampled = start->sampled;
	bpf_map_delete_elem(&off_cpu_starts, &pid);
	if (!sampled) {
		n->skipped_rate++;
		n->unsampled_time += now - end.start;
		return;
	}
	end.dropped = now - end.start < min_off_cpu;
	if (bpf_ringbuf_output(&ring, &end, sizeof(end), RINGBUF_NO_WAKEUP)) {
		n->lost_ring_full++;
		return;
	}
	n->ring_bytes += sizeof(end);
	if (end.dropped)
		n->skipped_short++;
	else
		n->samples++;
}

#endif
