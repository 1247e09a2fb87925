/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Blocks of memory that a process's allocator hands out. One is sampled each
 * point_period bytes: where it is asked for that is noted of the thread, and where it
 * is handed out the sample is taken and the block is entered in a table, which it leaves
 * when it is given back. So what is in the table at the end is what is still held; user
 * space tells which samples these are by their threads and times.
 */
#ifndef SWBPF_HEAP_H
#define SWBPF_HEAP_H

#include "config.h"
#include "task.h"

/* What a thread has asked its allocator for, and not got yet. */
struct block_request {
	u64 sp;     /* at the allocator's entry */
	u64 time;   /* CLOCK_MONOTONIC, ns */
	u64 bytes;
	u64 weight; /* bytes that the sample will stand for */
	u64 to;     /* address at which the allocator leaves the block's; 0: it returns that */
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

/* After so long a request is taken for one that came to nothing, as by an exception. */
enum { REQUEST_TIME = 1000 * 1000 * 1000 };

/*
 * Whether the current thread is in an allocator already: allocators that call others
 * count once.
 */
INLINE bool is_within_request(u32 pid, u64 sp)
{
	struct block_request *q = bpf_map_lookup_elem(&block_requests, &pid);

	return q && sp < q->sp && bpf_ktime_get_ns() - q->time < REQUEST_TIME;
}

/* Whether a block of so many bytes is sampled, and how many that stands for. Samples are
 * not evenly spaced, so as not to fall into step with what the program does. */
INLINE bool draw_block(struct counters *n, u64 bytes, u64 *weight)
{
	u64 *sum = &n->weights[0], *next = &n->weights[1]; /* of events; there is one */

	*sum += bytes;
	if (*sum < *next) {
		n->skipped_period++;
		return false;
	}
	*weight = *sum;
	*sum = 0;
	*next = point_period / 2 + ((bpf_get_prandom_u32() & 0xffffffff) * point_period >> 32);
	return true;
}

/* The allocator is asked for a block. */
INLINE void note_request(struct counters *n, u32 pid, u64 sp, u64 bytes, u64 to)
{
	struct block_request q = { .sp = sp, .bytes = bytes, .to = to };

	if (is_within_request(pid, sp) || !draw_block(n, bytes, &q.weight))
		return;
	q.time = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&block_requests, &pid, &q, 0))
		n->lost_no_scratch++;
}

/* The request to which an allocator returns in the current thread. */
INLINE bool take_request(u32 pid, u64 sp, struct block_request *q)
{
	struct block_request *noted = bpf_map_lookup_elem(&block_requests, &pid);

	if (!noted || sp < noted->sp) /* or it is one within that returns */
		return false;
	*q = *noted;
	bpf_map_delete_elem(&block_requests, &pid);
	return true;
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

/* A block is given back. */
INLINE void forget_block(struct task_struct *task, u64 address)
{
	struct block_key key = { .address = address, .tgid = current_tgid(task) };

	if (address && bpf_map_lookup_elem(&blocks, &key))
		bpf_map_delete_elem(&blocks, &key);
}

#endif
