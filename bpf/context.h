/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What a thread works on, as its program tells profilers (OpenTelemetry's thread context):
 * a thread-local variable has the address of a record, which the thread itself writes, or leads there.
 */
#ifndef SWBPF_CONTEXT_H
#define SWBPF_CONTEXT_H

#include "stack.h"

/*
 * The address of the record that a variable leads to by way of a map; 0 when there is none.
 * Addresses of objects have the lowest bit set.
 */
INLINE u64 find_in_map(struct context *s, const struct thread_context *c, u64 variable)
{
	if (bpf_probe_read_user(&s->map, sizeof(s->map), (void *)variable) || !s->map.slot)
		return 0;
	u64 map = user_word(s->map.slot), key = user_word(s->map.key);
	if (!map || map == s->map.undefined || !key)
		return 0;
	u64 at = user_word(map - 1 + c->table) - 1 + c->table_head;
	if (bpf_probe_read_user(s->counts, sizeof(s->counts), (void *)at))
		return 0;
	u64 n = (s->counts[0] >> 32) + (s->counts[1] >> 32), buckets = s->counts[2] >> 32;
	if (n > MAX_MAP || buckets > MAX_MAP)
		return 0;
	hide(n); /* else the bound below is left out, and the verifier sees none */
	at += sizeof(s->counts) + buckets * sizeof(u64);
	for (u64 i = 0; i < MAX_MAP && i < n; i++, at += 3 * sizeof(u64)) {
		if (bpf_probe_read_user(s->entry, sizeof(s->entry), (void *)at))
			return 0;
		if (s->entry[0] != key)
			continue;
		if (s->entry[1] == s->map.undefined ||
		    bpf_probe_read_user(s->entry, sizeof(s->entry), (void *)(s->entry[1] - 1 + c->record)))
			return 0;
		return s->entry[0] ? s->entry[0] : s->entry[1];
	}
	return 0;
}

/* Finds the record of what the thread works on. Returns how long it is; 0 when there is none. */
GLOBAL u32 find_context(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	const struct thread_context *c = h ? bpf_map_lookup_elem(&thread_contexts, &h->tgid) : NULL;

	if (!c || !h->thread_pointer)
		return 0;
	struct context *s = &r->context;
	u64 at = h->thread_pointer + c->from_tp;
	if (c->entry) {
		u64 vector = user_word(at);
		if (user_word(vector + c->count) < c->module)
			return 0;
		at = user_word(vector + c->entry);
	}
	at += c->offset;
	s->at = c->table ? find_in_map(s, c, at) : user_word(at);
	if (!s->at || bpf_probe_read_user(&s->head, sizeof(s->head), (void *)s->at) || s->head.valid != 1)
		return 0;
	u32 bytes = sizeof(s->head) + s->head.bytes;
	return bytes < MAX_CONTEXT ? bytes : MAX_CONTEXT;
}

/* Adds what the thread works on, if it tells. */
INLINE void add_context(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	u32 bytes = h && r->regions < MAX_REGIONS ? find_context(cpu) : 0;

	if (!bytes)
		return;
	h->contexts = r->regions;
	add_bytes(cpu, r->context.at, bytes);
	h->contexts = r->regions - h->contexts;
}

#endif
