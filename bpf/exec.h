/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Programs whose file user space has not open yet. It lets the news of processes
 * gather while all files are known that they map, and is told of one that is not
 * as soon as it is executed: process and file may be gone a moment later.
 */
#ifndef SWBPF_EXEC_H
#define SWBPF_EXEC_H

#include "ring.h"

struct program_file {
	u64 inode;
	u64 size; /* so that one written anew in place is mostly told from what it was */
	u32 dev;
	u32 generation;
};

/* Entered by user space. A file that is open keeps its inode's number. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1024);
	MAP_TYPE(key, struct program_file);
	MAP_TYPE(value, u8);
} known_programs SEC(".maps");

INLINE void tell_new_program(struct linux_binprm *bprm)
{
	struct file *file = kernel_read(bprm, file);
	struct inode *inode = kernel_read(file, f_inode);
	struct super_block *sb = kernel_read(inode, i_sb);
	struct program_file f = {
		.inode = kernel_read(inode, i_ino),
		.size = kernel_read(inode, i_size),
		.dev = kernel_read(sb, s_dev),
		.generation = kernel_read(inode, i_generation),
	};

	if (!bpf_map_lookup_elem(&known_programs, &f))
		bpf_ringbuf_output(&news, &f, sizeof(f), BPF_RB_FORCE_WAKEUP); /* where that is full, it wakes already */
}

#endif
