/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Stacks of Go programs. A goroutine's stack is a piece of the heap: without
 * its bounds one would copy far past its end. And the runtime changes stacks:
 * on the thread's own stack (g0) or in a signal handler (gsignal) the frames
 * of the goroutine that is being served are elsewhere, from curg.sched.sp up. In
 * Go code that C has called it is the other way round: C's frames are on g0.
 */
#ifndef SWBPF_GOROUTINE_H
#define SWBPF_GOROUTINE_H

#include "context.h"
#include "frames.h"
#include "signal.h"
#include "stack.h"

/* How much of a goroutine's stack is taken when its SP is not known. */
enum { SIGNALLED_STACK = 32 << 10 };

/* What a function of the runtime that calls the vdso keeps on its stack. */
enum { VDSO_CALLER_FRAME = 128 };

/* How many words of the frames of C are looked at for the goroutine's SP. */
enum { WORDS_OF_C = 64 };

/*
 * In programs with cgo, g0's stack is the thread's own, and stack.hi only an
 * address near its end; above are the frames that started the thread.
 */
enum { ABOVE_G0 = 1024 };

/*
 * The runtime takes a thread of C to have that much of a stack above SP where
 * it cannot tell, as before Go 1.22.
 */
enum { ESTIMATED_ABOVE = 1024, NEAR_ESTIMATE = 512 };

/* Where in its frame cgocallback keeps g0.sched.sp. */
#if defined(__TARGET_ARCH_x86)
enum { CALLBACK_KEEPS = 0 };
#else
enum { CALLBACK_KEEPS = 16 };
#endif

/* Where the labels of a g are; 0 when it has none. */
INLINE u64 labels_of(const struct go_process *p, u64 g)
{
	return p->g_labels ? user_word(g + p->g_labels) : 0;
}

/*
 * The g that the thread has; 0 when it is not known. On arm64 it is in a
 * register, and in programs with C, which may use that, also in the thread's
 * word for it. Of a thread that was never off the CPU since it has begun such a
 * program the thread pointer is not known.
 */
INLINE u64 find_g(struct go_thread *t, const struct go_process *p, const struct sample_header *h)
{
	t->g_word = 0;
#if defined(__TARGET_ARCH_arm64)
	if (!p->calls_c || !h->thread_pointer)
		return h->regs.x[28];
#endif
	if (!h->thread_pointer)
		return 0;
	t->g_word = h->thread_pointer + (p->g_slot ? user_word(p->g_slot) : p->g_from_tp);
	return user_word(t->g_word);
}

/* Reads what the runtime of this key has of the thread. */
INLINE void read_runtime(struct go_thread *t, u32 key, const struct sample_header *h)
{
	const struct go_process *p = bpf_map_lookup_elem(&go_processes, &key);

	t->g = 0;
	t->key = key;
	t->process.others = 0;
	if (!p)
		return;
	t->signalled = false;
	t->process = *p;
	u64 g = find_g(t, p, h);
	if (!g || bpf_probe_read_user(&t->stack, sizeof(t->stack), (void *)(g + p->g_stack)))
		return;
	t->g = g;
	t->m = user_word(g + p->g_m);
	t->g0 = user_word(t->m + p->m_g0);
	t->curg = user_word(t->m + p->m_curg);
	t->curg_stack = t->stack;
	if (t->curg != g && bpf_probe_read_user(&t->curg_stack, sizeof(t->curg_stack), (void *)(t->curg + p->g_stack)))
		t->curg = 0;
}

/* While the runtime moves a stack, hi may be below lo. */
INLINE bool on_stack(const struct go_stack *stack, u64 sp)
{
	return sp >= stack->lo && sp < stack->hi;
}

INLINE bool read_stack_of(const struct go_thread *t, u64 g, struct go_stack *stack)
{
	return !bpf_probe_read_user(stack, sizeof(*stack), (void *)(g + t->process.g_stack));
}

/* Whether sp is on the stack of the goroutine that the thread runs. */
INLINE bool is_at_home(const struct go_thread *t, u64 sp)
{
	return t->curg && on_stack(&t->curg_stack, sp);
}

