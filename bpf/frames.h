/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Copies of the frames that a runtime keeps of a thread, besides its stack (struct thread_frames). */
#ifndef SWBPF_FRAMES_H
#define SWBPF_FRAMES_H

#include "stack.h"

/* Where the entries end that a frame at an address has from another one on. */
INLINE u64 end_of_entries(u64 frame, u64 entries, u32 entry, u32 last)
{
	s32 n;

	if (bpf_probe_read_user(&n, sizeof(n), (void *)(frame + last)) || n < -1 || n > 1 << 20)
		return 0;
	return entries + (u64)(n + 2) * entry;
}

/* Adds the entries of a frame, unless they are in the stack that is copied, or those that
 * are last of which there is room for. */
GLOBAL int add_entries(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct frames *f = r ? &r->frames : NULL;
	u64 from;

	if (!f || bpf_probe_read_user(&from, sizeof(u64), (void *)(f->frame + f->entries)))
		return 0;
	u64 end = end_of_entries(f->frame, from, f->entry, f->last);
	if (end <= from || !f->room || end - f->low <= f->high - f->low)
		return 0;
	if (end - from > f->room)
		from = end - f->room;
	f->room -= end - from;
	return add_bytes(cpu, from, end - from);
}

/*
 * Follows the frames of a runtime: adds the one under way, if it is in no stack that is
 * copied, and a word of an object that it refers to, and goes on to the one before. Returns whether there is one.
 */
GLOBAL int add_frame(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct frames *f = r ? &r->frames : NULL;
	struct sample_header *h = r ? in_record(r, 0) : NULL;

	if (!h || r->regions >= MAX_FRAME_REGIONS - (f->entry || f->object))
		return 0;
	u64 frame = f->frame, object;
	if (frame - f->low >= f->high - f->low && frame - stack_pointer(&h->regs) >= h->live)
		add_bytes(cpu, frame, f->bytes);
	if (f->entry)
		add_entries(cpu);
	if (f->objects && f->object && !bpf_probe_read_user(&object, sizeof(u64), (void *)(frame + f->object))) {
		f->objects--;
		add_bytes(cpu, object + f->object_word, sizeof(u64));
	}
	return !bpf_probe_read_user(&f->frame, sizeof(u64), (void *)(frame + f->previous)) && f->frame;
}

/* Sets out for a copy of frames of a runtime, as set_out: they have room of their own. */
INLINE void set_out_frames(struct cpu_ring *r, u64 key, u64 from, u64 end)
{
	set_out(r, key, from, from, end, 0);
	r->copy.most = r->frames.most;
}

/* Sets out for a copy of the thread's stack of frames, or as much of it as there is room for:
 * what runs. Returns whether there is one. */
GLOBAL int find_frame_stack(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct thread_frames *t = h ? bpf_map_lookup_elem(&thread_frames, &h->tid) : NULL;

	if (!t)
		return 0;
	struct frames *f = &r->frames;
	u64 at = t->bounds ? t->bounds : f->frame, words = 0;
	f->low = f->high = 0;
	if (bpf_probe_read_user(&f->low, sizeof(u64), (void *)(at + t->low)))
		return 0;
	if (t->entry)
		f->high = end_of_entries(at, f->low, t->entry, t->last);
	else if (bpf_probe_read_user(&f->high, sizeof(u64), (void *)(at + t->high)) ||
	    (t->is_counted && bpf_probe_read_user(&words, sizeof(u64), (void *)(at + t->high + sizeof(u64)))))
		return 0;
	f->high += words * sizeof(u64);
	if (t->below) {
		if (f->high <= f->low)
			f->high = f->low + PAGE;
		f->low -= t->below;
	}
	if (f->high > f->low && f->high - f->low > FRAMES_STACK) {
		if (t->is_down)
			f->high = f->low + FRAMES_STACK;
		else
			f->low = f->high - FRAMES_STACK;
	}
	set_out_frames(r, (t->bounds ? t->bounds : t->current) + h->tgid, f->low, f->high);
	return f->high > f->low;
}

/* Sets out for a copy of the values of the frames in that stack, of which low is the one that
 * runs, or of as many as there is room for. Returns whether there are any. */
GLOBAL int find_frame_values(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct thread_frames *t = h ? bpf_map_lookup_elem(&thread_frames, &h->tid) : NULL;

	if (!t || !t->has_values)
		return 0;
	struct frames *f = &r->frames;
	if (bpf_probe_read_user(&f->high, sizeof(u64), (void *)(f->low + t->values_end)) ||
	    bpf_probe_read_user(&f->low, sizeof(u64), (void *)(f->frame + t->values)))
		return 0;
	if (f->high > f->low && f->high - f->low > FRAMES_STACK)
		f->low = f->high - FRAMES_STACK;
	set_out_frames(r, t->current + 1 + h->tgid, f->low, f->high);
	return f->high > f->low;
}

enum chunk {
	NO_CHUNK,
	EMPTY_CHUNK,
	CHUNK_WITH_FRAMES, /* that are to be copied */
};

/* The address without the bits up to the one that is set of the four from mark on; 0 where there is no such one. */
INLINE u64 above_mark(u64 address, u32 mark)
{
	u32 bits = address >> (mark & 63) & 15;

	if (!bits || bits & (bits - 1))
		return 0;
	return address >> ((mark + 1 + (bits > 1) + (bits > 2) + (bits > 4)) & 63);
}

