/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The few fields of kernel structures that are read. Their true offsets are
 * put in when the object is loaded, so neither the order here nor the fields
 * left out matter.
 */
#ifndef SWBPF_KERNEL_H
#define SWBPF_KERNEL_H

#include "bpf.h"

#define RELOCATED __attribute__((preserve_access_index))

struct ns_common {
	u32 inum;
} RELOCATED;

struct pid_namespace {
	struct ns_common ns;
} RELOCATED;

struct upid {
	s32 nr;
	struct pid_namespace *ns;
} RELOCATED;

struct pid {
	u32 level; /* depth of the namespace that the task lives in */
	struct upid numbers[]; /* one for each level from 0 to level */
} RELOCATED;

struct xol_area {
	unsigned long vaddr; /* of its page; the return trampoline is at the start, then slots for probed instructions */
} RELOCATED;

struct uprobes_state {
	struct xol_area *xol_area;
} RELOCATED;

struct mm_struct {
	void *pgd; /* of the kernel's type pgd_t */
	unsigned long start_code; /* where the first of a program's executable segments is mapped */
	unsigned long start_stack;
	struct uprobes_state uprobes_state;
} RELOCATED;

struct return_instance {
	unsigned long stack; /* SP at the function's entry */
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
} RELOCATED;

struct uprobe_task {
	struct return_instance *return_instances;
	void *active_uprobe; /* whose instruction is being executed in the page, or NULL; then: */
	unsigned long vaddr;     /* where the instruction was */
	unsigned long xol_vaddr; /* and where it is executed */
} RELOCATED;

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
} RELOCATED;
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
} RELOCATED;
#else
#error "unknown target architecture"
#endif

struct kernfs_node {
	u64 id;
} RELOCATED;

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} RELOCATED;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
} RELOCATED;

struct css_set {
	struct cgroup *dfl_cgrp; /* in the unified hierarchy */
} RELOCATED;

struct llist_head {
	void *first;
} RELOCATED;

struct kuid { /* kuid_t */
	u32 val;
} RELOCATED;

struct cred {
	struct kuid euid;
} RELOCATED;

struct task_struct {
	void *stack;
	void *ret_stack; /* of the function graph tracer */
	struct llist_head rethooks; /* of kretprobes */
	u32 flags;
	u32 in_execve : 1;
	u32 in_iowait : 1;
	u32 __state;
	s32 pid;
	s32 tgid;
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	void *vfork_done; /* of a child that its parent waits for: vfork */
	struct thread_struct thread;
	struct uprobe_task *utask;
	struct cred *real_cred;
	struct css_set *cgroups;
	s32 on_cpu; /* a byte since Linux 7.2 */
	u64 sas_ss_sp; /* the alternate stack for signals */
	u64 sas_ss_size;
	u8 comm[16];
} RELOCATED;

struct task_struct___before_5_14 {
	long state;
} RELOCATED;

struct super_block {
	u32 s_dev;
} RELOCATED;

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
	s64 i_size;
	u32 i_generation;
} RELOCATED;

struct file {
	struct inode *f_inode;
} RELOCATED;

struct linux_binprm {
	struct file *file;
} RELOCATED;

/* What the verifier keeps of a function, by which it is known what it does. */
enum priv_stack_mode { NO_PRIV_STACK };

struct bpf_subprog_info {
	enum priv_stack_mode priv_stack_mode; /* since Linux 6.13 */
	bool might_sleep : 1;                 /* since Linux 6.15 */
} RELOCATED;

/* task_struct.flags (include/linux/sched.h). */
enum { PF_KTHREAD = 0x00200000 };

/*
 * The registers that the kernel saves when user code is interrupted: struct
 * pt_regs on x86, its first member struct user_pt_regs on arm64. The layout is
 * fixed by the interface to user space (asm/ptrace.h) and needs no relocation.
 */
#if defined(__TARGET_ARCH_x86)
struct user_regs {
	u64 r15, r14, r13, r12, rbp, rbx;
	u64 r11, r10, r9, r8;
	u64 rax, rcx, rdx, rsi, rdi;
	u64 orig_ax;
	u64 rip, cs, rflags, rsp, ss;
};
#else
struct user_regs {
	u64 x[31];
	u64 sp, pc, pstate;
};
#endif

/* All of what the kernel saves there. */
struct pt_regs {
#if defined(__TARGET_ARCH_arm64)
	s32 syscallno; /* -1 outside of a system call */
#endif
} RELOCATED;

/* The arguments of a tracepoint, as raw_tracepoint programs get them. */
struct bpf_raw_tracepoint_args {
	u64 args[4];
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} RELOCATED;

/* The context of a program that is called for each task (iter/task). */
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task; /* NULL at the end */
};

/* The context of a perf_event program (uapi/linux/bpf_perf_event.h). */
struct bpf_perf_event_data {
	struct user_regs regs; /* of the moment of the event: user's or kernel's */
	u64 sample_period;
	u64 addr;
};

#if defined(__TARGET_ARCH_x86)

INLINE bool is_user_mode(u64 cs_or_pstate) { return (cs_or_pstate & 3) != 0; }

/* __USER32_CS: the code segment of a 32-bit program on a 64-bit kernel. */
INLINE bool is_mode32(u64 cs) { return (cs & 0xffff) == 0x23; }

INLINE u64 stack_pointer(const struct user_regs *regs) { return regs->rsp; }
INLINE u64 program_counter(const struct user_regs *regs) { return regs->rip; }

/* Whether it was by a system call that the kernel was entered. */
INLINE bool is_in_syscall(const struct user_regs *regs) { return !(regs->orig_ax >> 63); }

#define mode_of(regs) ((regs).cs)
#define sp_of(regs) ((regs).rsp)
#define system_call_of(regs) ((regs).orig_ax)
#define first_argument_of(regs) ((regs).rdi)
#define second_argument_of(regs) ((regs).rsi)
#define third_argument_of(regs) ((regs).rdx)
#define result_of(regs) ((regs).rax)
enum { NR_CLONE = 56 };
#define thread_pointer_of(task) task_field(task, thread.fsbase)

#else

/* PSR_MODE_EL0t is zero in the low four bits, for 32-bit code too. */
INLINE bool is_user_mode(u64 cs_or_pstate) { return (cs_or_pstate & 0xf) == 0; }

/* PSR_MODE32_BIT */
INLINE bool is_mode32(u64 pstate) { return (pstate & 0x10) != 0; }

INLINE u64 stack_pointer(const struct user_regs *regs) { return regs->sp; }
INLINE u64 program_counter(const struct user_regs *regs) { return regs->pc; }

/* Whether it was by a system call that the kernel was entered; of no interest
 * without a red zone. */
INLINE bool is_in_syscall(const struct user_regs *regs) { return false; }

#define mode_of(regs) ((regs).pstate)
#define sp_of(regs) ((regs).sp)
#define system_call_of(regs) ((regs).x[8])
#define first_argument_of(regs) ((regs).x[0])
#define second_argument_of(regs) ((regs).x[1])
#define third_argument_of(regs) ((regs).x[2])
#define result_of(regs) ((regs).x[0])
enum { NR_CLONE = 220 };
#define thread_pointer_of(task) task_field(task, thread.uw.tp_value)

#endif

INLINE bool is_compat32(const struct user_regs *regs) { return is_mode32(mode_of(*regs)); }

#endif