/* Reads what that runtime has of the thread on whose stack of it the thread is; else the first one. */
GLOBAL int choose_runtime(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct go_stack g0;

	if (!h)
		return 0;
	u64 sp = stack_pointer(&h->regs);
	for (u32 n = 0; n <= MORE_RUNTIMES; n++) {
		read_runtime(&r->go, h->tgid + n * GO_RUNTIME, h);
		if (r->go.g && (is_at_home(&r->go, sp) || (read_stack_of(&r->go, r->go.g0, &g0) && on_stack(&g0, sp))))
			return 0;
	}
	read_runtime(&r->go, h->tgid, h);
	return 0;
}

/* Reads what is known of a thread of a Go process. Returns whether that has several runtimes. */
INLINE bool read_go_thread(struct go_thread *t, const struct sample_header *h)
{
	read_runtime(t, h->tgid, h);
	if (!t->process.others)
		return false;
	choose_runtime(h->cpu);
	return true;
}

/* Whether what a signal has met was on a stack that is none of the runtime's. */
INLINE bool is_elsewhere(const struct go_thread *t)
{
	struct go_stack g0;

	return t->sp && t->curg && !is_at_home(t, t->sp) && read_stack_of(t, t->g0, &g0) && !on_stack(&g0, t->sp);
}

/*
 * Finds where on the thread's stacks sp is. Returns the end of the stack that
 * holds it when it is that of the goroutine or, as also in a call of the vdso,
 * that of g0; else 0.
 */
INLINE u64 find_go_stack(struct go_thread *t, u64 sp, const struct signal_stack *signal)
{
	struct go_stack stack;

	if (!t->g)
		return 0;
	t->sp = sp;
	if (is_at_home(t, sp))
		return t->curg_stack.hi;
	if (t->g == t->g0 && on_stack(&t->stack, sp))
		return t->stack.hi + ABOVE_G0;
	if (t->g != t->g0 && read_stack_of(t, t->g0, &stack) && on_stack(&stack, sp))
		return stack.hi + ABOVE_G0;
	if (signal->end) {
		t->signalled = true;
		t->sp = signal->met;
	}
	return 0;
}

/*
 * Where the stack ends that holds sp, if it is that of the goroutine which the current
 * thread runs, and nothing else need be copied; else 0. It is for the usual sample,
 * whose registers are in the record, and reads as little as can be.
 */
GLOBAL u64 goroutine_end(u32 cpu, u32 tgid, u64 sp)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	const struct go_process *p = bpf_map_lookup_elem(&go_processes, &tgid);
	struct go_stack stack;

	if (!h || !p || p->calls_c || p->g_slot)
		return 0;
#if defined(__TARGET_ARCH_x86)
	u64 g = user_word(thread_pointer_of(current_task()) + p->g_from_tp), points_to = h->regs.rbx;
#else
	u64 g = h->regs.x[28], points_to = h->regs.x[5];
#endif
	if (!g || points_to == g + p->g_sched_sp /* see add_switch */ ||
	    bpf_probe_read_user(&stack, sizeof(stack), (void *)(g + p->g_stack)) || !on_stack(&stack, sp))
		return 0;
	if (user_word(user_word(g + p->g_m) + p->m_curg) != g)
		return 0;
	r->go.labels = labels_of(p, g);
	return stack.hi;
}

/*
 * The lowest address on curg's stack that the thread has in the register in which
 * functions that call C without telling the runtime, as the race detector's, keep SP,
 * or that C has saved on g0's stack; 0 when there is none, or the thread is not on that. It may be another's, below
 * SP; then a few bytes too many are taken.
 */
GLOBAL u64 find_kept_sp(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	if (!h)
		return 0;
	const struct go_thread *t = &r->go;
	const struct go_stack *stack = &t->curg_stack;
	struct go_stack g0;

	if (!read_stack_of(t, t->g0, &g0) || !on_stack(&g0, t->sp))
		return 0;
#if defined(__TARGET_ARCH_x86)
	u64 kept = h->regs.r12;
#else
	u64 kept = h->regs.x[19];
#endif
	u64 end = user_word(t->g0 + t->process.g_sched_sp);

	if (!on_stack(stack, kept))
		kept = 0;
	for (u64 i = 0, at = t->sp; i < WORDS_OF_C && at < end; i++, at += sizeof(u64)) {
		u64 word = user_word(at);
		if (on_stack(stack, word) && (!kept || word < kept))
			kept = word;
	}
	return kept;
}

