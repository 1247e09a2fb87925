// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The kernel's memory and the addresses of its functions, read when user space asks. */
#include "bpf.h"

char gpl_compatible[] SEC("license") = "GPL";

/* A request and its answer. */
struct kernel_memory {
	u64 addr;
	u64 size;       /* at most that of bytes */
	u8 bytes[4080]; /* what is read, or the name of a symbol */
};

const struct kernel_memory *kernel_memory_type __attribute__((unused));

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct kernel_memory);
	MAP_UINT(map_flags, MAP_MMAPABLE);
} memory SEC(".maps");

INLINE struct kernel_memory *request(void)
{
	u32 first = 0;
	return bpf_map_lookup_elem(&memory, &first);
}

/* Reads memory. Returns whether that failed. */
SEC("syscall")
int read_kernel(void *ctx)
{
	struct kernel_memory *m = request();

	if (!m)
		return 1;
	u64 n = m->size;
	hide(n);
	return n > sizeof(m->bytes) || bpf_probe_read_kernel(m->bytes, n, (void *)m->addr);
}

/* Finds the address of a symbol. Returns whether that failed. */
SEC("syscall")
int find_symbol(void *ctx)
{
	struct kernel_memory *m = request();

	return !m || bpf_kallsyms_lookup_name((char *)m->bytes, sizeof(m->bytes), 0, &m->addr);
}
