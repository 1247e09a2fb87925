/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Return addresses that uretprobes have replaced. When a probed function is
 * entered, the kernel puts the address of its trampoline in place of the
 * return address, and keeps the original in a list of the task, the innermost
 * call first (kernel/events/uprobes.c, prepare_uretprobe).
 */
#ifndef SWBPF_RETURNS_H
#define SWBPF_RETURNS_H

#include "stack.h"

/*
 * The address of a breakpoint instruction at the PC or right before it, 0 when
 * there is none. Having met one, x86 stands behind it until the kernel has
 * found the uprobe; then it stands at it.
 */
INLINE u64 breakpoint_at(u64 pc)
{
#if defined(__TARGET_ARCH_x86)
	u8 bytes[2] = {};

	bpf_probe_read_user(bytes, sizeof(bytes), (void *)(pc - 1));
	if (bytes[0] == 0xcc)
		return pc - 1;
	if (bytes[1] == 0xcc)
		return pc;
#endif
	return 0;
}

/* Whether a task has ever met a uprobe: nearly none has. */
INLINE bool has_met_uprobe(struct task_struct *task)
{
	return kernel_has(task, utask) && kernel_read(task, utask);
}

/*
 * Adds the list of a task that has met a uprobe behind what the record has, counts
 * its entries in the header, which has none yet, and says there where an
 * instruction is executed in place of a breakpoint. It may be in the trampoline
 * even when the list is empty.
 */
INLINE void add_returns(struct replaced_return *out, struct sample_header *h, struct task_struct *task, bool in_kernel)
{
	struct uprobe_task *utask = kernel_read(task, utask);

	if (!out || !utask)
		return;
	if (in_kernel)
		h->breakpoint = breakpoint_at(program_counter(&h->regs));
	struct mm_struct *mm = kernel_read(task, mm);
	struct xol_area *area = kernel_read(mm, uprobes_state.xol_area);
	h->trampoline = kernel_read(area, vaddr);
	if (kernel_read(utask, active_uprobe)) {
		h->breakpoint = kernel_read(utask, vaddr);
		h->slot = kernel_read(utask, xol_vaddr);
	}
	struct return_instance *ri = kernel_read(utask, return_instances);
	for (int i = 0; i < MAX_RETURNS; i++) {
		if (!ri)
			break;
		out[i].stack = kernel_read(ri, stack);
		out[i].ra = kernel_read(ri, orig_ret_vaddr);
		h->returns++;
		ri = kernel_read(ri, next);
	}
}

/* Adds the list of the current task to the record. */
GLOBAL int add_current_returns(u32 cpu, u64 in_kernel)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	if (h) {
		add_returns(in_record(r, r->end), h, current_task(), in_kernel);
		r->end += h->returns * sizeof(struct replaced_return);
	}
	return 0;
}

#endif
