/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The wire format: what one sample looks like in the ring. A record is
 *
 *     struct sample_header
 *     u64 kernel_pc[kernel_frames]              leaf first
 *     struct kernel_regs, words of the kernel stack (kernelstack.h)  if kernel_bytes
 *     struct replaced_return[returns]           innermost call first
 *     regions times:
 *         struct region_header
 *         u8 bytes[len], padded to 8
 *
 * With off-CPU time such a record tells where a thread left the CPU, or with
 * OFF_CPU_WAKER what wakes one up. Two other records, known by their lengths, are
 * struct off_cpu_end, when it runs again, and struct unsampled, for time of which
 * there is no sample. With blocks of memory there is struct block_end besides.
 *
 * All is in the byte order of the machine and nothing more: its length is what it
 * needs. The Go side is generated from this file (package gen); a test
 * compares the two layouts.
 */
#ifndef SWBPF_RECORD_H
#define SWBPF_RECORD_H

#include "kernel.h"

/* What is known of the user part of the task. */
enum user_state {
	USER_NONE = 0,     /* a kernel thread: it has none */
	USER_NATIVE = 1,   /* registers of a 64-bit program */
	USER_COMPAT32 = 2, /* registers of a 32-bit program */
	USER_EXITED = 3,   /* the task is exiting and its memory is gone */
	USER_PARTIAL = 4,  /* the kernel was just saving the registers */
	USER_EXEC = 5,     /* an exec has dropped the old program's memory */
};

/* Where and why the copy of the stack ended. */
enum stack_end_kind {
	STACK_END_NONE = 0,       /* no stack was copied */
	STACK_END_BOTTOM = 1,     /* at the end of the stack */
	STACK_END_LIMIT = 2,      /* at the limit set */
	STACK_END_UNREADABLE = 3, /* at memory that could not be read */
};

/* Why a thread has left the CPU. */
enum off_cpu_state {
	OFF_CPU_NOT = 0,      /* it has not: a sample of any other event */
	OFF_CPU_SLEEP = 1,    /* interruptible: a timer, a pipe, a socket, a child */
	OFF_CPU_DISK = 2,     /* I/O of a block device */
	OFF_CPU_LOCK = 3,     /* a futex: a lock of user space */
	OFF_CPU_STOPPED = 4,  /* by a signal or a tracer */
	OFF_CPU_UNINTERRUPTIBLE = 5, /* in the kernel, but for no disk: a vfork child, a lock of its own */
	OFF_CPU_RUNNABLE = 6, /* preempted, or woken up again: it waits for a CPU */
	OFF_CPU_STATES = 7,
	OFF_CPU_WAKER = 7, /* none: the sample is of what wakes another thread up */
};

struct sample_header {
	u64 time;           /* CLOCK_MONOTONIC, ns */
	u32 size;           /* of the record, a multiple of 8 */
	u32 cpu;
	u64 weight;         /* events that this sample stands for */
	u64 thread_pointer; /* base of thread-local storage */
	u64 live;           /* bytes from SP to the stack's known end; 0: not known */
	u64 cgroup;         /* ID in the unified hierarchy */
	u64 trampoline;     /* to which functions under a uretprobe return; 0: none */
	u32 tgid, tid;      /* as seen from the PID namespace of the loader */
	u32 changes;        /* number of the record among those with mirrored regions */
	u8 user;            /* enum user_state */
	u8 stack_end;       /* enum stack_end_kind */
	u8 kernel_frames;
	u8 regions;         /* the first are the stack, from just below SP up */
	u8 returns;
	u8 off_cpu;         /* enum off_cpu_state */
	u16 kernel_bytes;   /* of the kernel stack before words are left out; 0: it is not there */
	u16 irq_bytes;      /* of these on the CPU's stack for interrupts: the last word is
			       the address at which the task's goes on */
	u8 parts;           /* how many of the regions, the last of the stack, are struct stack_parts' */
	u8 frames;          /* how many of the regions, the last, are those of struct thread_frames */
	u64 breakpoint;     /* address of one at or right before PC, seen in the kernel; or 0 */
	u64 slot;           /* where the instruction of the breakpoint is executed in its place; or 0 */
	u8 labels;          /* how many of the regions, the last of all, are the labels of the goroutine that
			       runs: their strings, and then what these are */
	u8 event;           /* which of the events (event_number) */
	u8 contexts;        /* how many of the regions, before labels, are what the thread works on: 0 or 1 */
	u8 unused;
	u32 woken;          /* with OFF_CPU_WAKER the tid of the other thread, whose sample has weight as its time */
	u8 comm[16];
	struct user_regs regs;
};

