/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Constants that the loader sets before the programs are verified, and the
 * maps. Being constant, they cost nothing: the verifier drops what they
 * exclude, helpers that an older kernel does not know included.
 */
#ifndef SWBPF_CONFIG_H
#define SWBPF_CONFIG_H

#include "record.h"

/* Limit of the user stack bytes of one sample, a multiple of PAGE. */
const volatile u64 stack_limit = 64 << 10;

/* Whether kernel stacks are wanted. */
const volatile bool want_kernel = true;

/* Whether only processes in the map "tracked" are sampled. */
const volatile bool filter_processes = false;

/* Whether children of tracked processes become tracked. */
const volatile bool follow_children = false;

/* Inode of the loader's PID namespace; 0 for the machine's first one. */
const volatile u32 pid_namespace = 0;

/* Whether bpf_task_pt_regs exists (5.15), and the size of a kernel stack
 * where it does not. */
const volatile bool have_task_pt_regs = false;
const volatile u64 thread_size = 16 << 10;

/* Tracepoints and uprobes: after how much of their weights on a CPU a sample is
 * taken, and where in the program's context the weight is, a number of 1, 2, 4
 * or 8 bytes; of 0 bytes, when each weighs 1. */
const volatile u64 point_period = 1;
const volatile u32 weight_offset = 0;
const volatile u32 weight_size = 0;
const volatile bool weight_signed = false;

/* Off-CPU time: the least duration of interest in ns, and whether the
 * tracepoint sched_switch tells the state (5.18). Whether time on the CPU is
 * accounted for, too. */
const volatile u64 min_off_cpu = 0;
const volatile bool have_switch_state = false;
const volatile bool with_on_cpu = false;

/* The scratch area that belongs to no CPU. */
const volatile u32 spare_scratch = 0;

/*
 * What belongs to a stack below SP: the red zone that the x86-64 ABI gives to
 * leaf functions. It matters to others too: after a pop, unwind tables go on
 * to name the slot that the register was popped from.
 */
#if defined(__TARGET_ARCH_x86)
enum { RED_ZONE = 128 };
#else
enum { RED_ZONE = 0 };
#endif

enum {
	/* The piece in which user memory is read... */
	CHUNK = 16 << 10,
	/* ...and the one near memory that cannot be read, as a read that meets
	 * an unmapped page fails whole. It divides all page sizes. */
	PAGE = 4096,
	/* Steps that a copy may take beside those for its chunks: for the pages
	 * around holes, and for those in holes. */
	MORE_STEPS = 48,
	/* Samples of off-CPU time that may be taken within 10 ms on a CPU and of a
	 * thread; time without one that is too long to be carried over, ns. */
	OFF_CPU_WINDOW = 10 * 1000 * 1000,
	OFF_CPU_PER_WINDOW = 100,
	OFF_CPU_PER_THREAD = 25,
	LONG_UNSAMPLED = 1000 * 1000,
	/* The limit that the loader accepts at most. */
	MAX_STACK = 1 << 20,
};

/* Records on their way to user space. The size is set by the loader. */
struct {
	MAP_UINT(type, MAP_RINGBUF);
	MAP_UINT(max_entries, 4 << 20);
} ring SEC(".maps");

/*
 * The progress of a copy of user memory (stack.h). Between two reads it is in
 * one of three modes, told apart by the sizes:
 *
 *     size   next
 *     CHUNK  CHUNK  all went well so far
 *     PAGE   PAGE   a chunk could not be read, but its first pages may be
 *     PAGE   CHUNK  a page could not be read, but a later one may be
 */
struct copy {
	u64 from;  /* where the current region begins */
	u64 addr;  /* up to where it is copied */
	u64 to;    /* where the copy shall end */
	u64 size;  /* of the piece to read next, up to a multiple of it */
	u64 next;  /* size after a success */
	u64 holes; /* that may still be left out */
	u64 later; /* mask of holes once something was read */
};

/*
 * Where a CPU assembles its record. A per-CPU array would be the natural map,
 * but its values end at 32 KiB.
 *
 * What changes from step to step of a copy is here too: the verifier does not
 * follow values in maps, so it sees that each step is like the one before and
 * need not walk all combinations of what can happen in them.
 */
struct scratch {
	u64 busy;
	u64 end; /* of the body: where the next byte of the record goes */
	struct copy copy;
	struct sample_header header;
	u8 body[]; /* what follows the header in the record; body_size long */
};

/* The body holds at most this much (see record.h)... */
#define BODY_LIMIT                                                            \
	(MAX_KERNEL_FRAMES * 8 + MAX_RETURNS * sizeof(struct replaced_return) +  \
	 MAX_REGIONS * sizeof(struct region_header) + \
	 4 * MAX_GO_HEAD + stack_limit + 192)

/* ...and one chunk more, so that a copy that starts inside cannot leave it. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1); /* possible CPUs and one, set by the loader */
	MAP_UINT(key_size, 4);
	MAP_UINT(value_size, sizeof(struct scratch) + 8192 + MAX_STACK + CHUNK); /* lowered by the loader */
} scratch_areas SEC(".maps");

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct counters);
} counter_values SEC(".maps");

/* Processes to sample, by tgid. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 65536);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u8);
} tracked SEC(".maps");

/* Threads, by their number in the first PID namespace. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1 << 17); /* 1 unless off-CPU time is sampled */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct thread_times);
} times SEC(".maps");

/* Address at which a thread's stack ends, by tid, as user space learned it. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} stack_ends SEC(".maps");

/* Go processes, by tgid. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct go_process);
} go_processes SEC(".maps");

INLINE struct counters *this_cpu_counters(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&counter_values, &zero);
}

#endif
