/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Whole numbers that an event carries: its weight, and those that decide whether it counts. */
#ifndef SWBPF_NUMBER_H
#define SWBPF_NUMBER_H

#include "config.h"
#include "kernel.h"

/* A register in the context of a uprobe's program; 0 when there is none at the offset. */
INLINE u64 context_register(void *ctx, u32 offset)
{
	u64 value = 0;

	if (offset < sizeof(struct user_regs))
		bpf_probe_read_kernel(&value, sizeof(value), ctx + offset);
	return value;
}

/* Where in user memory a number is. */
INLINE u64 address_of(void *ctx, const volatile struct number *n)
{
	u32 cut = n->index_cut;
	u64 index = context_register(ctx, n->index) << cut;

	index = n->index_signed ? (s64)index >> cut : index >> cut;
	u64 address = context_register(ctx, n->base) + (index << n->index_shift) + n->displacement;
	return n->address32 ? (u32)address : address;
}

/* Reads a number as 64 bits. Returns whether it could be read. */
INLINE bool read_number(void *ctx, const volatile struct number *n, u64 *value)
{
	u32 size = n->size, unused = n->unused_bits;

	*value = n->constant;
	if (!size || size > sizeof(*value))
		return true;
	*value = 0;
	if (n->in_memory ? bpf_probe_read_user(value, size, (void *)address_of(ctx, n)) :
			   bpf_probe_read_kernel(value, size, ctx + n->offset))
		return false;
	if (n->is_signed)
		*value = (s64)(*value << unused) >> unused;
	return true;
}

/* Reads the weight of an event, which is nothing where it is negative. */
INLINE bool read_weight(void *ctx, u64 *value)
{
	bool is_read = read_number(ctx, &weight_number, value);

	if (weight_number.is_signed && (s64)*value < 0)
		*value = 0;
	return is_read;
}

/* Whether a number is as a condition says. */
INLINE bool is_as(u64 value, const volatile struct condition *c)
{
	bool is;

	value &= c->mask;
	switch (c->comparison) {
	case COMPARE_LESS:
		is = c->number.is_signed ? (s64)value < (s64)c->value : value < c->value;
		break;
	case COMPARE_AT_MOST:
		is = c->number.is_signed ? (s64)value <= (s64)c->value : value <= c->value;
		break;
	default:
		is = value == c->value;
	}
	return is != c->is_negated;
}

enum passing { PASSES, PASSES_NOT, PASSING_UNKNOWN };

/* Whether an event counts, by the conditions from the first one on. */
INLINE enum passing passes_filter(void *ctx)
{
	u32 next = 0;
	bool is_unknown = false;

	if (!condition_count)
		return PASSES;
	for (u32 i = 0; i < MAX_CONDITIONS && i < condition_count; i++) {
		u64 value;
		bool holds = false;

		if (i < next)
			continue;
		if (read_number(ctx, &conditions[i].number, &value))
			holds = is_as(value, &conditions[i]);
		else
			is_unknown = true;
		next = holds ? conditions[i].if_holds : conditions[i].if_not;
		if (next == MAX_CONDITIONS)
			return PASSES;
	}
	return is_unknown ? PASSING_UNKNOWN : PASSES_NOT;
}

#endif
