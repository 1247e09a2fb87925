/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Programs by their files. User space lets the news of processes gather while all
 * files are open that they map, and is told of one that is not as soon as it is
 * executed: process and file may be gone a moment later. What it has learned of
 * a Go program is known of the next process before that runs.
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

/* Entered by user space. A file that is open keeps its inode's number. All is 0
 * where it is no Go program. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1024);
	MAP_TYPE(key, struct program_file);
	MAP_TYPE(value, struct go_process);
} known_programs SEC(".maps");

/* Enters what is known of the program that a process has just become, NULL when
 * nothing is. What was known is of the one before. */
INLINE void become_program(u32 tgid, const struct go_process *known)
{
	u8 *flags = flags_of_process(tgid);

	if (!flags)
		return;
	*flags &= PROCESS_SAMPLED;
	if (known && known->g_head && !bpf_map_update_elem(&go_processes, &tgid, known, 0))
		*flags |= PROCESS_IS_GO;
}

INLINE void meet_program(u32 tgid, struct linux_binprm *bprm)
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

	struct go_process *known = bpf_map_lookup_elem(&known_programs, &f);
	become_program(tgid, known);
	if (!known)
		bpf_ringbuf_output(&news, &f, sizeof(f), BPF_RB_FORCE_WAKEUP); /* where that is full, it wakes already */
}

#endif
