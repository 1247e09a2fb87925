// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Takes samples: on a perf event or a tracepoint, the interrupted thread's
 * registers, kernel stack and live user stack go to the ring as one record
 * (record.h). Nothing is unwound here.
 */
#include "goroutine.h"
#include "offcpu.h"
#include "returns.h"

/* The verifier lets programs use these helpers only under a GPL-compatible
 * licence, of which it has a list. */
char gpl_compatible[] SEC("license") = "GPL";

/* Types that no map mentions; named here, they reach the Go side. */
const struct sample_header *sample_header_type __attribute__((unused));
const struct region_header *region_header_type __attribute__((unused));
const struct replaced_return *replaced_return_type __attribute__((unused));
enum user_state user_state_type __attribute__((unused));
enum stack_end_kind stack_end_kind_type __attribute__((unused));
enum off_cpu_state off_cpu_state_type __attribute__((unused));
const struct off_cpu_end *off_cpu_end_type __attribute__((unused));

/* Frames of a raw tracepoint's own: the program, and what calls it. */
enum { RAW_TRACEPOINT_FRAMES = 2 };

/*
 * Adds the kernel part of the stack, leaf first, without its first frames.
 * Returns its bytes.
 */
INLINE u64 add_kernel_stack(void *ctx, struct scratch *s, u64 skip)
{
	long n = bpf_get_stack(ctx, s->body, MAX_KERNEL_FRAMES * 8, skip);

	if (n <= 0 || n > MAX_KERNEL_FRAMES * 8)
		return 0;
	s->header.kernel_frames = (u64)n / 8;
	return n;
}

/* Adds the user part: the stack, and what belongs to it in Go programs. */
INLINE void add_user_stack(struct scratch *s, struct task_struct *task, struct counters *n)
{
	struct sample_header *h = &s->header;
	u64 sp = stack_pointer(&h->regs);
	u64 before = s->end;
	struct go_thread go;

	read_go_thread(&go, h->tgid, h);
	u64 end = go_stack_end(&go, sp);
	if (!end)
		end = known_stack_end(task, h->tgid, h->tid, sp);
	add_stack(s, sp, end);
	u64 own_bytes = s->end - before - sizeof(struct region_header);
	if (!own_bytes && is_in_exec(task)) {
		h->user = USER_EXEC;
		return;
	}
	if (!own_bytes)
		n->unreadable_stack++;
	add_served_goroutine(s, &go, sp, own_bytes);
	n->stack_bytes += s->end - before;
}

/* Sends the record. Returns whether there was room. */
INLINE bool send(struct scratch *s, struct counters *n)
{
	u64 body = s->end;

	hide(body);
	if (body > BODY_LIMIT)
		body = BODY_LIMIT;
	u64 size = sizeof(s->header) + body;
	if (bpf_ringbuf_output(&ring, &s->header, size, RINGBUF_NO_WAKEUP)) {
		n->lost_ring_full++;
		return false;
	}
	n->ring_bytes += size;
	return true;
}

/* What a sample is of. */
struct occasion {
	u64 time, weight;
	u64 kernel_sp; /* as in read_user_regs */
	bool in_kernel;
	u8 off_cpu; /* enum off_cpu_state */
};

/* Assembles and sends the record of a sample. */
INLINE bool record(void *ctx, struct scratch *s, struct counters *n, u32 tgid, const struct occasion *o)
{
	struct task_struct *task = bpf_get_current_task();
	struct sample_header *h = &s->header;

	h->time = o->time;
	h->weight = o->weight;
	h->off_cpu = o->off_cpu;
	h->thread_pointer = 0;
	h->live = 0;
	h->trampoline = 0;
	h->tgid = tgid;
	h->tid = current_tid(task);
	h->cpu = bpf_get_smp_processor_id();
	h->stack_end = STACK_END_NONE;
	h->kernel_frames = 0;
	h->regions = 0;
	h->returns = 0;
	h->breakpoint = 0;
	bpf_get_current_comm(h->comm, sizeof(h->comm));
	s->end = o->in_kernel && want_kernel ? add_kernel_stack(ctx, s, o->off_cpu ? RAW_TRACEPOINT_FRAMES : 0) : 0;
	h->user = read_user_regs(task, h, o->kernel_sp);
	if (h->user == USER_NATIVE || h->user == USER_COMPAT32) {
		add_returns(s, task, o->in_kernel);
		add_user_stack(s, task, n);
	} else if (h->user == USER_EXITED)
		n->exited++;
	else if (h->user == USER_PARTIAL)
		n->partial_regs++;
	return send(s, n);
}

/*
 * Whether the current task is one to sample, and under which tgid. What is
 * not is counted.
 */
