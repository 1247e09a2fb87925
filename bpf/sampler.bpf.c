// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Takes samples: on a perf event or a tracepoint, the interrupted thread's
 * registers, kernel stack and live user stack go to the ring as one record
 * (record.h). Nothing is unwound here.
 */
#include "deferred.h"
#include "exec.h"
#include "goroutine.h"
#include "heap.h"
#include "kernelstack.h"
#include "number.h"
#include "offcpu.h"
#include "uprobe.h"
#include "usual.h"

/* The verifier lets programs use these helpers only under a GPL-compatible
 * licence, of which it has a list. */
char gpl_compatible[] SEC("license") = "GPL";

/* Types that no map mentions; named here, they reach the Go side. */
const struct sample_header *sample_header_type __attribute__((unused));
const struct region_header *region_header_type __attribute__((unused));
const struct replaced_return *replaced_return_type __attribute__((unused));
const struct kernel_regs *kernel_regs_type __attribute__((unused));
enum kernel_stacks kernel_stacks_type __attribute__((unused));
enum user_state user_state_type __attribute__((unused));
enum stack_end_kind stack_end_kind_type __attribute__((unused));
enum comparison_kind comparison_kind_type __attribute__((unused));
enum off_cpu_state off_cpu_state_type __attribute__((unused));
enum limits limits_type __attribute__((unused));
enum heap_limits heap_limits_type __attribute__((unused));
const struct block_end *block_end_type __attribute__((unused));
const struct off_cpu_end *off_cpu_end_type __attribute__((unused));
const struct unsampled *unsampled_type __attribute__((unused));
const struct cpu_ring *cpu_ring_type __attribute__((unused));
enum sampled sampled_type __attribute__((unused));
enum process_flags process_flags_type __attribute__((unused));
enum frames_from frames_from_type __attribute__((unused));
enum news news_type __attribute__((unused));

/* Frames of a raw tracepoint's own: the program, and what calls it. */
enum { RAW_TRACEPOINT_FRAMES = 2 };

/* Whether the program at a switch has stack left for what other runtimes of Go need. */
#if defined(__TARGET_ARCH_x86)
enum { SWITCH_HAS_ROOM = true };
#else
enum { SWITCH_HAS_ROOM = false };
#endif

/* Adds the kernel part that was kept of a sample put off. */
INLINE void add_kept_kernel_stack(const struct deferred *d, struct cpu_ring *r, struct sample_header *h)
{
	u64 n = d->kernel_bytes;

	hide(n);
	if (n > sizeof(d->kernel_pc) || bpf_probe_read_kernel(h + 1, n, d->kernel_pc))
		return;
	h->kernel_frames = n / 8;
	r->end += n;
}

/* Adds the user part: the stack, and what belongs to it in Go programs and under
 * signals. */
INLINE void add_user_stacks(struct cpu_ring *r, struct sample_header *h, struct task_struct *task, u64 flags)
{
	u64 sp = stack_pointer(&h->regs), before = r->end;
	struct go_thread *go = &r->go;

	go->g = 0;
	go->several = flags & PROCESS_IS_GO && read_go_thread(go, h);
	struct signal_stack signal = signal_stack_of(task, sp);
	u64 end = find_go_stack(go, sp, &signal);
	if (!end)
		end = signal.end;
	if (!end)
		end = current_stack_end(h->tgid, h->tid, sp);
	if (!end && h->tgid == h->tid) {
		int above = spawned_stack(sp);
		if (above >= 0)
			end = sp + above;
	}
	add_stack(r, h, sp, end, !(go->g && is_at_home(go, sp)) && !is_in_syscall(&h->regs));
	if (!r->copied && is_in_exec(task)) {
		h->user = USER_EXEC;
		h->stack_end = STACK_END_NONE;
		go->several = false;
		r->regions = 0;
		r->end = before;
		return;
	}
	if (!r->copied && h->stack_end != STACK_END_BOTTOM)
		r->counters.unreadable_stack++;
	if (go->g && go->signalled && is_elsewhere(go))
		add_interrupted_stack(r, h, go->sp);
	if (go->g)
		add_other_stacks(r, h, go);
	else if (signal.met)
		add_interrupted_stack(r, h, signal.met);
	if (flags & (PROCESS_HAS_FRAMES | PROCESS_HAS_CONTEXTS | PROCESS_IS_GO) && !go->several)
		add_kept(h->cpu);
}

