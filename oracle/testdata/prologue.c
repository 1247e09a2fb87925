/* Code made at run time, as V8's baseline compiler makes it: its functions have another set up their
   frame, and jump to another that takes it off, with their arguments. Instead of setting up a frame that
   function may give up its own return address, and go on in place of its caller. With INDIRECT they
   call it by way of a table, which a register points to. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void prologue(void), epilogue(void);
long enter(void *function, long argument);

/* How often a frame is set up until a function is made anew. */
long countdown = 20;

void *table[] = {0, prologue};

__asm__(".text\n"
	".type prologue,@function\n"
	"prologue: subq $1,countdown(%rip)\n"
	"	je 1f\n"
	"	pop %r15\n"
	"	push %rbp\n"
	"	mov %rsp,%rbp\n"
	"	push %r12\n"
	"	push %r13\n"
	"	push %r15\n"
	"	ret\n"
	"1:	add $8,%rsp\n"
	"	push %rbp\n"
	"	mov %rsp,%rbp\n"
	"	push %rdi\n"
	"	call make\n"
	"	mov %rax,%rcx\n"
	"	pop %rdi\n"
	"	mov %rbp,%rsp\n"
	"	pop %rbp\n"
	"	push %rcx\n"
	"	ret\n"
	".size prologue,.-prologue\n"
	".type epilogue,@function\n"
	"epilogue: mov %rbp,%rsp\n"
	"	pop %rbp\n"
	"	pop %r8\n"
	"	lea (%rsp,%rbx,8),%rsp\n"
	"	push %r8\n"
	"	ret\n"
	".size epilogue,.-epilogue\n"
	".type enter,@function\n"
	"enter: .cfi_startproc\n"
	"	push %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset 6,-16\n"
	"	mov %rsp,%rbp\n"
	"	.cfi_def_cfa_register 6\n"
	"	push %rbx\n"
	"	.cfi_offset 3,-24\n"
	"	push %r15\n"
	"	.cfi_offset 15,-32\n"
	"	push %r13\n"
	"	.cfi_offset 13,-40\n"
	"	lea table(%rip),%r13\n"
	"	push %rsi\n"
	"	call *%rdi\n"
	"	mov -24(%rbp),%r13\n"
	"	mov -16(%rbp),%r15\n"
	"	mov -8(%rbp),%rbx\n"
	"	leave\n"
	"	.cfi_def_cfa 7,8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size enter,.-enter\n");

static unsigned char *at;

static void emit(const void *code, size_t n) { memcpy(at, code, n); at += n; }
#define EMIT(...) emit((const unsigned char[]){__VA_ARGS__}, sizeof((unsigned char[]){__VA_ARGS__}))

static void branch(int opcode, void *to) {
	int32_t distance = (intptr_t)to - (intptr_t)(at + 5);
	EMIT(opcode);
	emit(&distance, 4);
}

/* Makes a function of an argument n: n below 2, else the sum of what it is for n-1 and n-2. */
__attribute__((used)) void *make(void) {
	unsigned char *function = at = (unsigned char *)(((uintptr_t)at + 63) & ~63ul);
	EMIT(0xbb, 1, 0, 0, 0);                   /* mov $1,%ebx */
#ifdef INDIRECT
	EMIT(0x41, 0xff, 0x55, 0x08);             /* call *8(%r13) */
#else
	branch(0xe8, prologue);
#endif
	EMIT(0x48, 0x8b, 0x45, 0x10);             /* mov 16(%rbp),%rax */
	EMIT(0x48, 0x83, 0xf8, 0x02, 0x7c, 0x1d); /* cmp $2,%rax; jl out */
	EMIT(0x48, 0xff, 0xc8, 0x50);             /* dec %rax; push %rax */
	branch(0xe8, function);
	EMIT(0x50, 0x48, 0x8b, 0x45, 0x10);       /* push %rax; mov 16(%rbp),%rax */
	EMIT(0x48, 0x83, 0xe8, 0x02, 0x50);       /* sub $2,%rax; push %rax */
	branch(0xe8, function);
	EMIT(0x48, 0x03, 0x45, 0xe8, 0x90);       /* add -24(%rbp),%rax; nop */
	EMIT(0xbb, 1, 0, 0, 0);                   /* out: mov $1,%ebx */
	branch(0xe9, epilogue);
	return function;
}

int main(void) {
	void *near = (void *)(((uintptr_t)main & ~0xffful) + (64 << 20));
	at = mmap(near, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at != near)
		return 1;
	void *function = make();
	getppid();
	long sum = 0;
	for (long n = 1; n < 8; n++)
		sum += enter(function, n);
	printf("%ld\n", sum);
	return 0;
}
