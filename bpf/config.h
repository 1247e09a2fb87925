/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Constants that the loader sets before the programs are verified, and the
 * maps. Being constant, they cost nothing: the verifier drops what they
 * exclude, helpers that an older kernel does not know included.
 */
#ifndef SWBPF_CONFIG_H
#define SWBPF_CONFIG_H

#include "record.h"

/* Limit of the user stack bytes of one sample, a multiple of PAGE; and up to
 * where a stack is copied beyond it, if it then is whole: the same, or more. */
const volatile u64 stack_limit = 64 << 10;
const volatile u64 whole_limit = 64 << 10;

/* Size of a CPU's ring: records begin below it. A record takes record_limit at
 * most, and is given a CHUNK more; and what its stacks have beyond stack_limit,
 * where there is room. */
const volatile u64 ring_bytes = 1 << 20;
const volatile u64 record_limit = 128 << 10;

/* Whether of stacks only what has changed is sent; and the size of a CPU's mirror,
 * a power of two. */
const volatile bool send_changes = false;
const volatile u64 mirror_bytes = 1 << 20;

/* Whether kernel stacks are wanted, and whether user space can unwind them. */
const volatile bool want_kernel = true;
const volatile bool copy_kernel = false;

/* Whether only processes with SAMPLED are sampled. */
const volatile bool filter_processes = false;

/* Whether what descends from them becomes such, too. */
const volatile bool follow_children = false;

/* Whether only tasks of a user are sampled, and of which: its number in the machine's
 * first user namespace. */
const volatile bool filter_user = false;
const volatile u32 wanted_user = 0;

/* Whether only tasks in wanted_cgroups are sampled. */
const volatile bool filter_cgroups = false;

/* Inode of the loader's PID namespace; 0 for the machine's first one. */
const volatile u32 pid_namespace = 0;

/* Whether bpf_task_pt_regs exists (5.15) and with it pointers to tasks that
 * can be followed without a helper; and the size of a kernel stack where not. */
const volatile bool have_task_pt_regs = false;
const volatile u64 thread_size = 16 << 10;

/* Where the program of a tracepoint or probe finds a whole number (number.h): in its
 * context; or in user memory, at the sum of two registers in the context and a displacement, of
 * which sum 32 bits may be all; or it is the same each time. */
struct number {
	u64 constant;
	u64 displacement;
	u32 offset;      /* in the context */
	u32 base, index; /* the same, of the registers; none when that is past it */
	u8 size;         /* 1, 2, 4 or 8 bytes; 0: it is constant */
	u8 unused_bits;  /* of 64 */
	bool is_signed;
	bool in_memory;
	u8 index_cut; /* upper bits of the index that do not count... */
	bool index_signed; /* ...and are copies of the one below */
	u8 index_shift;
	bool address32;
};

/* Which of the events is sampled: each has programs of its own. */
const volatile u8 event_number = 0;

/* Tracepoints and probes: after how much of their weights on a CPU a sample is
 * taken, and what each weighs. */
const volatile u64 point_period = 1;
const volatile struct number weight_number = { .constant = 1 };

/* Tracepoints and probes: what has to hold of numbers for an event to count. */
enum comparison_kind { COMPARE_EQUAL, COMPARE_LESS, COMPARE_AT_MOST };
struct condition {
	struct number number;
	u64 mask;  /* bits of it that are compared */
	u64 value; /* with this */
	u8 comparison;
	bool is_negated;
	u8 if_holds, if_not; /* index of a later condition; MAX_CONDITIONS: the event counts, above: it does not */
	u8 unused[4];
};
const volatile struct condition conditions[MAX_CONDITIONS] = {};
const volatile u32 condition_count = 0;

/* Off-CPU time: the least duration of interest in ns, and whether the
 * tracepoint sched_switch tells the state (5.18). Whether time on the CPU is
 * accounted for, too. */