/* The same for the current task in a function of its own, which is there once. */
GLOBAL int add_user_stacks_apart(u32 cpu, u64 flags)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	if (h)
		add_user_stacks(r, h, current_task(), flags);
	return 0;
}

/* What a sample is of. */
struct occasion {
	u64 time; /* 0: when it is recorded */
	u64 weight;
	const struct user_regs *regs; /* of the user code, if they are at hand */
	u64 kernel_sp; /* if not: as in read_user_regs */
	u8 flags;      /* of the process: enum process_flags */
	bool in_kernel;
	bool at_switch; /* of the current task, from a raw tracepoint */
	u8 off_cpu; /* enum off_cpu_state */
	bool is_foreign; /* a process that is not asked for, or the idle task: without user part */
	u32 woken; /* with OFF_CPU_WAKER: the tid of the other thread */
	const struct deferred *deferred; /* what was kept of one put off, or NULL */
};

/* Assembles and publishes the record of a sample, if there is room. */
INLINE bool record(void *ctx, struct cpu_ring *r, struct task_struct *task, u32 tgid, const struct occasion *o)
{
	struct counters *n = &r->counters;
	struct sample_header *h = begin_record(r);

	if (!h) {
		if (!o->woken)
			n->lost_ring_full++;
		return false;
	}
	begin_header(h, task, tgid, current_tid(task), cgroup_of(task), o->weight);
	h->off_cpu = o->off_cpu;
	if (o->woken)
		h->woken = o->woken;
	r->end = sizeof(*h);
	if (o->deferred)
		add_kept_kernel_stack(o->deferred, r, h);
	else if (o->kernel_sp)
		add_kernel_part(ctx, r, h, task);
	else if (o->in_kernel && want_kernel)
		add_kernel_stack(ctx, r, h, o->at_switch ? RAW_TRACEPOINT_FRAMES : 0);
	if (o->is_foreign)
		h->user = USER_NONE;
	else if (o->regs) {
		__builtin_memcpy(&h->regs, o->regs, sizeof(h->regs));
		h->user = user_state_of(task, h);
	} else
		h->user = read_user_regs(task, h, o->kernel_sp);
	if (h->user == USER_NATIVE || h->user == USER_COMPAT32) {
		if (unlikely(has_met_uprobe(task)))
			add_current_returns(h->cpu, o->in_kernel);
		if (o->at_switch) /* its program has no stack left for calls */
			add_user_stacks(r, h, task, o->flags);
		else
			add_user_stacks_apart(h->cpu, o->flags);
		if (unlikely(r->go.several)) { /* not within that, which would be one call more */
			if (!o->at_switch || SWITCH_HAS_ROOM)
				add_other_runtimes(r, h);
			add_kept(h->cpu);
		}
	} else if (h->user == USER_EXITED)
		n->exited++;
	else if (h->user == USER_PARTIAL)
		n->partial_regs++;
	end_record(r, h, o->time);
	if (!o->at_switch)
		ask_for_ends(r, h, o->flags);
	return true;
}

/*
 * Whether the current task is one to sample, under which tgid, and what is known
 * of its process. What is not is counted.
 */
