/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What uretprobes have replaced on the stacks of a process that stands still,
 * read through a task iterator. See returns.h.
 */
#include "task.h"

char gpl_compatible[] SEC("license") = "GPL";

/* The process, in the loader's PID namespace. */
const volatile u32 wanted_tgid = 0;

/*
 * One for each thread that has met a uprobe, with the address of the
 * trampoline; then one for each return address replaced, the innermost first.
 */
struct task_probe {
	u32 tid;
	u32 is_return;
	u64 stack; /* SP at the function's entry */
	u64 addr;  /* the return address, or the trampoline's */
};

const struct task_probe *task_probe_type __attribute__((unused));

SEC("iter/task")
int on_probed_task(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_probe p = {};

	if (!task || tgid_of(task) != wanted_tgid || !kernel_has(task, utask))
		return 0;
	struct uprobe_task *utask = kernel_read(task, utask);
	struct mm_struct *mm = kernel_read(task, mm);
	if (!utask || !mm)
		return 0;
	struct xol_area *area = kernel_read(mm, uprobes_state.xol_area);
	p.tid = tid_of(task);
	p.addr = kernel_read(area, vaddr);
	bpf_seq_write(ctx->meta->seq, &p, sizeof(p));
	struct return_instance *ri = kernel_read(utask, return_instances);
	for (int i = 0; i < MAX_RETURNS && ri; i++) {
		p.is_return = 1;
		p.stack = kernel_read(ri, stack);
		p.addr = kernel_read(ri, orig_ret_vaddr);
		bpf_seq_write(ctx->meta->seq, &p, sizeof(p));
		ri = kernel_read(ri, next);
	}
	return 0;
}