const volatile u64 min_off_cpu = 0;
const volatile bool have_switch_state = false;
const volatile bool with_on_cpu = false;

/*
 * What is copied below SP. The x86-64 ABI gives 128 bytes there to leaf functions, the
 * red zone; of these walks need where registers are saved, or were and have been popped:
 * unwind tables go on to name that slot. It is the six that calls preserve.
 */
#if defined(__TARGET_ARCH_x86)
enum { BELOW_SP = 6 * 8 };
#else
enum { BELOW_SP = 0 };
#endif

enum {
	/* The piece in which user memory is read... */
	CHUNK = 16 << 10,
	FRAMES_STACK = CHUNK - 2 * BLOCK, /* bytes copied of a stack of frames of a runtime, at its end that runs */
	FRAMES_ROOM = 2 * CHUNK, /* for these, and values of frames, whatever the stacks before have taken */
	/* ...and the one near memory that cannot be read, as a read that meets
	 * an unmapped page fails whole. It divides all page sizes. */
	PAGE = 4096,
	WINDOW_PAGES = 64, /* looked at at once, of a page table */
	/* Steps that a copy may take beside those for its chunks: for the pages
	 * around gaps, and for those in gaps. They are made in series. */
	MORE_STEPS = 512,
	STEPS = 8,
	/* Pages of a gap before anything was read, and of one in a stack whose end
	 * is only likely, and far. */
	FIRST_GAP = 64,
	LIKELY_GAP = 16,
	/* Times off the CPU that are all sampled within 10 ms: of a thread from a
	 * place, and on a CPU. From then on they are less and less likely to be. */
	OFF_CPU_WINDOW = 10 * 1000 * 1000,
	BLOCKED_PER_THREAD = 25,
	PREEMPTED_PER_THREAD = 5,
	RARE_PER_THREAD = 3, /* up to which they go by the first limit of a CPU */
	RARE_PER_CPU = 300,
	FREQUENT_PER_CPU = 50,
	/* Of how many a sample is one: the unit, and the most. */
	ONE = 1 << 10,
	MOST = 1 << 30,
};

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
	u64 to;    /* up to where the limit allows */
	u64 size;  /* of the piece to read next, up to a multiple of it */
	u64 next;  /* size after a success */
	u64 end;   /* where the copy shall end */
	u64 most;  /* bytes of a sample's stacks with it */
	/* Where changes are sent: */
	u64 first; /* what was asked for begins here... */
	u64 last;  /* ...and this may be had now; blocks may hold more */
	u64 key;   /* tells the stack from others: mirror.h */
	u64 room;  /* for masks, between a region's header and its bytes */
	/* Where it takes more than one read: */
	u64 gap;   /* pages that may still be left out */
	u64 gaps;  /* what gap is once something was read */
	u64 sp;    /* from where on it counts */
	u64 before; /* bytes copied of other stacks */
	u64 steps; /* that may still be made */
};

/* Where the page tables of x86 are (pages.h): user space writes it. */
struct page_tables {
	u64 memory;	  /* address at which the kernel keeps all memory; 0: not known */
	u64 shift;	  /* of an address, for the index of the topmost table */
	u64 address_bits; /* of an entry: where in memory the next table is */
};

/* What was found of the pages where a copy is. */
struct pages {
	u64 window;   /* address of so many pages, aligned to its size... */
	u64 there;    /* ...of which these are there, the first in bit 0 */
	u64 bytes;    /* that are there at the copy's address, at most CHUNK; 0: ... */
	u64 absent;   /* ...so many pages are not, or more */
	u64 doubtful; /* what was to be there was not */
	u64 entries[WINDOW_PAGES];
};

/* The progress of finding out what has changed in a region (mirror.h). */
struct comparison {
	u64 in;     /* offsets in the record: of the next piece as copied... */
	u64 out;    /* ...and of where what is sent of it goes */
	u64 mirror; /* offset of the piece in the mirror */
	u64 blocks; /* still to compare */
};