INLINE bool is_wanted(struct counters *n, struct task_struct *task, u32 *tgid, u8 *flags)
{
	if (!task_field(task, pid)) {
		n->skipped_idle++;
		return false;
	}
	*tgid = current_tgid(task);
	*flags = *tgid ? process_flags(*tgid) : 0;
	if (!is_asked_for(task, *flags)) {
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
 * Takes the CPU's ring and records. An NMI can come while another
 * event of this CPU is here; then it must leave the ring alone. Such runs nest
 * strictly, so that a plain flag will do.
 */
INLINE bool sample(void *ctx, struct cpu_ring *r, struct task_struct *task, u32 tgid, const struct occasion *o)
{
	if (unlikely(r->busy)) {
		__sync_fetch_and_add(&r->counters.lost_nested, 1);
		return false;
	}
	r->busy = 1;
	compiler_barrier();
	bool sent = record(ctx, r, task, tgid, o);
	compiler_barrier();
	r->busy = 0;
	return sent;
}

/* Takes a sample that was put off. */
static int take_deferred(struct bpf_map *map, void *key, void *value)
{
	struct deferred *d = value;
	unsigned long flags;

	bpf_local_irq_save(&flags); /* other samples would find the ring busy */
	struct cpu_ring *r = this_cpu_ring();
	struct task_struct *task = current_task();
	u32 tgid = current_tgid(task);
	struct occasion o = { .time = bpf_ktime_get_ns(), .weight = d->weight, .flags = process_flags(tgid), .deferred = d };
	if (r) {
		r->counters.lost_deferred--;
		if (sample(NULL, r, task, tgid, &o))
			r->counters.samples++;
	}
	d->pending = 0;
	bpf_local_irq_restore(&flags);
	return 0;
}

/* Puts the sample off by what is given for it. */
INLINE bool defer_to(void *ctx, struct task_struct *task, struct deferred *d, u64 weight)
{
	long bytes = want_kernel ? bpf_get_stack(ctx, d->kernel_pc, sizeof(d->kernel_pc), 0) : 0;

	d->kernel_bytes = bytes > 0 ? bytes : 0;
	d->weight = weight;
	d->pending = 1;
	if (bpf_task_work_schedule_resume ?
		    bpf_task_work_schedule_resume(task, &d->work, &deferred_samples, take_deferred) :
		    bpf_task_work_schedule_resume_impl(task, &d->work, &deferred_samples, take_deferred, NULL)) {
		d->pending = 0;
		return false;
	}
	return true;
}

/*
 * Puts the sample off until the task goes back to user code. Returns whether
 * it will be taken then. It uses the mark of the CPU's ring to be alone.
 */
APART bool defer(void *ctx, struct cpu_ring *r, struct task_struct *task, u64 weight)
{
	if (!may_be_in_uprobe(task) || r->busy)
		return false;
	r->busy = 1;
	compiler_barrier();
	struct deferred *d = free_deferred(bpf_get_smp_processor_id());
	bool put_off = d && defer_to(ctx, task, d, weight);
	if (put_off)
		r->counters.lost_deferred++;
	compiler_barrier();
	r->busy = 0;
	return put_off;
}

/*
 * The time that the current task was on the CPU since its last sample becomes
 * the weight of one. Returns the task's times; NULL when there is no room.
 */
INLINE struct thread_times *begin_on_cpu(struct cpu_ring *r, struct task_struct *task, u32 tgid, struct occasion *o)
{
	struct counters *n = &r->counters;
	u32 pid = task_field(task, pid);
	struct thread_times *t = times_of(r, pid);

	if (!t)
		return NULL;
	if (!t->tid)
		identify(t, task, tgid, current_cgroup(task));
	if (t->left)
		make_up(r, t);
	o->weight = t->carried[OFF_CPU_NOT] + (o->time - n->on_cpu_since);
	n->on_cpu_since = o->time;
	n->running = pid;
	return t;
}

/* Takes any other sample of a perf event. */
APART void take_sample(struct bpf_perf_event_data *ctx, struct cpu_ring *r, struct task_struct *task, u32 tgid, u8 flags)
{
	bool in_kernel = !is_user_mode(mode_of(ctx->regs));
	struct thread_times *t = NULL;
	struct occasion o = {
		.time = with_on_cpu ? bpf_ktime_get_ns() : 0,
		.weight = ctx->sample_period,
		.flags = flags,
		.in_kernel = in_kernel,
		.regs = in_kernel ? NULL : &ctx->regs,
		.kernel_sp = in_kernel ? sp_of(ctx->regs) : 0,
	};
	if (with_on_cpu && !(t = begin_on_cpu(r, task, tgid, &o)))
		return;
	bool sent = false, put_off = false;
	if (have_task_pt_regs && (bpf_task_work_schedule_resume || bpf_task_work_schedule_resume_impl) &&
	    unlikely(in_kernel && has_met_uprobe(task)))
		put_off = defer(ctx, r, task, o.weight);
	if (!put_off && (sent = sample(ctx, r, task, tgid, &o)))
		r->counters.samples++;
	if (with_on_cpu)
		t->carried[OFF_CPU_NOT] = sent || put_off ? 0 : o.weight;
}

SEC("perf_event")
int on_perf_event(struct bpf_perf_event_data *ctx)
{
	struct cpu_ring *r = this_cpu_ring();
	struct task_struct *task = current_task();
	u32 tgid;
	u8 flags;

	if (!r || !is_wanted(&r->counters, task, &tgid, &flags))
		return 0;
	if (with_on_cpu || !take_usual_sample(ctx, r, task, tgid, flags))
		take_sample(ctx, r, task, tgid, flags);
	return 0;
}

/* An event that occurs in the course of the current task. */
INLINE void on_point(void *ctx, bool in_kernel)
{
	struct cpu_ring *r = this_cpu_ring();
	struct task_struct *task = current_task();
	u32 tgid;
	u8 flags;

	if (!r || r->over || !is_wanted(&r->counters, task, &tgid, &flags))
		return;
	struct counters *n = &r->counters;
	enum passing passing = passes_filter(ctx);
	u64 weight;
	if (passing == PASSES_NOT) {
		n->skipped_numbers++;
		return;
	}
	if (passing == PASSING_UNKNOWN || !read_weight(ctx, &weight)) {
		n->lost_number++;
		return;
	}
	u64 *sum = &n->weights[event_number % MAX_EVENTS];
	*sum += weight;
	if (*sum < point_period) {
		n->skipped_period++;
		return;
	}
	struct occasion o = { .time = bpf_ktime_get_ns(), .weight = *sum, .flags = flags, .in_kernel = in_kernel };
	*sum = 0;
	if (sample(ctx, r, task, tgid, &o))
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
	begin_uprobe(ctx);
	on_point(ctx, false);
	end_uprobe();
	return 0;
}

/* The stack begins in the kernel's function. */
SEC("kprobe")
int on_kprobe(void *ctx)
{
	on_point(ctx, true);
	return 0;
}

/* An allocator is asked for a block of so many bytes. */
INLINE int on_request(struct user_regs *ctx, u64 bytes, u64 to)
{
	u32 tgid;
	u8 flags;

	begin_uprobe(ctx);
	struct cpu_ring *r = this_cpu_ring();
	struct task_struct *task = current_task();
	if (r && !r->over && is_wanted(&r->counters, task, &tgid, &flags))
		note_request(&r->counters, task_field(task, pid), stack_pointer(ctx), bytes, to);
	end_uprobe();
	return 0;
}

/* Blocks are given back: by any thread, also of those that are not asked for. */
INLINE int on_given_back(struct user_regs *ctx)
{
	begin_uprobe(ctx);
	struct cpu_ring *r = this_cpu_ring();
	if (r && !r->over)
		forget_block(r, current_task(), first_argument_of(*ctx));
	end_uprobe();
	return 0;
}

/* malloc(bytes), and what else has these first. */
SEC("uprobe")
int on_malloc(struct user_regs *ctx)
{
	return on_request(ctx, first_argument_of(*ctx), 0);
}

/* calloc(count, bytes) */
SEC("uprobe")
int on_calloc(struct user_regs *ctx)
{
	return on_request(ctx, first_argument_of(*ctx) * second_argument_of(*ctx), 0);
}

/* memalign(alignment, bytes) */
SEC("uprobe")
int on_memalign(struct user_regs *ctx)
{
	return on_request(ctx, second_argument_of(*ctx), 0);
}

/* posix_memalign(to, alignment, bytes) */
SEC("uprobe")
int on_posix_memalign(struct user_regs *ctx)
{
	return on_request(ctx, third_argument_of(*ctx), first_argument_of(*ctx));
}

/* realloc(block, bytes) */
SEC("uprobe")
int on_realloc(struct user_regs *ctx)
{
	on_given_back(ctx);
	return on_request(ctx, second_argument_of(*ctx), 0);
}

/* free(block) */
SEC("uprobe")
int on_free(struct user_regs *ctx)
{
	return on_given_back(ctx);
}

/* An allocator returns: the block is sampled if its request was drawn. */
INLINE void on_return(struct user_regs *ctx)
{
	struct cpu_ring *r = this_cpu_ring();
	struct task_struct *task = current_task();
	struct block_request q;
	u32 tgid;
	u8 flags;

	if (!r || r->over || !take_request(task_field(task, pid), stack_pointer(ctx), &q) ||
	    !is_wanted(&r->counters, task, &tgid, &flags))
		return;
	struct block_key key = { .address = block_of(&q, result_of(*ctx)), .tgid = tgid };
	struct block block = { .time = bpf_ktime_get_ns(), .tid = current_tid(task) };
	if (!key.address) {
		r->counters.skipped_period++;
		return;
	}
	if (bpf_map_update_elem(&blocks, &key, &block, 0)) {
		r->counters.lost_no_scratch++;
		return;
	}
	struct occasion o = { .time = block.time, .weight = q.bytes, .flags = flags };
	if (sample(ctx, r, task, tgid, &o))
		r->counters.samples++;
	else
		bpf_map_delete_elem(&blocks, &key);
}

/* Any of these but free returns. */
SEC("uprobe")
int on_allocated(struct user_regs *ctx)
{
	begin_uprobe(ctx);
	on_return(ctx);
	end_uprobe();
	return 0;
}

/* The current task leaves the CPU at this time. */
INLINE void leave_cpu(struct bpf_raw_tracepoint_args *ctx, struct cpu_ring *r, u64 now)
{
	struct task_struct *task = current_task();
	u32 pid = task_field(task, pid), tgid;
	u8 flags;
	u64 state = state_of_prev(ctx, task);

	if (state & TASK_EXITING) {
		end_thread(r, pid, now);
		return;
	}
	if (!is_wanted(&r->counters, task, &tgid, &flags))
		return;
	struct thread_times *t = times_of(r, pid);
	if (!t)
		return;
	identify(t, task, tgid, current_cgroup(task));
	if (t->left)
		make_up(r, t);
	if (with_on_cpu)
		t->carried[OFF_CPU_NOT] += now - r->counters.on_cpu_since;
	if (is_idle(task, state)) {
		r->counters.skipped_idle++;
		return;
	}
	void *saved = saved_user_regs(task);
	t->off_cpu = blocked_state(task, state, saved);
	t->sampled = SAMPLED_NOT;
	t->woken = state ? 0 : now;
	t->left = now;
	t->place = place_of(saved, t->off_cpu == OFF_CPU_RUNNABLE);
	t->stands_for = draw(r, t, now);
	if (!t->stands_for) {
		t->is_thinned = 1;
		return;
	}
	struct occasion o = { .time = now, .flags = flags, .in_kernel = true, .at_switch = true, .off_cpu = t->off_cpu };
	t->sampled = sample(ctx, r, task, tgid, &o) ? SAMPLED : SAMPLED_LOST;
	t->cost = bpf_ktime_get_ns() - now;
}

/* Arguments: whether preempted, the task that goes, the one that comes, and
 * since 5.18 the state of the former. */
SEC("raw_tracepoint/sched_switch")
int on_switch(struct bpf_raw_tracepoint_args *ctx)
{
	struct cpu_ring *r = this_cpu_ring();
	u64 now = bpf_ktime_get_ns();

	if (!r)
		return 0;
	leave_cpu(ctx, r, now);
	come_back(r, (void *)ctx->args[2], now);
	return 0;
}

/* Notes that a task is to be woken up: from here on it waits for a CPU. Returns its times,
 * NULL when it waited for that already, or is not known. */
INLINE struct thread_times *note_waking(struct task_struct *task)
{
	u32 pid = kernel_read(task, pid);
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);

	if (!t || !t->left || t->woken)
		return NULL;
	t->woken = bpf_ktime_get_ns();
	return t;
}

/* A task is to be woken up. Argument: it. */
SEC("raw_tracepoint/sched_waking")
int on_waking(struct bpf_raw_tracepoint_args *ctx)
{
	note_waking((void *)ctx->args[0]);
	return 0;
}

/*
 * The same, with a sample of the current task, which wakes it, unless that is interrupted
 * by what does: user space sees that by the kernel's stack. It is for a time off the CPU
 * that has a sample.
 */
SEC("raw_tracepoint/sched_waking")
int on_waker(struct bpf_raw_tracepoint_args *ctx)
{
	struct thread_times *t = note_waking((void *)ctx->args[0]);
	struct cpu_ring *r = this_cpu_ring();

	if (!t || !r || t->woken - t->left < min_off_cpu)
		return 0;
	if (t->sampled != SAMPLED && t->late != t->left)
		return 0;
	if (r->busy || filled(r) >= ring_bytes / 4 * 3) { /* as in draw */
		r->counters.lost_wakers++;
		return 0;
	}
	struct task_struct *task = current_task();
	u32 tgid = current_tgid(task);
	u8 flags = tgid ? process_flags(tgid) : 0;
	struct occasion o = {
		.time = t->woken,
		.weight = t->left,
		.flags = flags,
		.in_kernel = true,
		.at_switch = true,
		.off_cpu = OFF_CPU_WAKER,
		.is_foreign = !tgid || !is_asked_for(task, flags),
		.woken = t->tid,
	};
	if (!sample(ctx, r, task, tgid, &o))
		r->counters.lost_wakers++;
	return 0;
}

enum { MAX_ANCESTORS = 64 }; /* among which one that is sampled is looked for */

/*
 * Whether a task is of a process that is sampled or, while what descends from these is
 * still being entered, process by process, descends from one.
 */
APART int descends_from_sampled(struct task_struct *task)
{
	bool entering = process_flags(NO_PROCESS) & PROCESS_SAMPLED;

	for (int i = 0; i < MAX_ANCESTORS; i++) {
		u32 tgid = tgid_of(task);
		if (tgid && process_flags(tgid) & PROCESS_SAMPLED)
			return 1;
		if (!entering || !kernel_read(task, pid)) /* the first of all */
			return 0;
		task = kernel_read(task, real_parent);
	}
	return 0;
}

/* A new process is a copy of the one that has made it, which has frames that a runtime keeps where it has them. */
INLINE void inherit_frames(struct task_struct *by, u32 parent, u32 child, u8 *flags)
{
	if (!(process_flags(parent) & PROCESS_HAS_FRAMES))
		return;
	u32 thread = tid_of(by), of_parent = parent | FRAMES_OF_PROCESS, of_child = child | FRAMES_OF_PROCESS;
	const struct thread_frames *t = bpf_map_lookup_elem(&thread_frames, &thread);
	if (t && !bpf_map_update_elem(&thread_frames, &child, t, 0))
		*flags |= PROCESS_HAS_FRAMES;
	t = bpf_map_lookup_elem(&thread_frames, &of_parent);
	if (t && !bpf_map_update_elem(&thread_frames, &of_child, t, 0))
		*flags |= PROCESS_HAS_FRAMES;
}

/*
 * Marks a new process as one to sample, or not: its tgid may have been that of
 * another before. Runs before it does. Arguments: parent, child.
 */
SEC("raw_tracepoint/sched_process_fork")
int on_fork(struct bpf_raw_tracepoint_args *ctx)
{
	u32 parent = tgid_of((void *)ctx->args[0]);
	u32 child = tgid_of((void *)ctx->args[1]);

	if (filter_threads) /* the number may have been another thread's before */
		child = tid_of((void *)ctx->args[1]);
	if (!child || parent == child) /* a thread of the same process */
		return 0;
	u8 *flags = flags_of_process(child);
	if (!flags)
		return 0;
	*flags = follow_children && descends_from_sampled((void *)ctx->args[0]) ? PROCESS_SAMPLED : 0;
	if (!filter_threads)
		inherit_frames((void *)ctx->args[0], parent, child, flags);
	return 0;
}

/* Tells of a program that is sampled and whose file is new, and of others what is
 * known. Arguments: task, old PID, program. */
SEC("raw_tracepoint/sched_process_exec")
int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tgid = tgid_of((void *)ctx->args[0]);

	if (is_tracked((void *)ctx->args[0], tgid))
		meet_program(tgid, (void *)ctx->args[2]);
	return 0;
}

