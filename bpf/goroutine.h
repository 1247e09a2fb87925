/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Stacks of Go programs. A goroutine's stack is a piece of the heap: without
 * its bounds one would copy far past its end. And the runtime changes stacks:
 * on the thread's own stack (g0) or in a signal handler (gsignal) the frames
 * of the goroutine that is being served are elsewhere, from curg.sched.sp up.
 */
#ifndef SWBPF_GOROUTINE_H
#define SWBPF_GOROUTINE_H

#include "stack.h"

/* How much of a goroutine's stack is taken when its SP is not known. */
enum { SIGNALLED_STACK = 32 << 10 };

/* What a function of the runtime that calls the vdso keeps on its stack. */
enum { VDSO_CALLER_FRAME = 128 };

/*
 * In programs with cgo, g0's stack is the thread's own, and stack.hi only an
 * address near its end; above are the frames that started the thread.
 */
enum { ABOVE_G0 = 1024 };

struct go_stack {
	u64 lo, hi;
};

/* What is known of the thread's goroutines. */
struct go_thread {
	const struct go_process *process;
	u64 g_word; /* address of the word that holds g */
	u64 g;    /* the one that runs; 0 when none could be read */
	u64 m;
	u64 curg; /* the user goroutine of the thread; 0 when there is none */
	struct go_stack stack; /* of g */
};

INLINE u64 read_user_word(u64 addr)
{
	u64 word = 0;
	bpf_probe_read_user(&word, sizeof(word), (void *)addr);
	return word;
}

INLINE void read_go_thread(struct go_thread *t, u32 tgid, const struct sample_header *h)
{
	const struct go_process *p = bpf_map_lookup_elem(&go_processes, &tgid);

	t->process = p;
	t->g = 0;
	if (!p || !h->thread_pointer)
		return;
	t->g_word = h->thread_pointer + p->g_from_tp;
	u64 g = read_user_word(t->g_word);
	if (!g || bpf_probe_read_user(&t->stack, sizeof(t->stack), (void *)(g + p->g_stack)))
		return;
	t->g = g;
	t->m = read_user_word(g + p->g_m);
	t->curg = read_user_word(t->m + p->m_curg);
}

INLINE bool on_stack(const struct go_stack *stack, u64 sp)
{
	return sp - stack->lo < stack->hi - stack->lo;
}

/*
 * The end of the stack that holds sp, when it is that of the running goroutine
 * or, as in a call of the vdso, that of g0; else 0.
 */
INLINE u64 go_stack_end(const struct go_thread *t, u64 sp)
{
	struct go_stack stack;

	if (!t->g)
		return 0;
	u64 g0 = read_user_word(t->m + t->process->m_g0);
	if (on_stack(&t->stack, sp))
		return t->stack.hi + (t->g == g0 ? ABOVE_G0 : 0);
	if (bpf_probe_read_user(&stack, sizeof(stack), (void *)(g0 + t->process->g_stack)))
		return 0;
	return on_stack(&stack, sp) ? stack.hi + ABOVE_G0 : 0;
}

/*
 * Where the stack of curg is live from, while the thread is on another one.
 * Usually curg.sched has kept it, but not while a signal is handled, which may
 * have met the goroutine running, nor in a call of the vdso.
 */
INLINE u64 curg_stack_start(const struct go_thread *t, const struct go_stack *stack)
{
	const struct go_process *p = t->process;
	u64 from = 0;

	if (t->g == t->curg) /* the SP kept is that above the return address */
		from = read_user_word(t->m + p->m_vdso_sp) - VDSO_CALLER_FRAME;
	else if (read_user_word(t->m + p->m_gsignal) != t->g)
		from = read_user_word(t->curg + p->g_sched_sp);
	if (from - stack->lo < stack->hi - stack->lo)
		return from;
	return stack->hi - stack->lo > SIGNALLED_STACK ? stack->hi - SIGNALLED_STACK : stack->lo;
}

/*
 * When the thread is not on the stack of its goroutine curg, adds that stack
 * and the structures which lead there. The limit holds for both stacks
 * together.
 */
INLINE void add_served_goroutine(struct scratch *s, const struct go_thread *t, u64 sp, u64 own_bytes)
{
	const struct go_process *p = t->process;

	if (!p || !t->g || !t->curg || (t->g == t->curg && on_stack(&t->stack, sp)))
		return;
	add_bytes(s, t->g_word, sizeof(u64));
	add_bytes(s, t->g, p->g_head);
	add_bytes(s, t->m, p->m_head);
	if (t->curg != t->g)
		add_bytes(s, t->curg, p->g_head);

	struct go_stack stack;
	if (bpf_probe_read_user(&stack, sizeof(stack), (void *)(t->curg + p->g_stack)))
		return;
	u64 from = curg_stack_start(t, &stack);
	if (from < stack.lo || from >= stack.hi || own_bytes >= stack_limit)
		return;
	u64 to = stack.hi;
	if (to - from > stack_limit - own_bytes)
		to = from + (stack_limit - own_bytes);
	add_pages(s, from, to, true);
}

#endif
