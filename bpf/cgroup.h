/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The cgroups of tasks, in the unified hierarchy, their users, and whether a task is to be sampled. */
#ifndef SWBPF_CGROUP_H
#define SWBPF_CGROUP_H

#include "task.h"

/* The ID of the cgroup of any task. */
INLINE u64 cgroup_of(struct task_struct *task)
{
	struct css_set *set = kernel_read(task, cgroups);
	struct cgroup *cgroup = kernel_read(set, dfl_cgrp);
	struct kernfs_node *node = kernel_read(cgroup, kn);
	return kernel_read(node, id);
}

/* That of the current task. */
INLINE u64 current_cgroup(struct task_struct *task)
{
	struct css_set *set = task_field(task, cgroups);
	struct cgroup *cgroup = set ? task_field(set, dfl_cgrp) : NULL;
	struct kernfs_node *node = cgroup ? task_field(cgroup, kn) : NULL;
	return node ? task_field(node, id) : 0;
}

enum { MAX_CGROUP_LEVELS = 32 }; /* deeper ones are in none that is asked for */

/* Whether a task is in one of the cgroups asked for, or below one. */
APART int is_in_wanted_cgroup(struct task_struct *task)
{
	struct css_set *set = kernel_read(task, cgroups);
	struct cgroup *cgroup = kernel_read(set, dfl_cgrp);

	for (int i = 0; i < MAX_CGROUP_LEVELS; i++) {
		struct kernfs_node *node = kernel_read(cgroup, kn);
		u64 id = kernel_read(node, id);
		if (bpf_map_lookup_elem(&wanted_cgroups, &id))
			return 1;
		struct cgroup_subsys_state *parent = kernel_read(cgroup, self.parent);
		if (!parent)
			return 0;
		cgroup = kernel_read(parent, cgroup);
	}
	return 0;
}

/* By which rights a task acts, as ps shows it; that its system call may act by others
 * for a while does not count. */
INLINE u32 effective_user(struct task_struct *task)
{
	struct cred *cred = kernel_read(task, real_cred);
	return kernel_read(cred, euid.val);
}

/* Whether it is threads that have PROCESS_SAMPLED, each by its own number, and not processes. */
const volatile bool filter_threads = false;

/* Whether a task is one of those asked for; flags are those of its process. */
INLINE bool is_asked_for(struct task_struct *task, u8 flags)
{
	if (filter_threads)
		flags = process_flags(tid_of(task));
	if (filter_processes && !(flags & PROCESS_SAMPLED))
		return false;
	if (filter_user && effective_user(task) != wanted_user)
		return false;
	return !filter_cgroups || is_in_wanted_cgroup(task);
}

#endif
