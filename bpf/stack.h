/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Copies of user memory into the record. */
#ifndef SWBPF_STACK_H
#define SWBPF_STACK_H

#include "mirror.h"
#include "pages.h"
#include "spawn.h"

/*
 * The kernel puts argc at start_stack and sets SP to it; the frames of _start
 * and below lie under it. Run as "ld.so program", the loader drops its own
 * arguments by moving SP up a word for each, and _start, which aligns SP and
 * pushes two words, calls from there: hence as much more as for five arguments,
 * and for 65 where a walk has lacked it.
 */
enum { ABOVE_START_STACK = 16, FAR_ABOVE_START_STACK = 512 };

/*
 * Copies n bytes at addr, at most CHUNK, to the record at an offset. Says
 * whether that worked.
 */
INLINE bool copy_piece(struct cpu_ring *r, u64 offset, u64 addr, u64 n)
{
	void *to = in_record(r, offset);

	hide(n);
	return to && n <= CHUNK && !bpf_probe_read_user(to, n, (void *)addr);
}

/* Puts the header of a region whose bytes [from, to) are already behind it. */
INLINE void close_region(struct cpu_ring *r, u64 from, u64 to)
{
	struct region_header *region = in_record(r, r->end);

	if (!region)
		return;
	region->addr = from;
	region->len = to - from;
	region->mirror = NO_MIRROR;
	r->end += sizeof(*region) + ((to - from + 7) & ~7ULL);
	r->regions++;
}

/* Reads a word of user memory. Returns 0 when that cannot be. */
INLINE u64 user_word(u64 addr)
{
	u64 word = 0;
	bpf_probe_read_user(&word, sizeof(word), (void *)addr);
	return word;
}

/*
 * Adds n bytes at addr, at most CHUNK, as a region if they can be read. They
 * should not be many, as no limit but that of the record is heeded.
 */
GLOBAL int add_bytes(u32 cpu, u64 addr, u64 n)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (r && copy_piece(r, r->end + sizeof(struct region_header), addr, n))
		close_region(r, addr, addr + n);
	return 0;
}

/* Ends a region of a stack, if there is anything in it. */
INLINE void close_stack_region(struct cpu_ring *r, u32 cpu)
{
	struct copy *c = &r->copy;

	if (c->addr <= c->from)
		return;
	r->copied += c->addr - c->from;
	if (!send_changes) {
		close_region(r, c->from, c->addr);
		return;
	}
	struct region_header *region = in_record(r, r->end);
	if (!region)
		return;
	u64 from = c->from < c->first ? c->first : c->from;
	region->addr = from;
	region->len = (c->addr > c->last ? c->last : c->addr) - from;
	keep_changes(r, region, cpu, c->key, c->from, c->addr);
	r->regions++;
}

/*
 * How much may be copied of a stack that has so many bytes. The limits hold for all
 * of a sample's stacks together. It is beyond the first one only if the stack is
 * then whole, there is room, and it is within the first half of what may wait, lest
 * others find none.
 */
INLINE u64 limit_of_stack(const struct cpu_ring *r, u64 live)
{
	u64 size = record_limit - stack_limit + CHUNK + whole_limit;

	if (live <= whole_limit && r->copied + live <= whole_limit && r->record + size <= r->room &&
	    2 * (r->waiting + size) <= ring_bytes + record_limit + CHUNK)
		return whole_limit - r->copied;
	return stack_limit > r->copied ? stack_limit - r->copied : 0;
}

/*
 * Begins a region at an address of the stack: all before it is closed. What is
 * left of the stack is taken to have as many gaps as what is copied of it.
 */
INLINE void begin_stack_region(struct cpu_ring *r, u64 from)
{
	struct copy *c = &r->copy;
	u64 counts = from > c->sp ? from : c->sp, left = c->end - counts;
	u64 copied = r->copied - c->before;
	u64 limit = limit_of_stack(r, copied ? left * copied / (from - c->first) : left);

	c->last = counts + (left < limit ? left : limit);
	c->from = c->addr = from;
	c->to = c->last;
	if (send_changes) { /* whole blocks, which are in the same pages */
		c->from = c->addr = from & ~(BLOCK - 1ULL);
		c->to = (c->last + BLOCK - 1) & ~(BLOCK - 1ULL);
	}
	c->room = room_for_masks(c->to - c->from);
}

/*
 * Leaves out n pages from the copy's address on: a region ends before them, another
 * may begin behind them.
 */