/* The progress of keeping words of a kernel stack (kernelstack.h). */
struct kernel_copy {
	u64 task_end; /* where the task's stack ends, and the one for interrupts */
	u64 irq_end;
	u64 in, out, masks; /* offsets in the record: of the next words, and of where these and their mask go */
	u64 words;   /* still to look at */
};

struct go_stack {
	u64 lo, hi;
};

/* What is known of the thread's goroutines (goroutine.h). */
struct go_thread {
	u64 g; /* the one that runs; 0 when none could be read: then the rest is unset */
	struct go_process process;
	u32 key;      /* of the runtime, in go_processes */
	bool several; /* whether the process has others, of which what the thread has is still to be added */
	u64 g_word; /* address of the word that holds g */
	u64 m;
	u64 g0;   /* that of the thread's own stack */
	u64 curg; /* the user goroutine of the thread; 0 when there is none */
	struct go_stack stack; /* of g */
	struct go_stack curg_stack;
	bool signalled; /* on the stack for signals */
	u64 sp; /* what it is, or, when signalled, was before; 0: not known */
	u64 labels; /* address of those of curg, for add_labels */
};

/* The frames that a runtime keeps of a thread, as they are followed (frames.h). */
struct frames {
	u64 frame;     /* the one under way */
	u64 low, high; /* what is copied of their stack */
	u32 bytes, previous; /* see struct thread_frames */
	u32 entry, last, entries;
	u32 room; /* bytes that entries elsewhere may still take */
	u32 object, object_word;
	u32 objects; /* of which the word may still be copied */
	u64 most; /* bytes of a sample's stacks, with those of frames */
	struct thread_frames first; /* of a thread that is met for the first time */
};

/*
 * A variable that leads to what a thread works on by way of the map that a thread of JavaScript has current
 * (context.h): the value of a key in that is an object with the record.
 */
struct map_context {
	u64 slot;      /* address of the word with the map; 0: there is none */
	u64 key;       /* address of the word with the key */
	u64 hash;
	u64 undefined; /* what there is in place of a map, or of an object */
};

/* How the record begins of what a thread works on; so many bytes follow. */
struct context_head {
	u8 ids[24]; /* of the trace and the span */
	u8 valid;   /* 1: it is */
	u8 flags;
	u16 bytes;
};

/* That record, as it is looked for (context.h). */
struct context {
	u64 at; /* 0: there is none */
	struct map_context map;
	u64 counts[3]; /* of a map's table, in the upper halves: of entries, of those deleted, of buckets */
	u64 entry[2];  /* of that: a key and its value */
	struct context_head head;
	u32 unused;
};

/*
 * A CPU's ring, in which records are assembled where user space reads them
 * (ring.h), and the state of the one under way.
 *
 * What changes from step to step of a copy is here too: the verifier does not
 * follow values in maps, so it sees that each step is like the one before and
 * need not walk all combinations of what can happen in them. And what is large,
 * for which the stack of programs has no room.
 *
 * Of all this a sample finds nothing in a cache: what each one needs stands
 * together, in few lines of one page.
 */
struct cpu_ring {
	u64 tail; /* written by user space: how far it has read */
	u64 head; /* up to where records are complete */
	u64 wrap; /* where the lap before that of head ended */
	u64 busy;
	u64 lap;     /* of the record under way */
	u64 record;  /* its offset in the data */
	u64 end;     /* offset in it of its next byte */
	u64 copied;   /* of stacks */
	u64 waiting;  /* bytes of records before it that are not read yet */
	u64 room;     /* up to where there is room for the record */
	u32 regions;  /* in it */
	u32 mirrored; /* whether these have any in the mirror */
	u64 changes;  /* records with such ones so far */
	u64 asked;    /* when user space was last asked to learn where threads' stacks end */
	u64 kernel_stacks; /* enum kernel_stacks, written by user space */
	u64 over; /* written by user space: tracepoints and probes are no events any more */
	struct counters counters;
	struct copy copy;
	struct kernel_copy kernel;
	struct comparison comparison;
	struct go_thread go;
	struct frames frames;
	struct context context;
	struct page_tables page_tables;
	struct pages pages;
	/* and then the data */
};

