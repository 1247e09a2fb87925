/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Blocks of memory that a process's allocator hands out, some of which are sampled. When
 * one is asked for that is noted of the thread. When it is handed out the sample is taken,
 * and the block is entered in a table, which it leaves when it is given back; user space is
 * told of that. What is in the table at the end is what is still held. Samples are known by
 * their threads and times.
 */
#ifndef SWBPF_HEAP_H
#define SWBPF_HEAP_H

#include "ring.h"
#include "task.h"

enum heap_limits { DISTANCES = 1024 }; /* a power of 2 */

/* Bytes from one that is sampled to the next, each as likely as the others: set by the loader. */
const volatile u64 block_distances[DISTANCES] = {};

/* What a thread has asked its allocator for, and not got yet. */
struct block_request {
	u64 sp;     /* at the allocator's entry */
	u64 time;   /* CLOCK_MONOTONIC, ns */
	u64 bytes;
	u64 to;     /* address at which the allocator leaves the block's; 0: it returns that */
	u64 drawn;  /* whether the block is to be sampled */
};

/* By the thread's number in the first PID namespace. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1 << 14); /* 1 unless blocks are sampled */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct block_request);
} block_requests SEC(".maps");

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1); /* set by the loader */
	MAP_TYPE(key, struct block_key);
	MAP_TYPE(value, struct block);
} blocks SEC(".maps");

/* No allocator has a block of so many bytes. */
#define TOO_MANY_BYTES (1ull << 48)

/* After so long a request is taken for one that came to nothing, as by an exception. */
enum { REQUEST_TIME = 1000 * 1000 * 1000 };

/*
 * Whether the thread is in an allocator already: allocators that call others
 * count once.
 */
INLINE bool is_within_request(u32 pid, const struct block_request *q)
{
	struct block_request *before = bpf_map_lookup_elem(&block_requests, &pid);

	return before && q->sp < before->sp && q->time - before->time < REQUEST_TIME;
}

/*
 * Whether a block of so many bytes is sampled: where one of them is. How far it is from one
 * byte that is to the next is drawn so that each has the same chance.
 */
INLINE bool draw_block(struct counters *n, u64 bytes)
{
	u64 *left = &n->weights[0], *has_begun = &n->weights[1]; /* of events; there is one */

	if (!*has_begun) {
		*has_begun = 1;
		*left = block_distances[bpf_get_prandom_u32() % DISTANCES];
	}
	if (bytes < *left) {
		*left -= bytes;
		n->skipped_period++;
		return false;
	}
	*left = block_distances[bpf_get_prandom_u32() % DISTANCES];
	return true;
}

/* The allocator is asked for a block. */
INLINE void note_request(struct counters *n, u32 pid, u64 sp, u64 bytes, u64 to)
{
	struct block_request q = { .sp = sp, .time = bpf_ktime_get_ns(), .bytes = bytes, .to = to };

	if (bytes >= TOO_MANY_BYTES || is_within_request(pid, &q))
		return;
	q.drawn = draw_block(n, bytes);
	if (bpf_map_update_elem(&block_requests, &pid, &q, 0) && q.drawn)
		n->lost_no_scratch++;
}

/* The request that is to be sampled to which an allocator returns in the current thread. */
INLINE bool take_request(u32 pid, u64 sp, struct block_request *q)
{
	struct block_request *noted = bpf_map_lookup_elem(&block_requests, &pid);

	if (!noted || sp < noted->sp) /* or it is one within that returns */
		return false;
	*q = *noted;
	bpf_map_delete_elem(&block_requests, &pid);
	return q->drawn;
}

/* The block that an allocator hands out, by what it returns; 0 when it has none. */
INLINE u64 block_of(const struct block_request *q, u64 returned)
{
	u64 address = 0;

	if (!q->to)
		return returned;
	if (!(u32)returned)
		bpf_probe_read_user(&address, sizeof(address), (void *)q->to);
	return address;
}

/* A block is given back. Tells so if it was sampled. */
INLINE void forget_block(struct cpu_ring *r, struct task_struct *task, u64 address)
{
	struct block_key key = { .address = address, .tgid = current_tgid(task) };
	struct block *b = address ? bpf_map_lookup_elem(&blocks, &key) : NULL;

	if (!b)
		return;
	struct block_end end = { .time = bpf_ktime_get_ns(), .size = sizeof(end), .tid = b->tid, .start = b->time };
	bpf_map_delete_elem(&blocks, &key);
	if (!put_record(r, &end, sizeof(end)))
		r->counters.lost_block_ends++;
}

#endif