INLINE void skip_pages(struct cpu_ring *r, u32 cpu, u64 n)
{
	struct copy *c = &r->copy;
	u64 next = (c->addr & ~(PAGE - 1ULL)) + n * PAGE;

	close_stack_region(r, cpu);
	begin_stack_region(r, next < c->end ? next : c->end);
}

/*
 * Makes one step of a copy: reads a piece, or finds that it cannot be read.
 * Returns whether there may be more to do.
 */
INLINE bool copy_step(struct cpu_ring *r, u32 cpu)
{
	struct copy *c = &r->copy;
	u64 addr = c->addr, left = c->to - addr;

	if (addr >= c->to || !c->steps)
		return false;
	c->steps--;
	u64 n = c->size == CHUNK ? CHUNK - (addr & (CHUNK - 1)) : bytes_there(r, cpu);
	if (n > left)
		n = left;
	if (n && copy_piece(r, r->end + sizeof(struct region_header) + c->room + (addr - c->from), addr, n)) {
		c->addr = addr + n;
		c->next = c->size == PAGE && knows_pages(r) ? PAGE : c->next;
		c->size = c->next;
		c->gap = c->gaps;
		return true;
	}
	if (c->size == CHUNK) {
		c->size = c->next = PAGE;
		return true;
	}
	if (n && knows_pages(r)) {
		r->pages.doubtful = true;
		return true;
	}
	if (!c->gap || r->regions >= MAX_GAPS)
		return false;
	u64 absent = r->pages.absent < c->gap ? r->pages.absent : c->gap;
	c->gap -= absent;
	c->next = CHUNK;
	skip_pages(r, cpu, absent);
	return true;
}

/* Makes steps of a copy, and closes its last region when there is no more to do.
 * Returns whether there is. */
GLOBAL int make_steps(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	for (int i = 0; i < STEPS; i++) {
		if (copy_step(r, cpu))
			continue;
		close_stack_region(r, cpu);
		return 0;
	}
	return 1;
}

/* Makes a copy that takes more than one read. Returns whether it came to the end, or
 * the limit. */
GLOBAL int copy_in_steps(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	struct copy *c = &r->copy;
	/* While a program is executed the stack is there as a whole or not at all. */
	bool in_exec = is_in_exec(current_task());
	c->gap = in_exec ? 0 : FIRST_GAP;
	c->before = r->copied;
	c->steps = whole_limit / CHUNK + MORE_STEPS;
	r->pages.window = ~0ULL;
	r->pages.doubtful = false;
	c->size = c->next = in_exec || knows_pages(r) ? PAGE : CHUNK;
	begin_stack_region(r, c->first);
	for (u64 i = 0; i <= (whole_limit / CHUNK + MORE_STEPS) / STEPS && make_steps(cpu); i++)
		;
	return c->addr >= c->to && (c->size == c->next || c->last < c->end);
}

/* Makes a copy in one read. Returns whether it could. */
GLOBAL int copy_at_once(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	struct copy *c = &r->copy;
	c->from = c->first;
	c->last = c->addr = c->end;
	if (send_changes) { /* whole blocks, which are in the same pages */
		c->from &= ~(BLOCK - 1ULL);
		c->addr = (c->end + BLOCK - 1) & ~(BLOCK - 1ULL);
	}
	c->room = room_for_masks(c->addr - c->from);
	if (r->copied + (c->end - c->sp) > c->most || c->from >= c->addr ||
	    !copy_piece(r, r->end + sizeof(struct region_header) + c->room, c->from, c->addr - c->from))
		return 0;
	close_stack_region(r, cpu);
	return 1;
}

/*
 * Adds the stack [from, end) of the thread told by key as the record's first region,
 * by one read. Returns whether it could.
 */
INLINE bool add_whole_stack(struct cpu_ring *r, u32 cpu, u64 key, u64 from, u64 end)
{
	struct region_header *region = in_record(r, r->end);
	u64 first = from, last = end, room = 0;

	if (send_changes) { /* whole blocks, which are in the same pages */
		first &= ~(BLOCK - 1ULL);
		last = (last + BLOCK - 1) & ~(BLOCK - 1ULL);
		r->copy.room = room = room_for_masks(last - first);
	}
	if (!region || !copy_piece(r, r->end + sizeof(*region) + room, first, last - first))
		return false;
	r->copied = last - first;
	if (!send_changes) {
		close_region(r, from, end);
		return true;
	}
	region->addr = from;
	region->len = end - from;
	keep_changes(r, region, cpu, key, first, last);
	r->regions = 1;
	return true;
}

