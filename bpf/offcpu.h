/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Time off the CPU, and with_on_cpu, the time on it between the samples. A
 * thread's stack can be read while it is current, which when it blocks is the
 * case at the switch away from it, and no more when it is switched to: so its
 * sample is taken then. How long it was away is known at the switch back, which
 * sends a small record of its own; user space puts the two together (record.h).
 */
#ifndef SWBPF_OFFCPU_H
#define SWBPF_OFFCPU_H

#include "estimate.h"
#include "cgroup.h"

/* Bits of task_struct.__state and the tracepoint's prev_state (sched.h). */
enum {
	TASK_INTERRUPTIBLE = 0x01,
	TASK_UNINTERRUPTIBLE = 0x02,
	TASK_STOPPED_OR_TRACED = 0x04 | 0x08,
	TASK_EXITING = 0x10 | 0x20 | 0x80, /* EXIT_DEAD, EXIT_ZOMBIE, TASK_DEAD */
	TASK_NOLOAD = 0x400,
};

/* System calls that wait for a lock: futex, futex_waitv (5.16), futex_wait (6.7). */
enum {
#if defined(__TARGET_ARCH_x86)
	NR_FUTEX = 202,
#else
	NR_FUTEX = 98,
#endif
	NR_FUTEX_WAITV = 449,
	NR_FUTEX_WAIT = 455,
	/* of 32-bit programs, on both architectures */
	NR_COMPAT_FUTEX = 240,
	NR_COMPAT_FUTEX_TIME64 = 422,
};

/*
 * Whether a task whose user registers are saved is in a system call that waits
 * for a lock.
 */
INLINE bool is_in_futex(struct user_regs *saved)
{
	struct user_regs regs; /* of which a field or two are looked at */
#if defined(__TARGET_ARCH_x86)
	u64 nr = -1;
	bpf_probe_read_kernel(&nr, sizeof(nr), &saved->orig_ax);
	bpf_probe_read_kernel(&regs.cs, sizeof(regs.cs), &saved->cs);
#else
	u64 nr = kernel_read((struct pt_regs *)saved, syscallno);
	bpf_probe_read_kernel(&regs.pstate, sizeof(regs.pstate), &saved->pstate);
#endif
	if (nr == NR_FUTEX_WAITV || nr == NR_FUTEX_WAIT)
		return true;
	if (is_compat32(&regs))
		return nr == NR_COMPAT_FUTEX || nr == NR_COMPAT_FUTEX_TIME64;
	return nr == NR_FUTEX;
}

/* Why a task is off the CPU, from its state and its user registers. */
INLINE u8 blocked_state(struct task_struct *task, u64 state, void *saved)
{
	if (!state)
		return OFF_CPU_RUNNABLE;
	if (state & TASK_STOPPED_OR_TRACED)
		return OFF_CPU_STOPPED;
	if (state & TASK_UNINTERRUPTIBLE && !(state & TASK_NOLOAD))
		return kernel_read_bits(task, in_iowait) ? OFF_CPU_DISK : OFF_CPU_UNINTERRUPTIBLE;
	if (kernel_read(task, flags) & PF_KTHREAD)
		return OFF_CPU_SLEEP;
	return is_in_futex(saved) ? OFF_CPU_LOCK : OFF_CPU_SLEEP;
}

/* Whether a kernel thread waits for work, which it declares to be no load. */
INLINE bool is_idle(struct task_struct *task, u64 state)
{
	return state & TASK_NOLOAD && kernel_read(task, flags) & PF_KTHREAD;
}

INLINE u64 state_of(struct task_struct *task)
{
	return kernel_has(task, __state) ? kernel_read(task, __state) :
					   kernel_read((struct task_struct___before_5_14 *)task, state);
}

/* The state in which prev leaves the CPU; 0 when it could go on. */
INLINE u64 state_of_prev(const struct bpf_raw_tracepoint_args *ctx, struct task_struct *prev)
{
	if (ctx->args[0]) /* preempted */
		return 0;
	if (have_switch_state) /* __state may have changed again by a wake-up */
		return (u32)ctx->args[3];
	return state_of(prev);
}

/* Whether a task, with this tgid, is asked for. */
INLINE bool is_tracked(struct task_struct *task, u32 tgid)
{
	return tgid && is_asked_for(task, process_flags(tgid));
}

/* Fills in who a thread is. */
INLINE void identify(struct thread_times *t, struct task_struct *task, u32 tgid, u64 cgroup)
{
	t->tgid = tgid;
	t->tid = tid_of(task);
	t->cgroup = cgroup;
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), kernel_address(task, comm));
}

/* Of a thread that nothing is known of: too large for the stack. */
const volatile struct thread_times no_times = {};

/* The times of a thread, made when there are none; NULL when there is no room. */
INLINE struct thread_times *times_of(struct cpu_ring *r, u32 pid)
{
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);

	if (t)
		return t;
	if (bpf_map_update_elem(&times, &pid, (const void *)&no_times, 0))
		r->counters.lost_no_scratch++;
	if ((t = bpf_map_lookup_elem(&times, &pid)))
		t->born = bpf_ktime_get_ns();
	return t;
}