/* An array and not a BPF ring buffer, which has one lock for all CPUs and does
 * not let a program write into it by and by. */
struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1); /* possible CPUs, set by the loader */
	MAP_UINT(key_size, 4);
	MAP_UINT(value_size, 4 << 20); /* set by the loader */
	MAP_UINT(map_flags, MAP_MMAPABLE);
} rings SEC(".maps");

/* A CPU's mirror (mirror.h). */
struct mirror {
	u8 bytes[8];
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1); /* possible CPUs, set by the loader */
	MAP_UINT(key_size, 4);
	MAP_UINT(value_size, 4 << 20); /* set by the loader */
} mirrors SEC(".maps");

/* Where the record of a task that waits is assembled: it has no regions. */
struct waiting_record {
	u64 pid; /* in the first PID namespace: the key of times */
	struct sample_header header;
	u8 kernel_pc[MAX_KERNEL_FRAMES * 8];
	struct replaced_return returns[MAX_RETURNS];
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct waiting_record);
} waiting_records SEC(".maps");

/* What is known of processes: enum process_flags by tgid, of all that there can
 * be. A hash table would be smaller, but costs a sample several cache misses. */
struct process_page {
	u8 flags[PROCESS_PAGE];
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, PROCESS_PAGES);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct process_page);
	MAP_UINT(map_flags, MAP_MMAPABLE);
} processes SEC(".maps");

/* Those cgroups, by their IDs in the unified hierarchy. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1); /* set by the loader */
	MAP_TYPE(key, u64);
	MAP_TYPE(value, u8);
} wanted_cgroups SEC(".maps");

/* Threads, by their number in the first PID namespace. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1 << 17); /* 1 unless off-CPU time is sampled */
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct thread_times);
} times SEC(".maps");

/* What thinned threads' times still weigh. Of what is forgotten for others only
 * the sum remains, in thread_times. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 1 << 16); /* 1 unless off-CPU time is sampled */
	MAP_TYPE(key, struct length_key);
	MAP_TYPE(value, struct length_account);
} lengths SEC(".maps");

/* Address at which a thread's stack ends, by tid, as user space learned it: of those
 * that do not end as thread_ends has it, or have more stack than the limit. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} stack_ends SEC(".maps");

/*
 * How far below their thread pointers the stacks of a process's threads end, by tgid:
 * the C library makes them all alike. As user space learned it from one or two of them.
 */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} thread_ends SEC(".maps");

/* What walks of earlier samples lacked, by tid: frames are larger than what is copied. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct stack_parts);
} stack_parts SEC(".maps");

/* Where the frames of a thread are, by tid; and how to find them, by tgid and FRAMES_OF_PROCESS. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct thread_frames);
} thread_frames SEC(".maps");

/* Go processes, by tgid. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct go_process);
} go_processes SEC(".maps");

/* Processes whose threads tell what they work on, by tgid. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct thread_context);
} thread_contexts SEC(".maps");

/* The flags of a process, NULL when there can be none of this number. */
INLINE u8 *flags_of_process(u32 tgid)
{
	u32 page = tgid / PROCESS_PAGE;
	struct process_page *p = bpf_map_lookup_elem(&processes, &page);

	return p ? &p->flags[tgid % PROCESS_PAGE] : NULL;
}

/* What is known of a process: enum process_flags. */
INLINE u8 process_flags(u32 tgid)
{
	u8 *flags = flags_of_process(tgid);
	return flags ? *flags : 0;
}

INLINE struct cpu_ring *this_cpu_ring(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&rings, &cpu);
}

#endif