/* Of kernel code that was interrupted, what unwinding its stack may begin with.
 * The stack goes from sp up to where the registers of user code are saved. */
struct kernel_regs {
	u64 ip, sp, bp;
	u64 di, dx, r10, r13;
	u64 task_end; /* where the registers of user code are saved, on the task's stack */
};

/* How the kernel part of a stack is had. User space writes it into the rings. */
enum kernel_stacks {
	KERNEL_ASKED = 0,   /* the kernel unwinds it */
	KERNEL_CHECKED = 1, /* the same; and it is copied, to see that user space can */
	KERNEL_COPIED = 2,  /* it is copied; one in KERNEL_CHECKS is KERNEL_CHECKED */
	KERNEL_CHECKS = 256,
	LOG_NEAR = 15,
	NEAR = 1 << LOG_NEAR, /* bytes around the end of a stack within which addresses are sent */
};

/* A return address that the kernel has replaced by that of its trampoline. */
struct replaced_return {
	u64 stack; /* SP at the function's entry */
	u64 ra;    /* the original return address */
};

/* The end of a thread's time off the CPU. */
struct off_cpu_end {
	u64 time;     /* CLOCK_MONOTONIC, ns */
	u32 size;     /* of the record */
	u32 tid;      /* as in the sample at which it began */
	u64 start;    /* time of that sample */
	u64 blocked;  /* ns in the state of that sample, and of what it stands for */
	u64 runnable; /* ns since it could run again, likewise */
	u64 dropped;  /* whether it was shorter than asked for */
};

/* A block of memory is given back. */
struct block_end {
	u64 time;  /* CLOCK_MONOTONIC, ns */
	u32 size;  /* of the record */
	u32 tid;   /* as in the sample of when it was handed out */
	u64 start; /* time of that sample */
};

/* Time of a thread on or off the CPU of which there is no sample. */
struct unsampled {
	u64 time; /* CLOCK_MONOTONIC, ns */
	u32 size; /* of the record */
	u32 off_cpu; /* enum off_cpu_state */
	u64 ns;
	u64 cgroup;
	u32 tgid, tid;
	u8 comm[16];
};

struct region_header {
	u64 addr;   /* run-time address of the first byte */
	u32 len;    /* bytes, without the padding */
	u32 mirror; /* where it is in the CPU's mirror; NO_MIRROR: all bytes follow */
};