/* The registers of the user code of a task that need not be current. */
INLINE void *saved_regs_of(struct task_struct *task)
{
	if (have_task_pt_regs)
		return bpf_task_pt_regs(task);
	return kernel_read(task, stack) + thread_size - kernel_sizeof(struct pt_regs);
}

INLINE bool is_on_cpu(struct task_struct *task)
{
	return kernel_has(task, on_cpu) && kernel_read_bits(task, on_cpu);
}

/*
 * Enters a task as one that is off the CPU since the session started. Returns its
 * times if it has been so without a break, and has no sample yet; NULL if not.
 */
INLINE struct thread_times *begin_waiting(struct task_struct *task, u64 started, u32 tgid, u8 off_cpu)
{
	u32 pid = kernel_read(task, pid);
	struct thread_times new = {
		.left = started, .born = started, .sampled = SAMPLED, .stands_for = ONE, .off_cpu = off_cpu
	};

	identify(&new, task, tgid, cgroup_of(task));
	if (off_cpu == OFF_CPU_RUNNABLE)
		new.woken = new.left;
	bpf_map_update_elem(&times, &pid, &new, BPF_NOEXIST);
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);
	if (!t || t->left != new.left || t->late == new.left) /* it was switched since, or is met again */
		return NULL;
	if (!is_on_cpu(task))
		return t;
	t->left = 0;
	return NULL;
}

