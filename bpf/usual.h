/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The usual sample, in a straight line; and how the record of any sample begins and
 * ends.
 */
#ifndef SWBPF_USUAL_H
#define SWBPF_USUAL_H

#include "goroutine.h"
#include "kernelstack.h"
#include "returns.h"

/* Fills the header of a sample that has nothing yet. */
INLINE void begin_header(struct sample_header *h, struct task_struct *task, u32 tgid, u32 tid, u64 cgroup, u64 weight)
{
	h->cpu = bpf_get_smp_processor_id();
	h->weight = weight;
	h->thread_pointer = 0;
	h->live = 0;
	h->cgroup = cgroup;
	h->trampoline = 0;
	h->tgid = tgid;
	h->tid = tid;
	h->stack_end = STACK_END_NONE;
	h->kernel_frames = 0;
	h->parts = 0;
	h->frames = 0;
	h->kernel_bytes = 0;
	h->irq_bytes = 0;
	h->returns = 0;
	h->off_cpu = OFF_CPU_NOT;
	h->breakpoint = 0;
	h->slot = 0;
	h->labels = 0;
	h->contexts = 0;
	h->event = event_number;
	copy_comm(h->comm, task);
}

/* Ends the header of the record under way, and publishes that. */
INLINE void end_record(struct cpu_ring *r, struct sample_header *h, u64 time)
{
	struct counters *n = &r->counters;

	n->stack_bytes += r->copied;
	n->ring_bytes += r->end;
	h->regions = r->regions;
	h->changes = r->changes += r->mirrored;
	h->size = r->end;
	/* the clock waits for all reads before it: by now they are done */
	h->time = time ? time : bpf_ktime_get_ns();
	publish(r, r->end);
}

/*
 * Has user space learn where the stacks of a process's threads end when it has been given a
 * sample of one of which that is not known, with more than what is live. Once a second is
 * enough: it looks that often without.
 */
INLINE void ask_for_ends(struct cpu_ring *r, const struct sample_header *h, u8 flags)
{
	if (h->tgid == h->tid || h->stack_end != STACK_END_LIMIT || flags & (PROCESS_IS_GO | PROCESS_HAS_ENDS))
		return;
	u64 now = bpf_ktime_get_ns();
	if (now - r->asked < 1000000000)
		return;
	r->asked = now;
	tell_news(END_UNKNOWN);
}

/*
 * Takes the usual sample of a perf event: of a stack whose end is known and that can be
 * copied by one read. It finds nothing in a cache, so it is little code, and touches few
 * lines of memory. Returns whether it did; if not, all is as it was.
 */
INLINE bool take_usual_sample(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct task_struct *task, u32 tgid,
			      u8 flags)
{
	bool in_kernel = !is_user_mode(mode_of(ctx->regs)), is_go = flags & PROCESS_IS_GO, with_below = !is_go;
	struct mm_struct *mm = task_field(task, mm);
	u32 tid = current_tid(task), cpu = bpf_get_smp_processor_id();
	u64 sp = sp_of(ctx->regs), end = 0;

	/* utask: as has_met_uprobe, by a plain load */
	if (!mm || flags & PROCESS_HAS_FRAMES || (kernel_has(task, utask) && task_field(task, utask)) || r->busy)
		return false;
	r->busy = 1;
	compiler_barrier();
	struct sample_header *h = begin_record(r);
	bool taken = h;
	if (unlikely(in_kernel) && h) {
		enum user_state user = read_user_regs(task, h, sp);
		taken = user == USER_NATIVE || user == USER_COMPAT32;
		sp = stack_pointer(&h->regs);
		with_below = !is_go && !is_in_syscall(&h->regs);
	} else if (h)
		__builtin_memcpy(&h->regs, &ctx->regs, sizeof(h->regs));
	if (taken && unlikely(is_go))
		end = goroutine_end(cpu, tgid, sp);
	else if (taken && !is_on_signal_stack(task, sp))
		end = tgid == tid ? main_stack_end(task_field(mm, start_stack), sp, flags) : thread_stack_end(task, tgid, tid, sp, flags);
	taken = false;
	if (h && end && end - sp <= stack_limit) {
		r->end = sizeof(*h);
		begin_header(h, task, tgid, tid, current_cgroup(task), ctx->sample_period);
		if (unlikely(in_kernel))
			add_kernel_part(ctx, r, h, task);
		taken = add_whole_stack(r, cpu, end + tgid, stack_start(sp, with_below), end);
	}
	if (taken) {
		if (unlikely(flags & PROCESS_HAS_CONTEXTS)) {
			h->thread_pointer = thread_pointer_of(task);
			add_context(cpu);
		}
		if (unlikely(is_go) && r->go.labels)
			add_labels(cpu);
		h->user = user_state_of(task, h);
		h->live = end - sp;
		h->stack_end = STACK_END_BOTTOM;
		end_record(r, h, 0);
		r->counters.samples++;
		r->counters.usual++;
	}
	compiler_barrier();
	r->busy = 0;
	return taken;
}

#endif