enum limits {
	NO_MIRROR = 0xffffffff,
	BLOCK = 64,        /* bytes that mirrored regions are aligned to */
	PIECE = 512,       /* bytes of words with a bit each in a mask */
	GROUP = 64 * PIECE, /* bytes of pieces with a bit each in a mask */
	MAX_KERNEL_FRAMES = 127, /* the default of sysctl kernel.perf_event_max_stack */
	MAX_CONDITIONS = 8,      /* numbers that a filter compares */
	MAX_EVENTS = 8,          /* that a session samples; a power of 2 */
	MAX_RETURNS = 64,        /* the kernel's MAX_URETPROBE_DEPTH */
	MAX_GO_HEAD = 512,       /* bytes copied of a runtime.g or runtime.m */
	MAX_GAPS = 232,          /* unreadable pieces of stacks that are left out */
	STACK_PARTS = 8,         /* that are copied of a stack which is cut... */
	STACK_PART = 16 << 10,   /* ...of bytes each, at most */
	OUTER_PARTS = 4,         /* its last ones, where none are asked for */
	MAX_FRAMES = 256,        /* of a runtime's that are followed */
	MAX_FRAME_REGIONS = 128, /* of a runtime's */
	MAX_LABELS = 16,         /* of a goroutine */
	MAX_LABEL = 128,         /* bytes of a string of those */
	MAX_CONTEXT = 640,       /* bytes of what a thread works on */
	MAX_MAP = 64,            /* entries of a map that are looked through for that, and buckets */
	MAX_OBJECTS = 32,        /* that frames refer to, of which a word is copied */
	FRAMES_OF_PROCESS = 1 << 30, /* no tid is as large */
	GO_RUNTIME = 1 << 24,        /* nor this: what is added to a tgid for each further runtime of Go */
	MORE_RUNTIMES = 3,
	FRAME_LINK = 2,          /* words of a frame below it: where it returns to, and the frame pointer */
	MAX_CHUNKS = 6,          /* objects with frames of a stack, of which they have the inner ones */
	/* stack, its parts, word with g, its place, g, m, curg, its stack, g0, its stack; in
	 * place of what Go has, a runtime's word and frames */
	MAX_REGIONS = 9 + STACK_PARTS + MAX_GAPS, /* or MAX_FRAME_REGIONS, if fewer gaps */
};

/*
 * Events seen, each counted exactly once on the CPU where it fired:
 * samples + lost_* + skipped_*; the rest is about the samples delivered.
 */
struct counters {
	u64 samples;
	u64 usual;       /* of these, taken in a straight line (usual.h) */
	u64 stack_bytes; /* copied from user memory */
	u64 ring_bytes;  /* put in the ring */
	u64 lost_ring_full;  /* no room in the ring */
	u64 lost_nested;     /* another sample was being taken on this CPU */
	u64 lost_no_scratch; /* too many threads off the CPU, or blocks of memory held */
	u64 lost_foreign;    /* task outside of the loader's PID namespace */
	u64 lost_deferred;   /* put off (deferred.h) and not taken yet */
	u64 lost_number;     /* their weight, or what a filter asks for, could not be read */
	u64 skipped_idle;    /* the idle task */
	u64 skipped_filter;  /* a task that is not among those asked for */
	u64 skipped_period;  /* tracepoints or probes between two samples */
	u64 skipped_numbers; /* tracepoints or probes whose numbers are not those asked for */
	u64 skipped_short;   /* times off the CPU shorter than the least of interest */
	u64 skipped_rate;    /* times off the CPU at a rate above the limit */

	u64 unreadable_stack; /* samples whose stack could not be read at all */
	u64 partial_regs;     /* samples with USER_PARTIAL */
	u64 exited;           /* samples with USER_EXITED */
	u64 unsampled_time;   /* ns off the CPU in skipped_rate */
	u64 lost_wakers;      /* samples with OFF_CPU_WAKER for which there was no room */
	u64 lost_block_ends;  /* blocks given back, without room for the record */
	u64 missed_switches;  /* back to a thread, that were not reported */

	u64 started;      /* when the session was */
	u64 late_before;  /* by when a thread left the CPU that gets a late sample (on_waiting_task) */
	u64 on_cpu_since; /* since when the current task runs without a sample */
	u64 running;      /* its number in the first PID namespace */
	u64 window_start; /* of the time within which these were drawn */
	u64 window_rare;  /* times off the CPU from places with few of them */
	u64 window_frequent;

	u64 weights[MAX_EVENTS]; /* of tracepoints and probes since their last samples, by event; heap.h */
};

/* Where a thread's switches are counted: one slot is for those by force. */
enum slots { PREEMPTED_SLOT = 32, WINDOW_SLOTS = 36 };

/* Whether there is a sample of a thread's time off the CPU. */
enum sampled {
	SAMPLED_NOT = 0, /* there were too many */
	SAMPLED = 1,
	SAMPLED_LOST = 2,
};