/*
 * Returns the times of a task that is off the CPU since some time before this one and
 * has no sample of that; NULL when that is not so.
 */
INLINE struct thread_times *begin_late(struct task_struct *task, u64 before)
{
	u32 pid = kernel_read(task, pid);
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);

	if (!t || t->sampled != SAMPLED_NOT || !t->left || t->left > before || t->late == t->left || is_on_cpu(task))
		return NULL;
	return t;
}

/*
 * Begins the header of the sample of a task that is off the CPU. Returns its times,
 * NULL when it gets none.
 */
INLINE struct thread_times *begin_off_cpu(struct cpu_ring *r, struct task_struct *task, struct sample_header *h,
					  u32 tgid, void *saved)
{
	u64 before = r->counters.late_before, state = state_of(task);
	struct thread_times *t;

	if (before)
		t = begin_late(task, before);
	else if (!kernel_read(task, pid) || is_on_cpu(task) || state & TASK_EXITING || is_idle(task, state))
		t = NULL;
	else
		t = begin_waiting(task, r->counters.started, tgid, blocked_state(task, state, saved));
	if (!t)
		return NULL;
	__builtin_memset(h, 0, sizeof(*h));
	h->time = t->left;
	h->off_cpu = t->off_cpu;
	return t;
}

/*
 * Writes the sample of a task that is off the CPU: its registers and its kernel
 * stack. The reader adds the user stack, which stays as it is until the task runs
 * again. When the session has started these are the tasks that were off the CPU
 * then, and with late_before those that have no sample of the time since they left.
 */
