/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which times off the CPU get a sample, and what these weigh then.
 *
 * With too many switches the samples would be what they measure, and those of
 * one thread would leave no room for others. So a switch is sampled with a
 * probability that falls as they become more of the same thread, from the same
 * place, and that is known: a sample stands for its inverse of them. As it is
 * drawn before the time is known, long times are missed as easily as short ones.
 * Therefore a sample stands only for times of its thread, state, place and
 * length. What they took in truth is kept, and no sample weighs more than that.
 * What in the end is left is time without a stack, so that the sum of a thread's
 * times is right.
 */
#ifndef SWBPF_ESTIMATE_H
#define SWBPF_ESTIMATE_H

#include "ring.h"

/* The class of a length: a power of two, or of 16 for the long ones, of which
 * there are few. */
GLOBAL int length_of(u64 ns)
{
	u32 log = 0;

	for (int bits = 32; bits; bits /= 2) {
		u64 above = ns >> bits;
		if (above) {
			ns = above;
			log += bits;
		}
	}
	return log < 16 ? log : log / 4 * 4;
}

/* Makes a sample stand for n times as many when n is above limit, of which one
 * is taken on the average. */
INLINE u64 thinned(u64 stands_for, u64 n, u64 limit)
{
	return n > limit ? stands_for * n / limit : stands_for;
}

/* Whether to take something of which one of so many ONEs shall be. */
INLINE bool is_drawn(u64 stands_for)
{
	return stands_for <= ONE || bpf_get_prandom_u32() * stands_for < (u64)ONE << 32;
}

/*
 * The place in a program at which its thread leaves the CPU, from its user
 * registers: code and depth of the stack tell most stacks from others. Where a
 * thread is preempted says nothing.
 */
INLINE u32 place_of(struct user_regs *saved, bool preempted)
{
	u64 pc = 0, sp = 0;

	if (preempted)
		return 0;
#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_kernel(&pc, sizeof(pc), &saved->rip);
	bpf_probe_read_kernel(&sp, sizeof(sp), &saved->rsp);
#else
	bpf_probe_read_kernel(&pc, sizeof(pc), &saved->pc);
	bpf_probe_read_kernel(&sp, sizeof(sp), &saved->sp);
#endif
	return ((pc ^ sp << 20) * 0x9e3779b97f4a7c15) >> 32;
}

/* Counts a switch in a thread's window: the how many-eth of its slot it is. */
INLINE u64 counted(struct thread_times *t, u64 slot)
{
	if (slot >= WINDOW_SLOTS)
		return 0;
	if (t->window[slot] < 0xffff)
		t->window[slot]++;
	return t->window[slot];
}

/*
 * Draws whether the current switch is sampled. Returns how many of them its
 * sample stands for, in parts of ONE; 0 when it is not. Preemptions, and
 * places as far as there are slots, are parts of their own: many in one leave
 * room for the others, and threads with many for those with few. The n-th
 * within the window is taken with a probability of limit / n: that follows a
 * burst from its beginning.
 */
INLINE u32 draw(struct cpu_ring *r, struct thread_times *t, u64 now)
{
	struct counters *n = &r->counters;

	if (now - t->window_start >= OFF_CPU_WINDOW) {
		t->window_start = now;
		__builtin_memset(t->window, 0, sizeof(t->window));
	}
	bool preempted = t->off_cpu == OFF_CPU_RUNNABLE;
	u64 nth = counted(t, preempted ? PREEMPTED_SLOT : t->place % PREEMPTED_SLOT);
	u64 stands_for = thinned(ONE, nth, preempted ? PREEMPTED_PER_THREAD : BLOCKED_PER_THREAD);
	if (!is_drawn(stands_for))
		return 0;
	if (now - n->window_start >= OFF_CPU_WINDOW) {
		n->window_start = now;
		n->window_rare = 0;
		n->window_frequent = 0;
	}
	bool rare = nth <= RARE_PER_THREAD;
	u64 of_cpu = rare ? thinned(ONE, ++n->window_rare, RARE_PER_CPU) :
			    thinned(ONE, ++n->window_frequent, FREQUENT_PER_CPU);
	u64 fill = filled(r);
	if (fill >= ring_bytes / 4 * 3) /* what is left is for the ends of times */
		return 0;
	if (fill >= ring_bytes / 2)
		of_cpu *= rare ? 4 : 16;
	else if (fill >= ring_bytes / 4 && !rare)
		of_cpu *= 4;
	if (!is_drawn(of_cpu))
		return 0;
	stands_for = stands_for * of_cpu / ONE;
	return stands_for > MOST ? MOST : stands_for;
}

/* What times of a thread in a state, from the same place and as long as this,
 * still have to weigh; made when there are none of them. NULL when there is no
 * room. */
INLINE struct length_account *account_of(const struct thread_times *t, u8 state, u64 ns)
{
	struct length_key key = { .tid = t->tid, .state = state, .length = length_of(ns) };

	if (state != OFF_CPU_RUNNABLE) /* which has little to do with the place */
		key.place = t->place;
	struct length_account *a = bpf_map_lookup_elem(&lengths, &key);
	if (!a) {
		struct length_account none = { .born = t->born };
		bpf_map_update_elem(&lengths, &key, &none, 0);
		a = bpf_map_lookup_elem(&lengths, &key);
	}
	if (a && a->born != t->born) { /* of a thread before it with this number */
		a->born = t->born;
		a->owed = 0;
	}
	return a;
}

/*
 * What an array of times has for a state that is known to be one. Its bounds are
 * looked at here once more: before Linux 5.13 the verifier has forgotten them
 * when the number was on the stack since.
 */
INLINE u64 *in_state(u64 *ns, u64 state)
{
	hide(state);
	return &ns[state < OFF_CPU_STATES ? state : OFF_CPU_NOT];
}

/* Leaves time for samples of times as long as this to weigh. */
INLINE void owe(struct thread_times *t, u8 state, u64 ns, u64 length)
{
	struct length_account *a;

	if (!ns || state >= OFF_CPU_STATES)
		return;
	*in_state(t->owed, state) += ns;
	if ((a = account_of(t, state, length)))
		a->owed += ns;
}

/*
 * The weight of a time off the CPU that has a sample: itself and, of what is
 * owed, what it stands for; up to four times that, to catch up where chance has
 * estimated too low. The others are as long as it would be but for the cost of
 * its sample, ns.
 */
INLINE u64 weigh(struct thread_times *t, u8 state, u64 ns, u64 cost)
{
	struct length_account *a;
	u64 length = ns > cost ? ns - cost : ns;

	if (!ns || !t->is_thinned || state >= OFF_CPU_STATES || !(a = account_of(t, state, length)))
		return ns;
	u64 more = t->stands_for > ONE ? t->stands_for - ONE : 0;
	u64 others = length / ONE * more + length % ONE * more / ONE;
	others *= 4;
	if (others > a->owed)
		others = a->owed;
	a->owed -= others;
	*in_state(t->owed, state) -= others;
	return ns + others;
}

#endif