/* Sends time of which there is no sample. Returns whether there was room. */
INLINE bool send_unsampled(struct cpu_ring *r, const struct thread_times *t, u8 state, u64 ns, u64 now)
{
	struct unsampled u = { .time = now, .size = sizeof(u), .ns = ns, .cgroup = t->cgroup, .tgid = t->tgid, .tid = t->tid, .off_cpu = state };

	__builtin_memcpy(u.comm, t->comm, sizeof(u.comm));
	return put_record(r, &u, sizeof(u));
}

/* A time off the CPU with a sample ends: says how long it was, and what it
 * weighs. */
INLINE void end_sampled(struct cpu_ring *r, struct thread_times *t, struct off_cpu_end *end, u64 blocked, u64 runnable)
{
	u8 state = t->off_cpu;

	if (state >= OFF_CPU_STATES)
		return;
	if (blocked)
		end->blocked = weigh(t, state, blocked, t->cost) + *in_state(t->carried, state);
	if (runnable)
		end->runnable = weigh(t, OFF_CPU_RUNNABLE, runnable, blocked ? 0 : t->cost) + t->carried[OFF_CPU_RUNNABLE];
	bool sent = put_record(r, end, sizeof(*end));
	if (sent)
		r->counters.samples++;
	else
		r->counters.lost_ring_full++;
	if (blocked)
		*in_state(t->carried, state) = 0;
	if (runnable)
		t->carried[OFF_CPU_RUNNABLE] = 0;
	if (!sent) {
		owe(t, state, end->blocked, blocked);
		owe(t, OFF_CPU_RUNNABLE, end->runnable, runnable);
	}
}

/* A time off the CPU ends that is too short to be of interest. */
INLINE void end_short(struct cpu_ring *r, struct thread_times *t, struct off_cpu_end *end, u64 blocked, u64 runnable)
{
	u8 state = t->off_cpu;

	r->counters.skipped_short++;
	if (t->sampled == SAMPLED) {
		end->dropped = true;
		put_record(r, end, sizeof(*end));
	}
	if (!with_on_cpu || state >= OFF_CPU_STATES)
		return;
	*in_state(t->carried, state) += blocked;
	t->carried[OFF_CPU_RUNNABLE] += runnable;
}

/* end_time for a time whose sample, if any, t->sampled tells of. */
APART void end_off_cpu(struct cpu_ring *r, struct thread_times *t, u64 now)
{
	u64 left = t->left, woken = t->woken;
	struct off_cpu_end end = { .time = now, .size = sizeof(end), .tid = t->tid, .start = left };

	t->left = 0;
	u64 runnable = woken >= left && woken <= now ? now - woken : 0;
	u64 blocked = now - left - runnable;
	if (blocked + runnable < min_off_cpu)
		end_short(r, t, &end, blocked, runnable);
	else if (t->sampled == SAMPLED)
		end_sampled(r, t, &end, blocked, runnable);
	else {
		if (t->sampled == SAMPLED_NOT) {
			r->counters.skipped_rate++;
			r->counters.unsampled_time += blocked + runnable;
		}
		owe(t, t->off_cpu, blocked, blocked);
		owe(t, OFF_CPU_RUNNABLE, runnable, runnable);
	}
}

/* A time off the CPU ends. */
INLINE void end_time(struct cpu_ring *r, struct thread_times *t, u64 now)
{
	if (t->late == t->left)
		t->sampled = SAMPLED;
	end_off_cpu(r, t, now);
}

/*
 * The current task is on the CPU without having been seen to come back: some
 * kernels leave a switch out now and then. It was after the last one on this
 * CPU, and after the task was woken.
 */
INLINE void make_up(struct cpu_ring *r, struct thread_times *t)
{
	struct counters *n = &r->counters;
	u64 back = n->on_cpu_since;

	if (back < t->left)
		back = t->left;
	if (back < t->woken)
		back = t->woken;
	n->missed_switches++;
	n->on_cpu_since = back;
	end_time(r, t, back);
}

/* The next task comes back to the CPU. */
INLINE void come_back(struct cpu_ring *r, struct task_struct *next, u64 now)
{
	u32 pid = kernel_read(next, pid);

	r->counters.running = pid;
	r->counters.on_cpu_since = now;
	if (!pid)
		return;
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);
	if (t) {
		if (t->left)
			end_time(r, t, now);
		return;
	}
	u32 tgid = tgid_of(next);
	if (with_on_cpu && is_tracked(next, tgid) && (t = times_of(r, pid)))
		identify(t, next, tgid, cgroup_of(next));
}

/* The current task ends: sends what is left of its time, and forgets it. */
INLINE void end_thread(struct cpu_ring *r, u32 pid, u64 now)
{
	struct thread_times *t = bpf_map_lookup_elem(&times, &pid);

	if (!t)
		return;
	if (t->left)
		make_up(r, t);
	if (with_on_cpu)
		t->carried[OFF_CPU_NOT] += now - r->counters.on_cpu_since;
	for (int state = 0; state < OFF_CPU_STATES; state++) {
		u64 left = t->carried[state] + t->owed[state];
		if (left && !send_unsampled(r, t, state, left, now))
			r->counters.lost_ring_full++;
	}
	bpf_map_delete_elem(&times, &pid);
}

#endif
