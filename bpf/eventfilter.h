/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which occurrences of a tracepoint or uprobe are to be sampled, by their numbers. */
#ifndef SWBPF_EVENTFILTER_H
#define SWBPF_EVENTFILTER_H

#include "config.h"

/* Whether a number in the program's context is as a condition says. */
INLINE bool holds(void *ctx, const volatile struct condition *c)
{
	u64 value = 0;
	bool is;

	if (c->size > sizeof(value) || bpf_probe_read_kernel(&value, c->size, ctx + c->offset))
		return false;
	if (c->is_signed)
		value = (s64)(value << c->unused_bits) >> c->unused_bits;
	value &= c->mask;
	switch (c->comparison) {
	case COMPARE_LESS:
		is = c->is_signed ? (s64)value < (s64)c->value : value < c->value;
		break;
	case COMPARE_AT_MOST:
		is = c->is_signed ? (s64)value <= (s64)c->value : value <= c->value;
		break;
	default:
		is = value == c->value;
	}
	return is != c->is_negated;
}

/* Whether all conditions hold. */
INLINE bool passes_filter(void *ctx)
{
	for (u32 i = 0; i < MAX_CONDITIONS && i < condition_count; i++)
		if (!holds(ctx, &conditions[i]))
			return false;
	return true;
}

#endif
