/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Which pages of user memory are there. A read finds out by a fault, which takes longer
 * than all else; so once a chunk could not be read, the page tables are asked. They are read
 * where the kernel keeps all memory, which user space finds out (loader's pagetables.go).
 * Where they change meanwhile, a read fails as before, or bytes are missing.
 */
#ifndef SWBPF_PAGES_H
#define SWBPF_PAGES_H

#include "task.h"

#if defined(__TARGET_ARCH_x86)

enum {
	ENTRY_PRESENT = 1 << 0,
	ENTRY_LARGE = 1 << 7, /* a page where otherwise a table of the next level would be */
	TABLE_BITS = 9,	      /* of an address, by which a table of one level is indexed */
	PAGE_BITS = 12,
	TABLE_LEVELS = 5,
};

/* What the tables say of a window of pages, which is at addr; the tables begin at top. */
INLINE u64 pages_of_window(struct cpu_ring *r, u64 top, u64 addr)
{
	const struct page_tables *t = &r->page_tables;
	struct pages *p = &r->pages;
	u64 table = top, shift = t->shift, there = 0;

	for (int level = 0; level < TABLE_LEVELS && shift > PAGE_BITS; level++) {
		u64 entry = 0;
		bpf_probe_read_kernel(&entry, sizeof(entry),
				      (void *)(table + (addr >> shift & ((1 << TABLE_BITS) - 1)) * 8));
		if (!(entry & ENTRY_PRESENT))
			return 0;
		if (entry & ENTRY_LARGE)
			return ~0ULL;
		table = t->memory + (entry & t->address_bits);
		shift -= TABLE_BITS;
	}
	if (bpf_probe_read_kernel(p->entries, sizeof(p->entries),
				  (void *)(table + (addr >> PAGE_BITS & ((1 << TABLE_BITS) - 1)) * 8)))
		return 0;
	for (int i = 0; i < WINDOW_PAGES; i++)
		there |= (p->entries[i] & ENTRY_PRESENT) << i;
	return there;
}

/*
 * Finds how many bytes there are from the copy's address on, as far as one read goes; 0
 * when its page is not there: then also how many pages are not.
 */
GLOBAL int look_at_pages(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	struct pages *p = &r->pages;
	u64 addr = r->copy.addr, window = addr & ~(WINDOW_PAGES * PAGE - 1ULL), n = 1;
	if (window != p->window) {
		struct mm_struct *mm = kernel_read(current_task(), mm);
		p->there = pages_of_window(r, (u64)kernel_read(mm, pgd), window);
		p->window = window;
	}
	u64 bits = p->there >> (addr - window) / PAGE, first = bits & 1;
	u64 left = WINDOW_PAGES - (addr - window) / PAGE;
	for (u64 i = 1; i < WINDOW_PAGES && n < left && (bits >> i & 1) == first; i++)
		n++;
	p->absent = n;
	n = n * PAGE - (addr & (PAGE - 1));
	p->bytes = !first ? 0 : n > CHUNK ? CHUNK : n;
	return 0;
}

#endif

/* Whether the pages of a copy can be known without reading them. */
INLINE bool knows_pages(const struct cpu_ring *r)
{
#if defined(__TARGET_ARCH_x86)
	return r->page_tables.memory && !r->pages.doubtful;
#else
	return false;
#endif
}

/* How many bytes a copy is to read at its address, where a chunk could not be read; 0 when
 * it is known that its page is not there. */
INLINE u64 bytes_there(struct cpu_ring *r, u32 cpu)
{
#if defined(__TARGET_ARCH_x86)
	if (knows_pages(r)) {
		look_at_pages(cpu);
		return r->pages.bytes;
	}
#endif
	r->pages.absent = 1;
	return PAGE - (r->copy.addr & (PAGE - 1));
}

#endif