/*
 * Where the stack of curg is live from, while the thread is on another one.
 * Usually curg.sched has kept it, but not while a signal is handled that has met
 * the goroutine running, nor in a call of the vdso, nor in one of C that the
 * runtime is not told of, where it has what it had in another such call; nor where
 * the thread is on a stack that is none of the runtime's.
 */
INLINE u64 curg_stack_start(const struct sample_header *h, const struct go_thread *t)
{
	const struct go_process *p = &t->process;
	const struct go_stack *stack = &t->curg_stack;
	u64 last = stack->hi - stack->lo > SIGNALLED_STACK ? stack->hi - SIGNALLED_STACK : stack->lo;

	if (is_at_home(t, t->sp))
		return t->sp;
	if (!t->sp)
		return last;
	/* the SP kept is that above the return address */
	u64 from = user_word(t->m + p->m_vdso_sp) - VDSO_CALLER_FRAME;
	if (on_stack(stack, from))
		return from;
	from = user_word(t->curg + p->g_sched_sp);
	if (t->g == t->curg) {
		u64 kept = find_kept_sp(h->cpu);
		if (kept)
			last = kept;
		if (from > last)
			return last;
	}
	return on_stack(stack, from) ? from : last;
}

/*
 * Finds what is live of g0's stack while the thread is on another one: the
 * frames of C that called the Go code that runs, from that of cgocallback up,
 * or what a signal has met. cgocallback's frame is at g0.sched.sp and keeps the
 * former one, on the same stack; in a thread that C has not called Go in, the
 * word there may look so by chance, and a few bytes too many are taken. Returns
 * false when there is nothing.
 */
INLINE bool find_g0_stack(const struct go_thread *t, struct go_stack *stack)
{
	const struct go_process *p = &t->process;
	bool at_home = is_at_home(t, t->sp);

	if (at_home && !p->calls_c)
		return false;
	if (!read_stack_of(t, t->g0, stack))
		return false;
	bool on_g0 = on_stack(stack, t->sp);
	if (!t->signalled && (on_g0 || !p->calls_c))
		return false;
	u64 from = user_word(t->g0 + p->g_sched_sp);
	u64 above = stack->hi - from;
	if (on_g0)
		from = t->sp - BELOW_SP;
	else if (!at_home) {
		if (!on_stack(stack, from) || above < SIGNALLED_STACK)
			from = stack->hi - stack->lo > SIGNALLED_STACK ? stack->hi - SIGNALLED_STACK : stack->lo;
	} else {
		u64 former = user_word(from + CALLBACK_KEEPS);
		if (former & 7 || former - from + MAIN_STACK_REACH >= 2 * MAIN_STACK_REACH)
			return false;
		if (former == from && above - ESTIMATED_ABOVE < NEAR_ESTIMATE)
			stack->hi = from + SIGNALLED_STACK;
	}
	stack->lo = from;
	stack->hi += ABOVE_G0;
	return true;
}

/*
 * Adds what tells where the goroutine goes on while the thread changes over to
 * it, or from it, and is on its stack. It is in curg.sched, to which a register
 * points when it is gone over to. On arm64 the thread pretends to run g0 before
 * it leaves; there one also comes to curg by way of g and m alone.
 */
INLINE void add_switch(const struct sample_header *h, const struct go_thread *t)
{
	const struct go_process *p = &t->process;

#if defined(__TARGET_ARCH_x86)
	if (h->regs.rbx == t->g + p->g_sched_sp)
		add_bytes(h->cpu, t->g, p->g_head);
#else
	if (h->regs.x[28] == t->g0 && t->curg)
		add_bytes(h->cpu, t->g0, p->g_head);
	else if (h->regs.x[5] != t->g + p->g_sched_sp)
		return;
	add_bytes(h->cpu, t->m, p->m_head);
	add_bytes(h->cpu, t->curg, p->g_head);
#endif
}

