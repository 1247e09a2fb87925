/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The ring of a CPU: how a record is begun, filled and published.
 *
 * A position is a lap and an offset in the data behind struct cpu_ring. Records
 * are contiguous and begin below ring_bytes, the last of a lap may end above;
 * the next lap begins at offset 0. It begins early when user space has read all
 * there is, so that no more memory is used, and cached, than records wait in.
 */
#ifndef SWBPF_RING_H
#define SWBPF_RING_H

#include "config.h"

/* What ends user space's rest: struct program_file of a new program (exec.h), or
 * enum news. */
struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 4096); /* bytes, a page: set by the loader */
} news SEC(".maps");

/* The place in the record under way at an offset, with a CHUNK of room. */
INLINE void *in_record(struct cpu_ring *r, u64 at)
{
	at += r->record;
	hide(at);
	if (at > ring_bytes + record_limit)
		return NULL;
	hide(at); /* or else it may be added to the address before */
	return (u8 *)(r + 1) + at;
}

/*
 * Begins a record if there is room for one with stacks of stack_limit, and finds
 * out how much longer they may be. Returns its header.
 * What user space writes into the ring is not trusted: whatever it is, only
 * the contents of records suffer.
 */
INLINE struct sample_header *begin_record(struct cpu_ring *r)
{
	u64 head = r->head, tail = *(volatile u64 *)&r->tail;
	u64 at = (u32)head, lap = head >> 32, read = (u32)tail, read_lap = tail >> 32;
	u64 room = record_limit + CHUNK;

	r->room = ring_bytes + room;
	if (read_lap != lap && read == r->wrap) { /* at the end of the lap before */
		read = 0;
		read_lap = lap;
	}
	if (read_lap != lap) {
		r->waiting = at + r->wrap - read;
		if (at + room > read)
			return NULL;
		r->room = read;
	} else {
		r->waiting = at - read;
		if ((at && read == at) || at >= ring_bytes) {
			if (read != at) {
				if (read < room)
					return NULL;
				r->room = read;
			}
			r->wrap = at;
			at = 0;
			lap++;
		}
	}
	r->lap = lap;
	r->record = at;
	r->copied = r->regions = r->mirrored = 0;
	return in_record(r, 0);
}

/* About how many bytes of records wait to be read. */
INLINE u64 filled(const struct cpu_ring *r)
{
	u64 head = r->head, tail = *(volatile u64 *)&r->tail;
	u64 at = (u32)head, read = (u32)tail;

	if (head >> 32 == tail >> 32)
		return at > read ? at - read : 0;
	return at + (r->wrap > read ? r->wrap - read : 0);
}

/*
 * How many bytes there are in a ring that fills up: nearly half of what there is
 * room for, so that two of the longest stacks still have room in that half (stack.h),
 * or else a quarter.
 */
INLINE u64 told_from(void)
{
	u64 half = ring_bytes / 2;

	return half / 2 > 2 * whole_limit ? half - 2 * whole_limit : half / 2;
}

INLINE void tell_news(enum news what)
{
	u32 is = what;

	bpf_ringbuf_output(&news, &is, sizeof(is), BPF_RB_FORCE_WAKEUP);
}

/*
 * Gives the record, of so many bytes, to user space. That looks often enough for
 * what is usual, and reads all there is; so it is only told of a ring that fills up
 * where there is suddenly much more.
 */
INLINE void publish(struct cpu_ring *r, u64 size)
{
	compiler_barrier(); /* the record before the head */
	*(volatile u64 *)&r->head = r->lap << 32 | (r->record + size);
	size += r->waiting; /* of all that waits */
	if (r->waiting < told_from() && size >= told_from())
		tell_news(RING_FILLS);
}

/* Puts a record into the ring. Returns whether there was room. */
INLINE bool put_record(struct cpu_ring *r, const void *record, u64 size)
{
	if (r->busy)
		return false;
	r->busy = 1;
	compiler_barrier();
	void *to = begin_record(r);
	if (to) {
		__builtin_memcpy(to, record, size);
		publish(r, size);
		r->counters.ring_bytes += size;
	}
	compiler_barrier();
	r->busy = 0;
	return to != NULL;
}

#endif