/* Where the stack of a thread ends that is made as others of its process, and holds sp;
 * 0 when that is not known. */
INLINE u64 usual_thread_end(struct task_struct *task, u32 tgid, u64 sp, u64 flags)
{
	u64 *below = flags & PROCESS_HAS_ENDS ? bpf_map_lookup_elem(&thread_ends, &tgid) : NULL;
	u64 end = below ? thread_pointer_of(task) - *below : 0;

	return end > sp && end - sp <= MAIN_STACK_REACH ? end : 0;
}

/* Where the main thread's stack ends, which the kernel knows to begin at start_stack; 0
 * when sp is on some other one. */
INLINE u64 main_stack_end(u64 start_stack, u64 sp, u64 flags)
{
	u64 end = start_stack + (flags & PROCESS_STARTS_ABOVE ? FAR_ABOVE_START_STACK : ABOVE_START_STACK);

	return start_stack && end - sp <= MAIN_STACK_REACH ? end : 0;
}

/* Where the stack of another thread ends, as user space has learned it. */
INLINE u64 thread_stack_end(struct task_struct *task, u32 tgid, u32 tid, u64 sp, u64 flags)
{
	u64 usual = usual_thread_end(task, tgid, sp, flags);

	if (usual && usual - sp <= stack_limit)
		return usual;
	u64 *learned = bpf_map_lookup_elem(&stack_ends, &tid);
	return learned && *learned > sp ? *learned : usual;
}

/* Where the stack that holds sp ends, as far as is known without reading user
 * memory; 0 when it is not known. */
INLINE u64 known_stack_end(struct task_struct *task, u32 tgid, u32 tid, u64 sp, u64 flags)
{
	if (tgid != tid)
		return thread_stack_end(task, tgid, tid, sp, flags);
	struct mm_struct *mm = kernel_read(task, mm);
	return main_stack_end(kernel_read(mm, start_stack), sp, flags);
}

/* The same of the current task. */
GLOBAL u64 current_stack_end(u32 tgid, u32 tid, u64 sp)
{
	return known_stack_end(current_task(), tgid, tid, sp, process_flags(tgid));
}

/*
 * Where the copy of a stack begins: below SP, unless that page is not there or
 * nothing below SP is of use. For the system call a function has its registers
 * saved above; and Go code saves none below.
 */
INLINE u64 stack_start(u64 sp, bool with_below)
{
	u64 from = sp - BELOW_SP;
	u8 byte;

	if (!with_below)
		return sp;
	if ((from ^ sp) & ~(PAGE - 1ULL) && bpf_probe_read_user(&byte, 1, (void *)from))
		return sp;
	return from;
}

/* Sets out for a copy, see add_pages. */
INLINE void set_out(struct cpu_ring *r, u64 key, u64 from, u64 sp, u64 end, u64 gaps)
{
	struct copy *c = &r->copy;

	c->first = from;
	c->sp = sp;
	c->end = end;
	c->gaps = gaps;
	c->most = stack_limit;
	if (send_changes)
		c->key = key;
}

/*
 * Adds the stack [sp, end) of the thread told by key, and what is below it from an
 * address on, as far as the limit allows: nearly always in one read. Pages that
 * cannot be read are left out: those that a large frame has not touched yet are
 * not there. So many of them may follow each other once something was read.
 * Returns whether the copy came to the end, or the limit.
 */
INLINE bool add_pages(struct cpu_ring *r, u32 cpu, u64 key, u64 from, u64 sp, u64 end, u64 gaps)
{
	set_out(r, key, from, sp, end, gaps);
	return copy_at_once(cpu) || copy_in_steps(cpu);
}

/*
 * Where a stack of unknown end does end at the latest, likely: the C libraries
 * keep what a thread pointer points to at the top of the thread's stack. One that a
 * goroutine has changed to by itself is a piece of the heap, and leaves as much room for
 * the goroutine's own.
 */
INLINE u64 likely_stack_end(const struct cpu_ring *r, const struct sample_header *h, u64 sp)
{
	if (r->go.g)
		return sp + stack_limit / 2;
	return h->tid != h->tgid ? h->thread_pointer : 0;
}

/*
 * Adds the stack from sp, or somewhat below it, up to end (0: not known) or
 * the limit. Returns how that ended.
 */
