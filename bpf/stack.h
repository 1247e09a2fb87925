/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Copies of user memory into the record. */
#ifndef SWBPF_STACK_H
#define SWBPF_STACK_H

#include "task.h"

/*
 * The kernel puts argc at start_stack and sets SP to it; the frames of _start
 * and below lie under it. Run as "ld.so program", the loader drops its own
 * arguments by moving SP up a word for each: hence a few words more.
 */
enum { ABOVE_START_STACK = 128 };

/*
 * The kernel keeps mappings at least this far below the main stack (MIN_GAP),
 * so an SP farther away is on some other stack, a coroutine's for example.
 */
enum { MAIN_STACK_REACH = 128 << 20 };

/* Whether a CHUNK more may be written at this offset of the body. */
INLINE bool in_body(u64 at)
{
	return at <= BODY_LIMIT;
}

/*
 * Copies n bytes at addr, at most CHUNK, to the body at an offset. Says whether
 * that worked.
 */
INLINE bool copy_piece(struct scratch *s, u64 offset, u64 addr, u64 n)
{
	hide(n);
	hide(offset);
	return n <= CHUNK && in_body(offset) && !bpf_probe_read_user(s->body + offset, n, (void *)addr);
}

/* Puts the header of a region whose bytes [from, to) are already behind it. */
INLINE void close_region(struct scratch *s, u64 from, u64 to)
{
	u64 at = s->end;

	hide(at);
	if (!in_body(at))
		return;
	struct region_header *region = (void *)(s->body + at);
	region->addr = from;
	region->len = to - from;
	s->end = at + sizeof(*region) + ((to - from + 7) & ~7ULL);
	s->header.regions++;
}

/*
 * Adds n bytes at addr, at most CHUNK, as a region if they can be read. They
 * should not be many, as no limit but that of the body is heeded.
 */
INLINE void add_bytes(struct scratch *s, u64 addr, u64 n)
{
	if (copy_piece(s, s->end + sizeof(struct region_header), addr, n))
		close_region(s, addr, addr + n);
}

/*
 * Leaves out the page at the copy's address: a region ends before it, another
 * may begin behind it.
 */
INLINE void skip_page(struct scratch *s)
{
	struct copy *c = &s->copy;

	if (c->addr > c->from)
		close_region(s, c->from, c->addr);
	c->addr = (c->addr | (PAGE - 1)) + 1;
	c->from = c->addr;
}

/*
 * Makes one step of a copy: reads a piece, or finds that it cannot be read.
 * Returns whether there may be more to do.
 */
INLINE bool copy_step(struct scratch *s)
{
	struct copy *c = &s->copy;
	u64 addr = c->addr, left = c->to - addr;

	if (addr >= c->to)
		return false;
	u64 n = c->size - (addr & (c->size - 1));
	if (n > left)
		n = left;
	if (copy_piece(s, s->end + sizeof(struct region_header) + (addr - c->from), addr, n)) {
		c->addr = addr + n;
		c->size = c->next;
		c->holes &= c->later;
		return true;
	}
	if (c->size == CHUNK) {
		c->size = c->next = PAGE;
		return true;
	}
	if (c->next == PAGE) {
		if (!c->holes)
			return false;
		c->holes--;
		c->next = CHUNK;
	}
	skip_page(s);
	return true;
}

/*
 * Where the stack that holds sp ends, as far as is known without reading user
 * memory; 0 when it is not known. A main thread's end is known to the kernel,
 * another's is learned by user space.
 */
INLINE u64 known_stack_end(struct task_struct *task, u32 tgid, u32 tid, u64 sp)
{
	if (tgid == tid) {
		struct mm_struct *mm = kernel_read(task, mm);
		u64 end = kernel_read(mm, start_stack) + ABOVE_START_STACK;
		return end - sp <= MAIN_STACK_REACH ? end : 0;
	}
	u64 *learned = bpf_map_lookup_elem(&stack_ends, &tid);
	return learned && *learned > sp ? *learned : 0;
}

/* Where the copy of a stack begins: below SP, unless that page is not there. */
INLINE u64 stack_start(u64 sp)
{
	u64 from = sp - RED_ZONE;
	u8 byte;

	if ((from ^ sp) & ~(PAGE - 1ULL) && bpf_probe_read_user(&byte, 1, (void *)from))
		return sp;
	return from;
}

/*
 * Adds the stack [from, to). Pages that cannot be read are left out: those
 * that a large frame has not touched yet are not there. Past a stack of
 * unknown end, only those at its very top are. Returns whether the copy came
 * to the end.
 */
INLINE bool add_pages(struct scratch *s, u64 from, u64 to, bool end_known)
{
	struct copy *c = &s->copy;

	c->from = c->addr = from;
	c->to = to;
	c->size = c->next = CHUNK;
	c->holes = MAX_HOLES;
	c->later = end_known ? ~0ULL : 0;
	for (u64 i = 0; i < stack_limit / CHUNK + MORE_STEPS; i++) {
		if (!copy_step(s))
			break;
	}
	if (c->addr > c->from)
		close_region(s, c->from, c->addr);
	return c->addr >= c->to && c->size == c->next;
}

/*
 * Adds the stack from the red zone below sp up to end (0: not known) or the
 * limit as the first regions; as an empty one when nothing can be read.
 */
INLINE void add_stack(struct scratch *s, u64 sp, u64 end)
{
	struct sample_header *h = &s->header;
	u64 to = sp + stack_limit;
	u8 reached = STACK_END_LIMIT;

	if (end) {
		h->live = end - sp;
		if (end <= to) {
			to = end;
			reached = STACK_END_BOTTOM;
		}
	}
	if (!add_pages(s, stack_start(sp), to, end != 0))
		reached = STACK_END_UNREADABLE;
	if (!h->regions)
		close_region(s, sp, sp);
	h->stack_end = reached;
}

#endif
