/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Programs by their files. User space lets the news of processes gather while all
 * files are open that they map, and is told of one that is not as soon as it is
 * executed: process and file may be gone a moment later. What it has learned of
 * a Go program, or of one whose runtime keeps frames, is known of the next process before that runs.
 */
#ifndef SWBPF_EXEC_H
#define SWBPF_EXEC_H

#include "frames.h"

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

/* Where processes of a program have frames. Entered by user space, as one of them has had it. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 256);
	MAP_TYPE(key, struct program_file);
	MAP_TYPE(value, struct thread_frames);
} program_frames SEC(".maps");

/* Enters what is known of the program that a process has just become, NULL when
 * nothing is. What was known is of the one before. */
INLINE void become_program(u32 tgid, const struct go_process *known, const struct thread_frames *known_frames)
{
	u8 *flags = flags_of_process(tgid);

	if (!flags)
		return;
	if (*flags & PROCESS_HAS_FRAMES)
		bpf_map_delete_elem(&thread_frames, &tgid);
	*flags &= PROCESS_SAMPLED;
	if (known && known->g_head && !bpf_map_update_elem(&go_processes, &tgid, known, 0))
		*flags |= PROCESS_IS_GO;
	if (!known_frames)
		return;
	struct thread_frames frames = *known_frames;
	u32 process = tgid | FRAMES_OF_PROCESS;
	if (frames.from == FROM_PROGRAM) {
		struct mm_struct *mm = task_field(current_task(), mm);
		count_from(&frames, kernel_read(mm, start_code));
	}
	if (!bpf_map_update_elem(&thread_frames, &process, &frames, 0))
		*flags |= PROCESS_HAS_FRAMES;
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
	become_program(tgid, known, bpf_map_lookup_elem(&program_frames, &f));
	if (!known)
		bpf_ringbuf_output(&news, &f, sizeof(f), BPF_RB_FORCE_WAKEUP); /* where that is full, it wakes already */
}

#endif