/*
 * How a thread spends its time. What is too short for a sample of its own is
 * carried over to the thread's next one in the same state.
 */
struct thread_times {
	u64 left;  /* when it left the CPU; 0 while it is on one */
	u64 woken; /* since when it could run again; 0: it cannot */
	u64 late;  /* when it left the CPU for the time whose sample on_waiting_task wrote */
	u64 born;  /* when this was made */
	u64 carried[OFF_CPU_STATES]; /* ns, by enum off_cpu_state */
	u64 owed[OFF_CPU_STATES]; /* ns that no sample weighs yet */
	u64 window_start; /* of the time within which those counted in window were */
	u64 cgroup;
	u32 tgid, tid;  /* in the loader's PID namespace */
	u32 stands_for; /* of the sample of this time, in parts of ONE */
	u32 cost;       /* of taking it, ns */
	u8 off_cpu;     /* enum off_cpu_state */
	u8 sampled;     /* enum sampled */
	u8 is_thinned;  /* whether it had times without a sample */
	u8 unused;
	u32 place;      /* where it left the CPU (estimate.h) */
	u16 window[WINDOW_SLOTS];
	u8 comm[16];
};

/* A block of memory of a process... */
struct block_key {
	u64 address;
	u32 tgid, unused;
};

/* ...and the sample that was taken when it was handed out. */
struct block {
	u64 time; /* CLOCK_MONOTONIC, ns */
	u32 tid, unused;
};

/* Times of a thread off the CPU, alike in these. */
struct length_key {
	u32 tid, place;
	u16 state; /* enum off_cpu_state */
	u16 length;
};

/* What no sample of them weighs yet. */
struct length_account {
	u64 born; /* of the thread */
	u64 owed; /* ns */
};

/* Why user space should look at the rings. */
enum news {
	RING_FILLS,  /* one does */
	END_UNKNOWN, /* one has a sample of a thread whose stack's end is not known */
};

/* What is known of a process. */
enum process_flags {
	PROCESS_SAMPLED = 1 << 0, /* it is one of those asked for */
	PROCESS_IS_GO = 1 << 1,   /* there is a struct go_process of it */
	PROCESS_HAS_ENDS = 1 << 2, /* where the stacks of its threads end is in thread_ends */
	PROCESS_HAS_FRAMES = 1 << 3, /* there are struct thread_frames of its threads */
	PROCESS_STARTS_ABOVE = 1 << 4, /* its main thread's first frame is above its arguments */
	PROCESS_HAS_CONTEXTS = 1 << 5, /* there is a struct thread_context of it */
	NO_PROCESS = 0, /* its PROCESS_SAMPLED says that descendants are being entered */
	PROCESS_PAGE = 1 << 16,   /* flags in a value of the map... */
	PROCESS_PAGES = 64,       /* ...which has room for PID_MAX_LIMIT */
};

/* What is wanted of a thread's stack where the copy ends before, once that is known. */
struct stack_parts {
	u64 from[STACK_PARTS]; /* multiples of PAGE; 0: none */
};

/* What current and bounds, if that is not 0, are counted from, of threads that are met for the first time. */
enum frames_from {
	FROM_WORD,    /* the address that a word from_tp bytes behind the thread pointer has, if that is not 0 */
	FROM_THREAD,  /* the thread pointer */
	FROM_PROGRAM, /* 0, for the first thread of the process; of a program the address at which its code begins */
};

