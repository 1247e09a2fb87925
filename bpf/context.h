/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a thread works on, as its program tells profilers (OpenTelemetry's thread context):
 * a thread-local variable has the address of a record, which the thread itself writes.
 */
#ifndef SWBPF_CONTEXT_H
#define SWBPF_CONTEXT_H

#include "stack.h"

/* How the record begins; so many bytes follow. */
struct context_head {
	u8 ids[24]; /* of the trace and the span */
	u8 valid;   /* 1: it is */
	u8 flags;
	u16 bytes;
};

/* Reads a word of user memory. Returns 0 when that cannot be. */
INLINE u64 user_word(u64 addr)
{
	u64 word = 0;
	bpf_probe_read_user(&word, sizeof(word), (void *)addr);
	return word;
}

/* The address of the thread's record; 0 when it has none. */
INLINE u64 find_context(const struct thread_context *c, u64 thread_pointer)
{
	u64 at = thread_pointer + c->from_tp;

	if (c->entry) {
		u64 vector = user_word(at);
		if (user_word(vector + c->count) < c->module)
			return 0;
		at = user_word(vector + c->entry);
	}
	return user_word(at + c->offset);
}

/* Adds what the thread works on, if it tells. */
GLOBAL int add_context(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	const struct thread_context *c = h ? bpf_map_lookup_elem(&thread_contexts, &h->tgid) : NULL;
	struct context_head head;

	if (!c || !h->thread_pointer || r->regions >= MAX_REGIONS)
		return 0;
	u64 at = find_context(c, h->thread_pointer);
	if (!at || bpf_probe_read_user(&head, sizeof(head), (void *)at) || head.valid != 1)
		return 0;
	u64 bytes = sizeof(head) + head.bytes;
	h->contexts = r->regions;
	add_bytes(cpu, at, bytes < MAX_CONTEXT ? bytes : MAX_CONTEXT);
	h->contexts = r->regions - h->contexts;
	return 0;
}

#endif
