/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Kernel stacks as they are, for user space to unwind (loader/kernelstack.go). That
 * costs a fraction of having the kernel do it, which waits for its tables: at the
 * time of an interrupt they are in no cache.
 *
 * Of the words of a stack only those are sent that may matter to unwinding, addresses of
 * code and of the stack itself: first a mask for each group of 64 words with a bit for
 * each of them, the first in bit 0; then 4 bytes for each bit that is set. These are an offset
 * from the beginning of the NEAR bytes around the end of the task's stack, or, plus
 * NEAR, of the stack for interrupts; or, from 1 << LOG_CODE on, the low half of
 * an address of code.
 */
#ifndef SWBPF_KERNELSTACK_H
#define SWBPF_KERNELSTACK_H

#include "task.h"
#include "ring.h"

#if defined(__TARGET_ARCH_x86)

enum {
	KERNEL_GROUP = 64,
	IRQ_STACK_PAGES = 4,
	LOG_CODE = 31, /* of the last bytes of the address space, where the kernel's code is */
};

/* 1 when x < 1 << log, else 0; without a branch, which would be mispredicted. */
INLINE u64 is_below(u64 x, int log)
{
	u64 high = x >> log, minus = -high;

	hide(minus); /* or else the compiler sees what this is for, and branches */
	u64 below = (high | minus) >> 63 ^ 1;
	hide(below);
	return below;
}

/* Puts what is kept of a group of words where they go. */
GLOBAL int keep_kernel_words(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	struct kernel_copy *c = &r->kernel;
	u64 *mask = in_record(r, c->masks), *fresh = in_record(r, c->in), kept = 0, left = c->words;
	u32 *begin = in_record(r, c->out), *to = begin;
	u64 task = c->task_end - NEAR / 2, irq = c->irq_end - NEAR / 2;

	if (!mask || !fresh || !begin)
		return 0;
#pragma clang loop unroll(disable)
	for (u64 i = 0; i < KERNEL_GROUP; i++) {
		if (i >= left)
			break;
		u64 word = fresh[i], is_code = is_below(~word, LOG_CODE);
		u64 of_task = is_below(word - task, LOG_NEAR), of_irq = is_below(word - irq, LOG_NEAR) & ~of_task;
		u64 keep = (is_code | of_task | of_irq) & 1; /* the verifiers of older kernels do not see it */
		*to = (word & -is_code) | ((word - task) & -of_task) | ((word - irq + NEAR) & -of_irq);
		kept |= keep << i;
		keep *= sizeof(*to);
		hide(keep);
		to = (void *)to + keep;
	}
	*mask = kept;
	c->masks += sizeof(*mask);
	c->in += KERNEL_GROUP * sizeof(u64);
	c->out += (void *)to - (void *)begin;
	c->words = left > KERNEL_GROUP ? left - KERNEL_GROUP : 0;
	return 0;
}

/* Whether return addresses in the kernel may have been replaced. */
INLINE bool has_kernel_hooks(struct task_struct *task)
{
	return (kernel_has(task, ret_stack) && kernel_read(task, ret_stack)) ||
	       (kernel_has(task, rethooks) && kernel_read(task, rethooks.first));
}

/*
 * The end of the stack for interrupts that holds sp, if that is one: its last
 * word is the address at which the task's stack goes on, which lies in [from, to).
 * Behind both there is a page that is not mapped. 0 when it is none.
 */
INLINE u64 interrupt_stack_end(u64 sp, u64 from, u64 to)
{
	for (int i = 0; i < IRQ_STACK_PAGES; i++) {
		u64 end = (sp | (PAGE - 1)) + 1 + i * PAGE, last = 0;
		if (bpf_probe_read_kernel(&last, sizeof(last), (void *)(end - sizeof(last))))
			return 0;
		if (last >= from && last < to)
			return end;
	}
	return 0;
}

/* Copies a piece of a kernel stack to the record at an offset. */
INLINE bool copy_kernel_piece(struct cpu_ring *r, u64 offset, u64 from, u64 n)
{
	void *to = in_record(r, offset);

	if (!to || !n)
		return false;
	hide(n); /* or else one comparison does for both, of another number than is passed */
	return n <= CHUNK && n % sizeof(u64) == 0 && !bpf_probe_read_kernel(to, n, (void *)from);
}

