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
 * A mirrored region is, in the record, its header and for each GROUP bytes a
 * word that tells which of their PIECEs have changed, the first in bit 0; and
 * for each of these a word that tells which of its words have, and these. It
 * is aligned to BLOCK; the first and the last block may hold more than the
 * region.
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

/* Whether two blocks are the same. */
INLINE bool is_same(const u64 *a, const u64 *b)
{
	u64 d = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i < BLOCK / 8; i++) {
		d |= a[i] ^ b[i];
		hide(d); /* or else there is a branch for each */
	}
	return !d;
}

/*
 * Puts the words of a block that differ from the known ones where *sent points
 * to, and makes them known. Returns a mask of them. What is sent lies before
 * the fresh words that are still to be read.
 */
INLINE u64 send_block(u64 **sent, const u64 *fresh, u64 *known)
{
	u64 words = 0;

#pragma clang loop unroll(full)
	for (int k = 0; k < BLOCK / 8; k++) { /* without a branch: these would be mispredicted */
		u64 word = fresh[k], d = word ^ known[k], minus = -d;
		hide(minus); /* or else the compiler sees what this is for, and branches */
		u64 differs = (d | minus) >> 63;
		known[k] = word;
		**sent = word;
		words |= differs << k;
		hide(words); /* now, not all at the end */
		differs *= 8;
		hide(differs);
		*sent = (void *)*sent + differs;
	}
	return words;
}

/*
 * Compares a piece with the mirror, up to the end of the region. What has changed
 * is sent and becomes known. Returns 1 if anything has.
 */
GLOBAL int compare_piece(u32 cpu)
{
	if (!send_changes)
		return 0;
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	u8 *mirror = bpf_map_lookup_elem(&mirrors, &cpu);
	if (!r || !mirror)
		return 0;
	struct comparison *c = &r->comparison;
	u64 mask = 0, words = 0;
	u64 *masked = in_record(r, c->out), *fresh = in_record(r, c->in), *known = in_mirror(mirror, c->mirror);
	if (!masked || !fresh || !known)
		return 0;
	u64 *sent = masked + 1;

#pragma clang loop unroll(disable)
	for (u64 i = 0; i < PIECE / BLOCK; i++) {
		if (i >= c->blocks)
			break;
		/* blocks that have changed mostly follow each other */
		words = words || !is_same(fresh, known) ? send_block(&sent, fresh, known) : 0;
		mask |= words << (i * BLOCK / 8);
		fresh += BLOCK / 8;
		known += BLOCK / 8;
	}
	c->in += PIECE;
	c->mirror += PIECE;
	c->blocks = c->blocks > PIECE / BLOCK ? c->blocks - PIECE / BLOCK : 0;
	if (!mask)
		return 0;
	*masked = mask;
	c->out += (void *)sent - (void *)masked;
	return 1;
}

/* Compares the pieces of a group, up to the end of the region. Returns whether there
 * are more. */
GLOBAL int compare_group(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);

	if (!r)
		return 0;
	struct comparison *c = &r->comparison;
	u64 *masked = in_record(r, c->out), mask = 0;
	if (!masked)
		return 0;
	c->out += sizeof(*masked);
	for (u64 k = 0; k < GROUP / PIECE && c->blocks; k++)
		mask |= (u64)compare_piece(cpu) << k;
	*masked = mask;
	return c->blocks != 0;
}

/* What the masks of a region of so many bytes take, at most. */
INLINE u64 room_for_masks(u64 n)
{
	return send_changes ? (n / PIECE + n / GROUP + 2) * sizeof(u64) : 0;
}

/* Leaves of a region of the blocks [from, to), which were copied to an offset
 * behind room for the masks, what has changed. */
INLINE void keep_changes(struct cpu_ring *r, struct region_header *region, u32 cpu, u64 key, u64 from, u64 to)
{
	struct comparison *c = &r->comparison;

	c->out = r->end + sizeof(*region);
	c->in = c->out + r->copy.room;
	c->mirror = mirror_offset(key, from, to - from);
	c->blocks = (to - from) / BLOCK;
	region->mirror = c->mirror;
	r->mirrored = 1;
	for (u64 i = 0; i < whole_limit / GROUP + 2 && compare_group(cpu); i++)
		;
	r->end = c->out;
}

#endif
