/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What every BPF program needs: integer types, map declarations, the helpers
 * used (by their number in the kernel's interface), and reads of kernel
 * structures that the loader relocates to the running kernel (CO-RE).
 */
#ifndef SWBPF_BPF_H
#define SWBPF_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A function that the verifier checks once, whatever calls it. */
#define GLOBAL __attribute__((noinline))
/* A function whose code, and use of the stack, is not its callers': for what is seldom met. */
#define APART static __attribute__((noinline))
#define unlikely(x) __builtin_expect(!!(x), 0)
#define offsetof(type, member) __builtin_offsetof(type, member)

/*
 * Keeps the compiler from knowing the value of x. Without it a bound that the
 * compiler can prove, but the verifier cannot, is optimised away.
 */
#define hide(x) asm volatile("" : "+r"(x))

/* Keeps memory accesses on their side of this line. */
#define compiler_barrier() asm volatile("" ::: "memory")

/* A function of the kernel that is called by name; NULL where it has none of it. */
#define KFUNC extern __attribute__((weak, section(".ksyms")))

/* A map declaration is a struct of these members, in section ".maps". */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

enum map_type {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PROG_ARRAY = 3,
	MAP_LRU_HASH = 9,
	MAP_RINGBUF = 27,
};

enum { BPF_NOEXIST = 1 };
enum { BPF_RB_FORCE_WAKEUP = 1 << 1 };
enum { MAP_MMAPABLE = 1 << 10 }; /* user space may map its memory */

static void *(*const bpf_map_lookup_elem)(const void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(const void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(const void *map, const void *key) = (void *)3;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u64 (*const bpf_get_prandom_u32)(void) = (void *)7; /* of 32 bits */
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static void *(*const bpf_get_current_task)(void) = (void *)35;
static long (*const bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*const bpf_get_stack)(void *ctx, void *buf, u32 size, u64 flags) = (void *)67;
static long (*const bpf_probe_read_user)(void *dst, u32 size, const void *addr) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *dst, u32 size, const void *addr) = (void *)113;
static long (*const bpf_seq_write)(void *seq, const void *data, u32 size) = (void *)127;
static long (*const bpf_ringbuf_output)(void *ring, const void *data, u64 size, u64 flags) = (void *)130;
static long (*const bpf_get_task_stack)(void *task, void *buf, u32 size, u64 flags) = (void *)141;
static void *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_snprintf)(char *to, u32 size, const char *format, const void *data, u32 data_size) = (void *)165;
static void *(*const bpf_task_pt_regs)(void *task) = (void *)175;
static long (*const bpf_kallsyms_lookup_name)(const char *name, u32 size, u64 flags, u64 *addr) = (void *)179;

/* The address of ptr->field in the running kernel. */
#define kernel_address(ptr, field) __builtin_preserve_access_index(&(ptr)->field)

/* The value of ptr->field; zero when it cannot be read. */
#define kernel_read(ptr, field)                                               \
	({                                                                    \
		typeof((ptr)->field) value_;                                  \
		bpf_probe_read_kernel(&value_, sizeof(value_), kernel_address(ptr, field)); \
		value_;                                                       \
	})

/* Whether the running kernel has ptr->field. */
#define kernel_has(ptr, field) __builtin_preserve_field_info((ptr)->field, 2)

/* The value of ptr->field, unsigned: a bit field, or one of which kernels differ in size. */
#define kernel_read_bits(ptr, field)                                          \
	({                                                                    \
		u64 word_ = 0;                                                \
		bpf_probe_read_kernel(&word_, __builtin_preserve_field_info((ptr)->field, 1), \
				      (void *)(ptr) + __builtin_preserve_field_info((ptr)->field, 0)); \
		word_ <<= __builtin_preserve_field_info((ptr)->field, 4);     \
		word_ >> __builtin_preserve_field_info((ptr)->field, 5);      \
	})

/* The size of a type in the running kernel. */
#define kernel_sizeof(type) __builtin_preserve_type_info(*(typeof(type) *)0, 1)

#endif