/* Adds another stack of the thread, as far as the limit allows. */
INLINE void add_other_stack(struct cpu_ring *r, const struct sample_header *h, const struct go_stack *stack)
{
	if (stack->hi > stack->lo)
		add_pages(r, h->cpu, stack->hi + h->tgid, stack->lo, stack->lo, stack->hi, ~0ULL);
}

/*
 * Adds the stacks that the frames of the one which the thread is on lead to, and
 * the structures that tell where.
 */
INLINE void add_other_stacks(struct cpu_ring *r, const struct sample_header *h, const struct go_thread *t)
{
	const struct go_process *p = &t->process;

	struct go_stack g0;
	bool has_g0 = find_g0_stack(t, &g0);
	bool has_curg = t->curg && (t->signalled || !is_at_home(t, t->sp));
	if (!has_g0 && !has_curg) {
		add_switch(h, t);
		return;
	}
	if (t->g_word)
		add_bytes(h->cpu, t->g_word, sizeof(u64));
	if (p->g_slot)
		add_bytes(h->cpu, p->g_slot, sizeof(u64));
	add_bytes(h->cpu, t->g, p->g_head);
	add_bytes(h->cpu, t->m, p->m_head);
	if (t->curg != t->g)
		add_bytes(h->cpu, t->curg, p->g_head);
	if (has_curg) {
		struct go_stack curg = { curg_stack_start(h, t), t->curg_stack.hi };
		add_other_stack(r, h, &curg);
	}
	if (t->g0 != t->g)
		add_bytes(h->cpu, t->g0, p->g_head);
	if (has_g0)
		add_other_stack(r, h, &g0);
}

/* Adds what a runtime that has called another, by way of C, has of the thread. */
GLOBAL int add_runtime(u32 cpu, u32 key)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	if (!h)
		return 0;
	read_runtime(&r->go, key, h);
	r->go.sp = stack_pointer(&h->regs);
	if (r->go.g)
		add_other_stacks(r, h, &r->go);
	return 0;
}

/* Adds what the other runtimes of the process have of the thread. */
INLINE void add_other_runtimes(struct cpu_ring *r, const struct sample_header *h)
{
	u32 chosen = r->go.key, first = h->tgid;

	for (u32 n = 0; n <= MORE_RUNTIMES; n++) {
		if (first + n * GO_RUNTIME != chosen)
			add_runtime(h->cpu, first + n * GO_RUNTIME);
	}
	read_runtime(&r->go, chosen, h);
}

/* A string and a slice of Go, but for its room. */
struct go_string {
	u64 data, bytes;
};

/* Adds the labels of the goroutine that runs, if it has any, or as much as there is room for: they are
 * immutable, but gone soon. */
GLOBAL int add_labels(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct go_string s; /* pairs of strings, and then each of these */

	if (!h || !r->go.labels || r->regions > MAX_REGIONS - 2 - 2 * MAX_LABELS ||
	    bpf_probe_read_user(&s, sizeof(s), (void *)r->go.labels) || !s.bytes)
		return 0;
	u64 at = s.data, end = at + (s.bytes < MAX_LABELS ? s.bytes : MAX_LABELS) * 2 * sizeof(s);
	h->labels = r->regions;
	add_bytes(cpu, at, end - at);
	if (r->regions == h->labels) { /* it could not be read */
		h->labels = 0;
		return 0;
	}
	for (u64 i = 0; i < 2 * MAX_LABELS && at < end; i++, at += sizeof(s)) {
		if (!bpf_probe_read_user(&s, sizeof(s), (void *)at) && s.bytes)
			add_bytes(cpu, s.data, s.bytes < MAX_LABEL ? s.bytes : MAX_LABEL);
	}
	h->labels = r->regions - h->labels;
	return 0;
}

/* Adds what there is of the thread besides stacks: frames that its runtime keeps, what it works on, and its goroutine's labels. */
GLOBAL int add_kept(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	add_frames(cpu);
	add_context(cpu);
	if (r && r->go.g && r->go.curg) {
		r->go.labels = labels_of(&r->go.process, r->go.curg);
		add_labels(cpu);
	}
	return 0;
}

#endif
