/* Coroutines that hand-written code makes and changes between. Those of one
   kind begin as Boost.Context and PHP have them: the code at their start, which
   the stack is made to go on at, leaves the address of what follows it for the
   function to return to. Those of the other begin as D and Crystal have them:
   at the function itself, above which the stack ends with a null return
   address; and the CFI of the code that changes between them says nothing of
   what it pushes. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline))
enum { SIZE = 1 << 16 };

void *make_jumped(void *end, void (*f)(void *));
void *jump(void *to, void *arg);
void swap(void **from, void **to, void *arg);

__asm__(
	".text\n"
	".type make_jumped, @function\n"
	"make_jumped:\n"
	"	lea -0x40(%rdi), %rax\n"
	"	mov %rsi, 0x28(%rax)\n"
	"	lea 1f(%rip), %rcx\n"
	"	mov %rcx, 0x38(%rax)\n"
	"	lea 2f(%rip), %rcx\n"
	"	mov %rcx, 0x30(%rax)\n"
	"	ret\n"
	"1:	push %rbp\n"
	"	jmp *%rbx\n"
	"2:	xor %edi, %edi\n"
	"	call abort@PLT\n"
	"	hlt\n"
	".size make_jumped, . - make_jumped\n"
	".type jump, @function\n"
	"jump:\n"
	"	lea -0x38(%rsp), %rsp\n"
	"	mov %r12, 0x08(%rsp)\n"
	"	mov %r13, 0x10(%rsp)\n"
	"	mov %r14, 0x18(%rsp)\n"
	"	mov %r15, 0x20(%rsp)\n"
	"	mov %rbx, 0x28(%rsp)\n"
	"	mov %rbp, 0x30(%rsp)\n"
	"	mov %rsp, %rax\n"
	"	mov %rdi, %rsp\n"
	"	mov 0x38(%rsp), %r8\n"
	"	mov 0x08(%rsp), %r12\n"
	"	mov 0x10(%rsp), %r13\n"
	"	mov 0x18(%rsp), %r14\n"
	"	mov 0x20(%rsp), %r15\n"
	"	mov 0x28(%rsp), %rbx\n"
	"	mov 0x30(%rsp), %rbp\n"
	"	lea 0x40(%rsp), %rsp\n"
	"	mov %rax, %rdi\n"
	"	jmp *%r8\n"
	".size jump, . - jump\n"
	".type swap, @function\n"
	"swap:\n"
	"	.cfi_startproc\n"
	"	push %rdx\n"
	"	push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	push %r13\n"
	"	push %r14\n"
	"	push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov (%rsi), %rsp\n"
	"	pop %r15\n"
	"	pop %r14\n"
	"	pop %r13\n"
	"	pop %r12\n"
	"	pop %rbp\n"
	"	pop %rbx\n"
	"	pop %rdi\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size swap, . - swap\n");

static volatile long sink;
static void *first, *other;

NOINLINE static long deep(int n) { return n ? deep(n - 1) * 2 + 1 : 1; }

NOINLINE static void hop(int n) {
	if (n) {
		hop(n - 1);
		sink++;
	} else
		swap(&other, &first, 0);
}

static void jumped(void *from) {
	for (int i = 0;; i++) {
		sink += deep(i);
		from = jump(from, 0);
	}
}

static void swapped(void *arg) {
	for (int i = 0;; i++) {
		sink += deep(i);
		hop(i);
	}
}

int main(void) {
	void *co = make_jumped(malloc(SIZE) + SIZE - 64, jumped);
	for (int i = 0; i < 4; i++)
		co = jump(co, 0);
	char *stack = mmap(0, SIZE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(stack + SIZE, 4096, PROT_NONE);
	void **top = (void **)(stack + SIZE) - 2;
	top[0] = swapped;
	other = top - 7;
	for (int i = 0; i < 4; i++)
		swap(&first, &other, 0);
	printf("%ld\n", sink);
	return 0;
}