/*
 * Adds the stack of kernel code that was interrupted to the record. Returns whether
 * it did: not of code that runs on the stack of an exception.
 */
INLINE bool copy_kernel_stack(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct sample_header *h,
			      struct task_struct *task)
{
	struct kernel_copy *c = &r->kernel;
	u64 sp = ctx->regs.rsp, at = r->end + sizeof(struct kernel_regs), irq_bytes = 0, task_from = sp;

	*(void *volatile *)&c->task_end = saved_user_regs(current_task()); /* read back, it is a number */
	u64 task_end = *(volatile u64 *)&c->task_end;
	struct kernel_regs *regs = in_record(r, r->end);
	if (!regs || has_kernel_hooks(task))
		return false;
	c->irq_end = task_end;
	c->masks = at;
	c->in = at + (CHUNK / sizeof(u64) / KERNEL_GROUP + 1) * sizeof(u64); /* behind all masks */
	if (task_end - sp > CHUNK) {
		c->irq_end = interrupt_stack_end(sp, task_end - CHUNK, task_end);
		irq_bytes = c->irq_end - sp;
		if (!c->irq_end || !copy_kernel_piece(r, c->in, sp, irq_bytes))
			return false;
		u64 *last = in_record(r, c->in + irq_bytes - sizeof(*last));
		if (!last)
			return false;
		task_from = *last;
	}
	u64 bytes = irq_bytes + task_end - task_from;
	if (bytes > CHUNK || !copy_kernel_piece(r, c->in + irq_bytes, task_from, task_end - task_from))
		return false;
	c->words = bytes / sizeof(u64);
	c->out = at + (c->words + KERNEL_GROUP - 1) / KERNEL_GROUP * sizeof(u64);
	for (u64 i = 0; i <= CHUNK / sizeof(u64) / KERNEL_GROUP && c->words; i++)
		keep_kernel_words(h->cpu);
	regs->ip = ctx->regs.rip;
	regs->sp = sp;
	regs->bp = ctx->regs.rbp;
	regs->di = ctx->regs.rdi;
	regs->dx = ctx->regs.rdx;
	regs->r10 = ctx->regs.r10;
	regs->r13 = ctx->regs.r13;
	regs->task_end = task_end;
	h->kernel_bytes = bytes;
	h->irq_bytes = irq_bytes;
	r->end = (c->out + sizeof(u64) - 1) & ~(sizeof(u64) - 1);
	return true;
}

#else

/* Where the kernel follows frame pointers, it is as cheap. */
INLINE bool copy_kernel_stack(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct sample_header *h,
			      struct task_struct *task)
{
	return false;
}

#endif

/*
 * Adds the kernel part of the stack, leaf first, without its first frames.
 */
INLINE void add_kernel_stack(void *ctx, struct cpu_ring *r, struct sample_header *h, u64 skip)
{
	long n = bpf_get_stack(ctx, h + 1, MAX_KERNEL_FRAMES * 8, skip);

	if (n <= 0 || n > MAX_KERNEL_FRAMES * 8)
		return;
	h->kernel_frames = (u64)n / 8;
	r->end += n;
}

/* Adds the kernel part of the stack of a perf event. */
APART void add_interrupted_kernel_stack(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct sample_header *h,
					 struct task_struct *task)
{
	u64 how = *(volatile u64 *)&r->kernel_stacks;
	bool ask = how != KERNEL_COPIED || r->counters.samples % KERNEL_CHECKS == 0;

	if (ask)
		add_kernel_stack(ctx, r, h, 0);
	if (how != KERNEL_ASKED && !copy_kernel_stack(ctx, r, h, task) && !ask)
		add_kernel_stack(ctx, r, h, 0);
}

/* Adds the kernel part of the stack of a perf event that fell in the kernel, if it is wanted. */
INLINE void add_kernel_part(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct sample_header *h,
			    struct task_struct *task)
{
	if (want_kernel && copy_kernel)
		add_interrupted_kernel_stack(ctx, r, h, task);
	else if (want_kernel)
		add_kernel_stack(ctx, r, h, 0);
}

#endif
