/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Samples put off for a moment. While the kernel enters or leaves a uprobe it
 * changes the thread's stack and registers one after the other, and for part
 * of that time an original return address is in no place that could be named.
 * A sample that falls there is taken when the kernel goes back to user code,
 * where the thread has not executed anything since: Linux 6.18 can call a
 * program then. Before, the sample is taken as it is.
 */
#ifndef SWBPF_DEFERRED_H
#define SWBPF_DEFERRED_H

#include "returns.h"

struct bpf_task_work {
	u64 opaque; /* the kernel's */
};

struct bpf_map {
	u32 id; /* never read: the kernel has such a struct */
};

typedef int (*task_work_callback)(struct bpf_map *map, void *key, void *value);

KFUNC int bpf_task_work_schedule_resume(struct task_struct *task, struct bpf_task_work *work, void *map,
					task_work_callback callback);
/* By this name before Linux 7.0; the loader leaves one of them. */
KFUNC int bpf_task_work_schedule_resume_impl(struct task_struct *task, struct bpf_task_work *work, void *map,
					     task_work_callback callback, void *aux);
KFUNC void bpf_local_irq_save(unsigned long *flags);
KFUNC void bpf_local_irq_restore(unsigned long *flags);

/* What is known of a sample that is still to be taken. */
struct deferred {
	struct bpf_task_work work;
	u64 pending;
	u64 weight;
	u64 kernel_bytes; /* of the kernel part of the stack */
	u8 kernel_pc[MAX_KERNEL_FRAMES * 8];
};

/* As many for each CPU: a task may lose the CPU before it goes on, or be met
 * more than once. */
enum { DEFERRED_PER_CPU = 4 };

enum { NR_URETPROBE = 335, NR_UPROBE = 336 }; /* of x86-64 */

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, DEFERRED_PER_CPU); /* for all possible CPUs, set by the loader */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct deferred);
} deferred_samples SEC(".maps");

/* A free one of this CPU's, NULL when there is none. */
INLINE struct deferred *free_deferred(u32 cpu)
{
	for (u32 i = 0; i < DEFERRED_PER_CPU; i++) {
		u32 at = cpu * DEFERRED_PER_CPU + i;
		struct deferred *d = bpf_map_lookup_elem(&deferred_samples, &at);
		if (d && !d->pending)
			return d;
	}
	return NULL;
}

/*
 * Whether the kernel, in which the current task is, may be about a uprobe of
 * the task: it is there by an interrupt or exception, or by the system call
 * of the trampoline that functions under a uretprobe return to, or that of what
 * a uprobe may be a call of, which go on as if they were none.
 */
INLINE bool may_be_in_uprobe(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	struct user_regs *saved = saved_user_regs(task);
	s64 nr = 0;
	bpf_probe_read_kernel(&nr, sizeof(nr), &saved->orig_ax);
	return nr < 0 || nr == NR_URETPROBE || nr == NR_UPROBE;
#else
	return false;
#endif
}

#endif