INLINE bool is_wanted(struct counters *n, u32 *tgid)
{
	if (!(u32)bpf_get_current_pid_tgid()) {
		n->skipped_idle++;
		return false;
	}
	*tgid = current_tgid(bpf_get_current_task());
	if (filter_processes && (!*tgid || !bpf_map_lookup_elem(&tracked, tgid))) {
		n->skipped_filter++;
		return false;
	}
	if (!*tgid) {
		n->lost_foreign++;
		return false;
	}
	return true;
}

/*
 * Takes the CPU's scratch area and records. An NMI can come while another
 * event of this CPU is here; then it must leave the area alone. Such runs nest
 * strictly, so that a plain flag will do.
 */
INLINE bool sample(void *ctx, struct counters *n, u32 tgid, const struct occasion *o)
{
	u32 cpu = bpf_get_smp_processor_id();
	struct scratch *s = bpf_map_lookup_elem(&scratch_areas, &cpu);

	if (!s) {
		n->lost_no_scratch++;
		return false;
	}
	if (s->busy) {
		__sync_fetch_and_add(&n->lost_nested, 1);
		return false;
	}
	s->busy = 1;
	compiler_barrier();
	bool sent = record(ctx, s, n, tgid, o);
	compiler_barrier();
	s->busy = 0;
	return sent;
}

SEC("perf_event")
int on_perf_event(struct bpf_perf_event_data *ctx)
{
	struct counters *n = this_cpu_counters();
	u32 tgid;

	if (!n || !is_wanted(n, &tgid))
		return 0;
	bool in_kernel = !is_user_mode(mode_of(ctx->regs));
	struct occasion o = {
		.time = bpf_ktime_get_ns(),
		.weight = ctx->sample_period,
		.in_kernel = in_kernel,
		.kernel_sp = in_kernel ? sp_of(ctx->regs) : 0,
	};
	if (sample(ctx, n, tgid, &o))
		n->samples++;
	return 0;
}

/* An event that occurs in the course of the current task. */
INLINE void on_point(void *ctx, bool in_kernel)
{
	struct counters *n = this_cpu_counters();
	u32 tgid;

	if (!n || !is_wanted(n, &tgid))
		return;
	if (point_period > 1 && ++n->wanted % point_period) {
		n->skipped_period++;
		return;
	}
	struct occasion o = { .time = bpf_ktime_get_ns(), .weight = point_period, .in_kernel = in_kernel };
	if (sample(ctx, n, tgid, &o))
		n->samples++;
}

/* Returns 1, so that other users of the tracepoint see it too. */
SEC("tracepoint")
int on_tracepoint(void *ctx)
{
	on_point(ctx, true);
	return 1;
}

/*
 * The kernel part of the stack would be that of the uprobe itself. Returns 0:
 * the event, which is only what the program hangs on, need not record it.
 */
SEC("uprobe")
int on_uprobe(void *ctx)
{
	on_point(ctx, false);
	return 0;
}

/* The current task leaves the CPU at this time. */
INLINE void begin_off_cpu(struct bpf_raw_tracepoint_args *ctx, struct counters *n, u64 now)
{
	struct task_struct *task = bpf_get_current_task();
	u32 pid = bpf_get_current_pid_tgid(), tgid;
	u64 state = state_of_prev(ctx, task);

	if (state & TASK_EXITING || !is_wanted(n, &tgid))
		return;
	if (!state) {
		n->skipped_running++;
		return;
	}
	struct off_cpu_start start = { .time = now, .tid = current_tid(task) };
	if (!too_many_switches(n, now)) {
		struct occasion o = { .time = now, .in_kernel = true, .off_cpu = blocked_state(task, state) };
		if (!sample(ctx, n, tgid, &o))
			return;
		start.sampled = 1;
	}
	if (bpf_map_update_elem(&off_cpu_starts, &pid, &start, 0))
		n->lost_no_scratch++;
}

/* Arguments: whether preempted, the task that goes, the one that comes, and
 * since 5.18 the state of the former. */
SEC("raw_tracepoint/sched_switch")
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	struct counters *n = this_cpu_counters();
	u64 now = bpf_ktime_get_ns();

	if (!n)
		return 0;
	end_off_cpu(n, (void *)ctx->args[2], now);
	begin_off_cpu(ctx, n, now);
	return 0;
}

/*
 * Keeps the map of tracked processes right: a child's tgid is fresh, so
 * whatever the map held under it belonged to a process now gone. Runs before
 * the child does. Arguments: parent, child.
 */
SEC("raw_tracepoint/sched_process_fork")
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	u32 parent = tgid_of((void *)ctx->args[0]);
	u32 child = tgid_of((void *)ctx->args[1]);
	u8 yes = 1;

	if (!child || parent == child) /* a thread of the same process */
		return 0;
	if (follow_children && parent && bpf_map_lookup_elem(&tracked, &parent)) {
		struct counters *n = this_cpu_counters();
		if (bpf_map_update_elem(&tracked, &child, &yes, 0) && n)
			__sync_fetch_and_add(&n->untracked, 1);
		return 0;
	}
	bpf_map_delete_elem(&tracked, &child);
	return 0;
}
