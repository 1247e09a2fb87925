/* A program whose functions are instrumented as Dyninst does it on x86-64: a
   jump in place of five bytes leads to a base tramp, which saves what the code
   uses, builds a frame that tells where it came from, calls a function, and
   goes back.

   As it is, the program instruments itself while it runs: the tramps are
   copied to memory of no file, and their frames hold the mark that first-party
   walks go by. With REWRITTEN they are in the file, as the binary rewriter
   leaves them: whoever builds it writes the jumps, and the link-time addresses
   that the frames hold. */
#define NOINLINE __attribute__((noinline, noclone))
#define POINT __attribute__((noinline, noclone, patchable_function_entry(5)))

/* A place for a jump in the middle of a function. */
#define MIDDLE(name) asm volatile(".globl " name "\n" name ": .byte 0x0f, 0x1f, 0x44, 0x00, 0x00" ::: "memory")

volatile long calls;
static volatile long sink;

/* What the instrumentation calls, with frames of its own. */
NOINLINE long count(long n) { return n ? count(n - 1) + n + sink : calls; }
NOINLINE void snippet(void) {
	volatile char pad[24];
	pad[calls & 7] = calls;
	calls++;
	sink += count(2) + pad[0];
}

POINT long leaf(long a) { return a * 3 + sink; }
POINT void plain(long a) {
	long b = leaf(a), c = leaf(b);
	sink += leaf(b + c) + b * c;
}
POINT void rec(long n) {
	volatile char pad[40];
	pad[n] = n;
	if (n)
		rec(n - 1);
	MIDDLE("rec_middle");
	plain(n);
	sink += pad[n];
}
POINT void framed(long n) {
	volatile char *pad = __builtin_alloca(16 + 8 * n);
	pad[n] = n;
	rec(n);
	MIDDLE("framed_middle");
	sink += pad[n];
}

#define SAVE "	push %rax\n	push %rcx\n	push %rdx\n	push %rsi\n	push %rdi\n" \
             "	push %r8\n	push %r9\n	push %r10\n	push %r11\n" \
             "	lahf\n	seto %al\n	push %rax\n"
#define RESTORE "	pop %rax\n	add $0x7f, %al\n	sahf\n	pop %r11\n	pop %r10\n	pop %r9\n	pop %r8\n" \
                "	pop %rdi\n	pop %rsi\n	pop %rdx\n	pop %rcx\n	pop %rax\n"

#ifdef REWRITTEN
/* 128 bytes of red zone and ten words are between the frame and the code that
   was instrumented: 0xd0 bytes. */
#define TRAMP(n, point)                                                                       \
	asm("	.section .dyninstInst, \"ax\", @progbits\n	.balign 16\n"                         \
	    "	.type dyninstBT_" #n "_128_d0, @function\ndyninstBT_" #n "_128_d0:\n"                 \
	    "tramp_" #point ":\n"                                                                 \
	    "	lea -128(%rsp), %rsp\n" SAVE                                                          \
	    "	movabs $0x1122334455667788, %rax\npoint_" #point ":\n	push %rax\n"                  \
	    "	push %rbp\n	mov %rsp, %rbp\nup_" #point ":\n"                                         \
	    "	lea -64(%rsp), %rsp\n	call snippet\n	leave\ndown_" #point ":\n	pop %rax\n"           \
	    RESTORE "	lea 128(%rsp), %rsp\n	jmp " #point "+5\n"                                   \
	    "	.org tramp_" #point "+128, 0xcc\nend_" #point ":\n	.text\n")
#else
/* SP of the instrumented code is at the aligned SP; the scratch register and
   the flags are kept below it meanwhile. */
#define TRAMP(n, point)                                                                       \
	asm("	.section .tramps, \"a\", @progbits\n	.balign 16\n"                                 \
	    "tramp_" #point ":\n"                                                                 \
	    "	lea -184(%rsp), %rsp\n	mov %rax, 8(%rsp)\n	lahf\n	seto %al\n	mov %rax, 16(%rsp)\n"   \
	    "	lea 184(%rsp), %rax\n	and $-32, %rsp\n	mov %rax, (%rsp)\n"                       \
	    "	mov -168(%rax), %rax\n	add $0x7f, %al\n	sahf\n"                                     \
	    "	mov (%rsp), %rax\n	mov -176(%rax), %rax\n" SAVE                                       \
	    "	mov 80(%rsp), %rcx\n	push %rcx\n	mov $0xbeefdead, %ecx\n	push %rcx\n"                \
	    "	movabs $" #point ", %rcx\n	push %rcx\n"                                               \
	    "	push %rbp\n	mov %rsp, %rbp\nup_" #point ":\n"                                         \
	    "	lea -16(%rsp), %rsp\n	movabs $snippet, %rax\n	call *%rax\n	leave\ndown_" #point ":\n" \
	    "	pop %rcx\n	pop %rcx\n	pop %rcx\n" RESTORE "	mov (%rsp), %rsp\n"                       \
	    "	jmp *0f(%rip)\n0:	.quad " #point "+5\n	.org tramp_" #point "+192, 0xcc\n"             \
	    "end_" #point ":\n	.text\n")
#endif
TRAMP(1, leaf);
TRAMP(2, plain);
TRAMP(3, rec);
TRAMP(4, framed);
TRAMP(5, rec_middle);
TRAMP(6, framed_middle);

#ifndef REWRITTEN
#include <string.h>
#include <sys/mman.h>

/* Where the tramps of the program run. */
#define HEAP ((char *)0x20000000)

extern char tramp_leaf[], end_framed_middle[], rec_middle[], framed_middle[], etext[];
extern char tramp_plain[], tramp_rec[], tramp_framed[], tramp_rec_middle[], tramp_framed_middle[];

static void patch(char *point, char *tramp) {
	int distance = HEAP + (tramp - tramp_leaf) - (point + 5);
	*point = (char)0xe9;
	memcpy(point + 1, &distance, 4);
}

static void instrument(void) {
	mmap(HEAP, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	memcpy(HEAP, tramp_leaf, end_framed_middle - tramp_leaf);
	char *text = (char *)((long)leaf & -4096);
	mprotect(text, etext - text, PROT_READ | PROT_WRITE | PROT_EXEC);
	patch((char *)leaf, tramp_leaf);
	patch((char *)plain, tramp_plain);
	patch((char *)rec, tramp_rec);
	patch((char *)framed, tramp_framed);
	patch(rec_middle, tramp_rec_middle);
	patch(framed_middle, tramp_framed_middle);
}
#else
static void instrument(void) {}
#endif

int main(void) {
	instrument();
	for (long i = 0; i < 3; i++)
		framed(i);
	return calls == 0;
}
