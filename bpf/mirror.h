/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sending only what has changed. The lower part of a thread's stack is mostly
 * the same from sample to sample. So each CPU keeps a mirror: memory that the
 * reader of its ring keeps, too, byte for byte. A region is laid over a piece
 * of it; blocks that are the same there are not sent, and those that are not
 * go into the record and both mirrors. It does not matter whose bytes they
 * are that a block is compared with, only that both sides have the same: and
 * they do, as a mirror changes with a published record only, and those of a
 * CPU are read in their order.
 *
 * A mirrored region is, in the record, its header and for each GROUP_BLOCKS
 * blocks a word that tells which of them follow, the first in bit 0. Of each
 * of these there is a byte that tells which words follow, and these. A group
 * is padded to 8. Blocks are aligned; the first and the last may hold more
 * than the region.
 */
#ifndef SWBPF_MIRROR_H
#define SWBPF_MIRROR_H

#include "ring.h"

/* Where a group may begin in the mirror, at most. */
#define MIRROR_LIMIT (mirror_bytes + stack_limit)

/*
 * Where in the mirror a region of n bytes is laid: such that the stack of one
 * thread, told by key, is always compared with itself, and those of different
 * threads seldom meet. One beyond stack_limit, which always ends at the same
 * address, may have to end with the mirror.
 */
INLINE u64 mirror_offset(u64 key, u64 from, u64 n)
{
	u64 at = ((key * 0x9e3779b97f4a7c15ULL >> 32) * BLOCK + from) & (mirror_bytes - 1);

	return at + n > MIRROR_LIMIT ? MIRROR_LIMIT - n : at;
}

/* The place at an offset in the mirror. */
INLINE void *in_mirror(u8 *mirror, u64 at)
{
	hide(at); /* older kernels forget the bound of what is put on the stack before */
	return at > MIRROR_LIMIT ? NULL : mirror + at;
}

/* Whether two blocks differ. */
INLINE bool differ(const u64 *a, const u64 *b)
{
	u64 d = 0;

	for (int i = 0; i < BLOCK / 8; i++)
		d |= a[i] ^ b[i];
	return d != 0;
}

/*
 * Puts the words of a block that differ from the known ones behind a mask of
 * them, and makes them known. Returns the bytes that this takes. What is sent
 * lies before the fresh words that are still to be read.
 */
INLINE u64 send_block(u8 *sent, const u64 *fresh, u64 *known)
{
	u64 words = 0, n = 1;

	for (int k = 0; k < BLOCK / 8; k++) { /* without a branch: these would be mispredicted */
		u64 word = fresh[k], d = word ^ known[k], minus = -d;
		hide(minus); /* or else the compiler sees what this is for, and branches */
		u64 differs = (d | minus) >> 63;
		known[k] = word;
		*(u64 *)(sent + n) = word;
		n += differs * 8;
		words |= differs << k;
		hide(words); /* now, not all at the end */
	}
	*sent = words;
	return n;
}

/*
 * Compares a group of blocks with the mirror and moves those that are sent to
 * their place. Returns whether there is another group.
 */
GLOBAL int compare_group(u32 cpu)
{
	if (!send_changes)
		return 0;
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	u8 *mirror = bpf_map_lookup_elem(&mirrors, &cpu);
	if (!r || !mirror)
		return 0;
	struct comparison *c = &r->comparison;
	u64 left = c->blocks, mask = 0;
	u64 *masked = in_record(r, c->out), *fresh = in_record(r, c->in), *known = in_mirror(mirror, c->mirror);
	if (!masked || !fresh || !known)
		return 0;

	c->out += sizeof(*masked);
	/* What changes by the outcome of a comparison is kept in memory, for the
	 * verifier: see cpu_ring. */
#pragma clang loop unroll(disable)
	for (u64 i = 0; i < GROUP_BLOCKS; i++) {
		if (i >= left)
			break;
		if (differ(fresh, known)) {
			u8 *sent = in_record(r, c->out);
			if (!sent)
				return 0;
			c->out += send_block(sent, fresh, known);
			mask |= 1ULL << i;
		}
		fresh += BLOCK / 8;
		known += BLOCK / 8;
	}
	*masked = mask;
	c->out = (c->out + 7) & ~7ULL;
	c->in += GROUP_BLOCKS * BLOCK;
	c->mirror += GROUP_BLOCKS * BLOCK;
	if (left <= GROUP_BLOCKS)
		return 0;
	c->blocks = left - GROUP_BLOCKS;
	return 1;
}

/* Compares all groups of a region. */
GLOBAL int compare_region(u32 cpu)
{
	for (u64 i = 0; i < whole_limit / (GROUP_BLOCKS * BLOCK) + 2; i++) {
		if (!compare_group(cpu))
			break;
	}
	return 0;
}

/* Leaves of a region of the blocks [from, to), which were copied mask_room
 * behind its header, what has changed. */
INLINE void keep_changes(struct cpu_ring *r, struct region_header *region, u32 cpu, u64 key, u64 from, u64 to)
{
	struct comparison *c = &r->comparison;

	c->out = r->end + sizeof(*region);
	c->in = c->out + mask_room;
	c->mirror = mirror_offset(key, from, to - from);
	c->blocks = (to - from) / BLOCK;
	region->mirror = c->mirror;
	r->mirrored = 1;
	compare_region(cpu);
	r->end = c->out;
}

#endif