/* Where a runtime keeps the frames of a thread. */
struct thread_frames {
	u64 current; /* address of a word that leads to the frame that runs */
	u64 bounds;  /* address of what has the bounds of the thread's stack of frames; 0: what current leads to */
	u16 low, high; /* where in that is a word with where the stack begins, and one with where it ends */
	u16 head;    /* bytes of what current leads to, which are copied as well */
	u16 first;   /* where the address of the frame is in what current leads to, if that is none */
	u16 previous; /* where in a frame that of the one before is */
	u8 is_frame; /* whether current leads to the frame itself */
	u8 is_counted; /* whether at high there are the beginning of an area and its words, at whose end the stack ends */
	u8 is_down;  /* whether the stack grows downward: the frame that runs is where it begins */
	u8 has_values; /* whether values of frames are in another stack, which grows upward */
	u16 values, values_end; /* where in what current leads to is a word with where that begins, and in
				   the frame that runs one with where it ends */
	u16 before;  /* bytes before the word at current that are copied as well, */
	u32 bytes;   /* of a frame that is not in that stack, which are copied; 0: none are */
	u16 entry;   /* bytes of an entry, where each frame has a stack of them, which begins as low tells; or 0 */
	u16 last;    /* where in a frame the number of the last is, which one that has ended follows */
	u16 after;   /* and bytes behind that word */
	u16 below;   /* bytes below where a stack that grows downward begins that may be in it, as the words
			at low and high are out of date at times; such a stack that ends first is being moved */
	u16 chunk;   /* where in an object that first leads to the address of another one is, with frames of a stack;
			0: there are none. The word at current is an address on the thread's stack. */
	u64 beside;      /* address of a word that tells of such addresses, and is copied as well; or 0 */
	u64 chunk_base;  /* that is added to such an address, */
	u8 chunk_shift;  /* when it has been shifted by so much, */
	u8 is_wide;      /* and has 64 bits: else 32; */
	u8 chunk_mark;   /* or 0, or the lowest of four bits of such an address of which one is set, behind which
			    it begins */
	u8 from;         /* of a process: enum frames_from */
	u16 chunk_head;  /* bytes of an object before the words of its frames, */
	u16 chunk_low;   /* and where in it are the number of the first of these that is in use, */
	u16 chunk_words; /* how many there are, */
	u16 chunk_outer; /* and the address of the object with what is further out */
	u16 object;      /* where in a frame the address of an object is, of which a word is copied; 0: none is */
	u16 object_word; /* where that is in the object */
	s64 from_tp; /* of a process: see FROM_WORD */
};

/*
 * Where the threads of a process have the address of a record of what they work on (context.h): a
 * thread-local variable, in storage at a distance from the thread pointer, or whose address a vector has.
 */
struct thread_context {
	s64 from_tp; /* where from the thread pointer on there is the storage, or the address of the vector */
	u64 entry;   /* where in that is the address of the storage; 0: there is no vector */
	u64 module;  /* number of the storage in it, */
	s64 count;   /* and where in it is how many there are */
	u64 offset;  /* of the variable in the storage */
	/* Where the record is that of an object in a map of V8's, which the variable leads to (struct map_context): */
	u16 table;      /* where in a map the address of its table is; 0: it is no such variable */
	u16 table_head; /* bytes of a table before the counts of what it has */
	u16 record;     /* where in the object the record's address is, or 0 and then that */
	u16 unused;
};

/* Where to find the running goroutine's stacks in a Go process. */
struct go_process {
	s64 g_from_tp; /* address of the pointer to g, from the thread pointer */
	u64 g_slot;    /* address of the word that holds that instead; or 0 */
	u16 g_stack;   /* offset in g of stack.lo; stack.hi follows it */
	u16 g_m;       /* offset in g of m */
	u16 g_sched_sp;
	u16 m_g0;
	u16 m_curg;
	u16 m_gsignal;
	u16 m_vdso_sp; /* SP of the goroutine that calls the vdso on g0's stack */
	u16 g_head;    /* bytes to copy of a g, at most MAX_GO_HEAD */
	u16 m_head;    /* bytes to copy of an m, at most MAX_GO_HEAD */
	u16 calls_c;   /* whether it has cgo, so that C may call Go */
	u16 g_labels;  /* where a g has the address of its labels; 0: there are none */
	u16 others;    /* how many further runtimes the process has; of the first alone */
	u16 unused[2];
};

#endif