/* Adds an object that has frames of a stack, whose address is at another one, goes on to where the address is
 * of the one further out, and sets out for a copy of the frames' words, or as many as there is room for. */
GLOBAL int find_chunk(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct thread_frames *t = h ? bpf_map_lookup_elem(&thread_frames, &h->tid) : NULL;
	u64 object = 0;
	u32 low, words;

	if (!t || bpf_probe_read_user(&object, t->is_wide ? sizeof(u64) : sizeof(u32), (void *)r->frames.frame))
		return NO_CHUNK;
	if (t->chunk_mark)
		object = above_mark(object, t->chunk_mark);
	if (!object)
		return NO_CHUNK;
	object = t->chunk_base + (object << (t->chunk_shift & 63));
	if (bpf_probe_read_user(&low, sizeof(low), (void *)(object + t->chunk_low)) ||
	    bpf_probe_read_user(&words, sizeof(words), (void *)(object + t->chunk_words)))
		return NO_CHUNK;
	add_bytes(cpu, object, t->chunk_head);
	r->frames.frame = object + t->chunk_outer;
	if (low < FRAME_LINK || low >= words)
		return EMPTY_CHUNK;
	u64 from = object + t->chunk_head + (low - FRAME_LINK) * sizeof(u64), n = (words - low + FRAME_LINK) * sizeof(u64);
	set_out_frames(r, object + h->tgid, from, from + (n < FRAMES_STACK ? n : FRAMES_STACK));
	return CHUNK_WITH_FRAMES;
}

/* Has the frames of a thread of a process where they are, counted from that address. */
INLINE void count_from(struct thread_frames *t, u64 address)
{
	t->current += address;
	if (t->bounds)
		t->bounds += address;
}

/* Finds out where the frames of a thread are that is met for the first time. Returns whether that is known. */
GLOBAL int find_frames(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	u32 process;
	u64 own = 0;

	if (!h)
		return 0;
	process = h->tgid | FRAMES_OF_PROCESS;
	struct thread_frames *of_process = bpf_map_lookup_elem(&thread_frames, &process);
	if (!of_process)
		return 0;
	switch (of_process->from) {
	case FROM_THREAD:
		own = h->thread_pointer;
		break;
	case FROM_PROGRAM:
		if (h->tid != h->tgid)
			return 0;
		break;
	default:
		if (bpf_probe_read_user(&own, sizeof(own), (void *)(h->thread_pointer + of_process->from_tp)) || !own)
			return 0;
	}
	struct thread_frames *t = &r->frames.first;
	__builtin_memcpy(t, of_process, sizeof(*t));
	count_from(t, own);
	return !bpf_map_update_elem(&thread_frames, &h->tid, t, 0);
}

/*
 * Adds the frames that a runtime keeps of the thread: the word that leads to the one that
 * runs, what there is of their stack, and those elsewhere if they are asked for.
 */
INLINE int add_frames(u32 cpu)
{
	struct cpu_ring *r = bpf_map_lookup_elem(&rings, &cpu);
	struct sample_header *h = r ? in_record(r, 0) : NULL;
	struct thread_frames *t = h ? bpf_map_lookup_elem(&thread_frames, &h->tid) : NULL;

	if (!t && h && find_frames(cpu))
		t = bpf_map_lookup_elem(&thread_frames, &h->tid);
	if (!t)
		return 0;
	struct frames *f = &r->frames;
	h->frames = r->regions;
	f->most = r->copied + FRAMES_ROOM > stack_limit ? r->copied + FRAMES_ROOM : stack_limit;
	add_bytes(cpu, t->current - t->before, t->before + sizeof(u64) + t->after);
	if (bpf_probe_read_user(&f->frame, sizeof(u64), (void *)t->current) ||
	    (t->chunk && (f->frame < stack_pointer(&h->regs) ||
			  bpf_probe_read_user(&f->frame, sizeof(u64), (void *)(f->frame + t->first)))))
		f->frame = 0;
	if (f->frame && t->head)
		add_bytes(cpu, f->frame, t->head);
	if (t->chunk) {
		if (t->beside)
			add_bytes(cpu, t->beside, sizeof(u64));
		f->frame += t->chunk;
		for (u64 i = 0; f->frame != t->chunk && i < MAX_CHUNKS; i++) {
			int chunk = find_chunk(cpu);
			if (chunk == NO_CHUNK)
				break;
			if (chunk == CHUNK_WITH_FRAMES)
				copy_at_once(cpu);
		}
		h->frames = r->regions - h->frames;
		return 0;
	}
	if (!find_frame_stack(cpu) || !copy_at_once(cpu))
		f->low = f->high = 0; /* then each frame is by itself */
	else if (find_frame_values(cpu))
		copy_at_once(cpu);
	f->bytes = t->bytes;
	f->previous = t->previous;
	f->entry = t->entry;
	f->entries = t->low;
	f->last = t->last;
	f->room = CHUNK;
	f->object = t->object;
	f->object_word = t->object_word;
	f->objects = MAX_OBJECTS;
	if (f->bytes && f->frame && !t->is_frame && bpf_probe_read_user(&f->frame, sizeof(u64), (void *)(f->frame + t->first)))
		f->frame = 0;
	for (u64 i = 0; f->bytes && f->frame && i < MAX_FRAMES && add_frame(cpu); i++)
		;
	h->frames = r->regions - h->frames;
	return 0;
}

#endif
