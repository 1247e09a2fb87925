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

/*
 * A variable that leads to the record by way of the map that a thread of JavaScript has current: the value
 * of a key in that is an object with the record. Addresses of objects have the lowest bit set.
 */
struct map_context {
	u64 slot;      /* address of the word with the map; 0: there is none */
	u64 key;       /* address of the word with the key */
	u64 hash;
	u64 undefined; /* what there is in place of a map, or of an object */
};

/* The address of the record in the map; 0 when there is none. */
INLINE u64 find_in_map(const struct thread_context *c, u64 variable)
{
	struct map_context m;
	u64 counts[3]; /* in the upper halves: of entries, of those deleted, of buckets */
	u64 entry[2];  /* and the next of the bucket */

	if (bpf_probe_read_user(&m, sizeof(m), (void *)variable) || !m.slot)
		return 0;
	u64 map = user_word(m.slot), key = user_word(m.key);
	if (!map || map == m.undefined || !key)
		return 0;
	u64 at = user_word(map - 1 + c->table) - 1 + c->table_head;
	if (bpf_probe_read_user(counts, sizeof(counts), (void *)at))
		return 0;
	u64 n = (counts[0] >> 32) + (counts[1] >> 32), buckets = counts[2] >> 32;
	if (n > MAX_MAP || buckets > MAX_MAP)
		return 0;
	at += sizeof(counts) + buckets * sizeof(u64);
	for (u64 i = 0; i < MAX_MAP && i < n; i++, at += 3 * sizeof(u64)) {
		if (bpf_probe_read_user(entry, sizeof(entry), (void *)at))
			return 0;
		if (entry[0] != key)
			continue;
		if (entry[1] == m.undefined || bpf_probe_read_user(entry, sizeof(entry), (void *)(entry[1] - 1 + c->record)))
			return 0;
		return entry[0] ? entry[0] : entry[1];
	}
	return 0;
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
	at += c->offset;
	return c->table ? find_in_map(c, at) : user_word(at);
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