SEC("iter/task")
int on_waiting_task(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct cpu_ring *r = this_cpu_ring();
	u32 zero = 0;
	struct waiting_record *w = bpf_map_lookup_elem(&waiting_records, &zero);

	if (!task || !r || !w)
		return 0;
	u32 tgid = tgid_of(task);
	void *saved = saved_regs_of(task);
	struct sample_header *h = &w->header;
	struct thread_times *t = is_tracked(task, tgid) ? begin_off_cpu(r, task, h, tgid, saved) : NULL;
	if (!t)
		return 0;
	w->pid = kernel_read(task, pid);
	h->cgroup = cgroup_of(task);
	h->tgid = tgid;
	h->tid = tid_of(task);
	bpf_probe_read_kernel(h->comm, sizeof(h->comm), kernel_address(task, comm));
	u64 body = 0;
	u64 bytes = want_kernel ? bpf_get_task_stack(task, w->kernel_pc, sizeof(w->kernel_pc), 0) : 0;
	hide(bytes);
	if (bytes <= sizeof(w->kernel_pc)) { /* no error, which is negative */
		h->kernel_frames = bytes / 8;
		body = bytes;
	}
	void *returns = w->kernel_pc + body;
	hide(returns); /* computed now: before Linux 5.13 body loses its bounds when it is put on the stack */
	if (kernel_read(task, flags) & PF_KTHREAD)
		h->user = USER_NONE;
	else if (!kernel_read(task, mm) || bpf_probe_read_kernel(&h->regs, sizeof(h->regs), saved))
		h->user = USER_EXITED;
	else {
		h->user = is_compat32(&h->regs) ? USER_COMPAT32 : USER_NATIVE;
		h->thread_pointer = thread_pointer_of(task);
		u64 end = known_stack_end(task, tgid, h->tid, stack_pointer(&h->regs), process_flags(tgid));
		h->live = end ? end - stack_pointer(&h->regs) : 0;
		if (has_met_uprobe(task)) {
			add_returns(returns, h, task, false);
			body += h->returns * sizeof(struct replaced_return);
		}
	}
	hide(body);
	if (body > sizeof(*w) - sizeof(w->pid) - sizeof(*h))
		return 0;
	/* where the kernel has no room left it meets the task once more */
	if (!bpf_seq_write(ctx->meta->seq, w, sizeof(w->pid) + sizeof(*h) + body))
		t->late = h->time; /* of a later time it says nothing, should the task be back */
	return 0;
}