INLINE enum stack_end_kind copy_stack(struct cpu_ring *r, const struct sample_header *h, u64 sp, u64 end,
				      bool with_below)
{
	u64 live = (end ? end : likely_stack_end(r, h, sp)) - sp, limit = limit_of_stack(r, live), gaps = ~0ULL;
	u64 key = end ? end + h->tgid : h->tid;

	if (!end && live > limit) {
		gaps = live <= MAIN_STACK_REACH ? LIKELY_GAP : 0;
		if (!gaps)
			live = limit;
	}
	if (!add_pages(r, h->cpu, key, stack_start(sp, with_below), sp, sp + live, gaps))
		return STACK_END_UNREADABLE;
	return end && r->copy.addr >= r->copy.end ? STACK_END_BOTTOM : STACK_END_LIMIT;
}

/*
 * Where one of the parts begins that are wanted of a stack, 0 when the copy has it. As
 * long as nobody has asked for any it is the outermost frames: a single large one may be
 * before these. In Go frames are small.
 */
GLOBAL u64 wanted_part(u32 cpu, u64 i)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	hide(i);
	if (!h || i >= STACK_PARTS)
		return 0;
	struct stack_parts *parts = bpf_map_lookup_elem(&stack_parts, &h->tid);
	u64 from = 0;
	if (parts)
		from = parts->from[i];
	else if (i < OUTER_PARTS && !r->go.g)
		from = r->copy.end + PAGE - 1 - (OUTER_PARTS - i) * STACK_PART;
	from &= ~(PAGE - 1ULL);
	return from >= r->copy.addr && from < r->copy.end ? from : 0;
}

/*
 * Adds n bytes of a stack which was cut before, at most STACK_PART, as far as there
 * would be room for a stack that is whole. Returns whether it could.
 */
GLOBAL int add_part(u32 cpu, u64 from, u64 n)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct region_header *region = r ? in_record(r, r->end) : NULL;

	if (!region || limit_of_stack(r, STACK_PART) < STACK_PART)
		return 0;
	if (n > r->copy.end - from)
		n = r->copy.end - from;
	region->len = n;
	if (send_changes) /* whole blocks, which are in the same pages */
		n = (n + BLOCK - 1) & ~(BLOCK - 1ULL);
	r->copy.room = room_for_masks(STACK_PART);
	if (!copy_piece(r, r->end + sizeof(*region) + r->copy.room, from, n))
		return 0;
	r->copied += n;
	if (!send_changes) {
		close_region(r, from, from + n);
		return 1;
	}
	region->addr = from;
	keep_changes(r, region, cpu, r->copy.key, from, from + n);
	r->regions++;
	return 1;
}

/* Adds what is wanted of a stack whose copy came less far. Of a part that cannot be read
 * as a whole it is the first page, or else as many of the last ones as can be. Returns how
 * many parts there are. */
GLOBAL int add_parts(u32 cpu)
{
	int n = 0;

	for (u32 i = 0; i < STACK_PARTS; i++) {
		u64 from = wanted_part(cpu, i);
		if (from && (add_part(cpu, from, STACK_PART) || add_part(cpu, from, PAGE) ||
			     add_part(cpu, from + PAGE, STACK_PART - PAGE) ||
			     add_part(cpu, from + 2 * PAGE, STACK_PART - 2 * PAGE) ||
			     add_part(cpu, from + 3 * PAGE, STACK_PART - 3 * PAGE)))
			n++;
	}
	return n;
}

/* Adds the stack that the thread is on as the first regions; as an empty one
 * when nothing can be read. */
INLINE void add_stack(struct cpu_ring *r, struct sample_header *h, u64 sp, u64 end, bool with_below)
{
	if (end)
		h->live = end - sp;
	h->stack_end = copy_stack(r, h, sp, end, with_below);
	if (!r->regions)
		close_region(r, sp, sp);
	else if (r->copy.addr < r->copy.end)
		h->parts = add_parts(h->cpu);
}

/* Adds the stack that a signal has interrupted, after the one on which it is
 * handled. */
INLINE void add_interrupted_stack(struct cpu_ring *r, struct sample_header *h, u64 sp)
{
	h->stack_end = copy_stack(r, h, sp, current_stack_end(h->tgid, h->tid, sp), true);
	if (r->copy.addr < r->copy.end)
		h->parts = add_parts(h->cpu);
}

#endif
