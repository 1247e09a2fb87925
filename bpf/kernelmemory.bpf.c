// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/* The kernel's memory, the addresses of its functions and their names, read when user space asks. */
#include "kernel.h"

char gpl_compatible[] SEC("license") = "GPL";

/* A piece of memory that is asked for, and what is there. */
struct kernel_piece {
	u64 addr;
	u64 size; /* at most that of bytes; 0: nothing is asked for */
	u8 bytes[2032];
};

/* A request and its answer: two pieces, or the name of a symbol in the first one, whose
 * address becomes that of the symbol. */
struct kernel_memory {
	struct kernel_piece first;
	struct kernel_piece second;
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

/* Reads a piece. Returns whether that failed. */
INLINE bool read_piece(struct kernel_piece *p)
{
	u64 n = p->size;

	hide(n);
	return n > sizeof(p->bytes) || (n && bpf_probe_read_kernel(p->bytes, n, (void *)p->addr));
}

/* Reads memory. Returns whether that failed. */
SEC("syscall")
int read_kernel(void *ctx)
{
	struct kernel_memory *m = request();

	return !m || read_piece(&m->first) || read_piece(&m->second);
}

/* Finds the address of the current process's topmost page table. Returns whether that failed. */
SEC("syscall")
int find_page_table(void *ctx)
{
	struct kernel_memory *m = request();

	if (!m)
		return 1;
	struct task_struct *task = bpf_get_current_task();
	struct mm_struct *mm = kernel_read(task, mm);
	m->first.addr = (u64)kernel_read(mm, pgd);
	return !m->first.addr;
}

/* Finds the address of a symbol. Returns whether that failed. */
SEC("syscall")
int find_symbol(void *ctx)
{
	struct kernel_memory *m = request();

	return !m || bpf_kallsyms_lookup_name((char *)m->first.bytes, sizeof(m->first.bytes), 0, &m->first.addr);
}

static const char as_symbol[] = "%pS";

/* Names the code at an address: "name+0xoffset/0xsize", and perhaps " [module]". Returns
 * whether that failed. */
SEC("syscall")
int name_code(void *ctx)
{
	struct kernel_memory *m = request();

	if (!m)
		return 1;
	u64 addr = m->first.addr;
	return bpf_snprintf((char *)m->first.bytes, sizeof(m->first.bytes), as_symbol, &addr, sizeof(addr)) <= 0;
}
