/* What hand-written code does with the stack, as cryptographic libraries have
   it: the frame is found from a register that calls do not preserve, over calls
   of a subroutine that leaves it alone; and a loop lowers the stack pointer
   and takes the word along that holds the way back. The second has no CFI. */
#include <stdio.h>

long outer(long), moving(long);

__asm__(
	".text\n"
	".type outer, @function\n"
	"outer:\n"
	"	.cfi_startproc\n"
	"	mov %rsp, %rax\n"
	"	.cfi_def_cfa_register %rax\n"
	"	push %rbx\n"
	"	.cfi_offset %rbx, -16\n"
	"	push %rbp\n"
	"	.cfi_offset %rbp, -24\n"
	"	sub $200, %rsp\n"
	"	and $-64, %rsp\n"
	"	mov $5, %ecx\n"
	"1:	call inner\n"
	"	dec %ecx\n"
	"	jnz 1b\n"
	"	mov -16(%rax), %rbp\n"
	"	mov -8(%rax), %rbx\n"
	"	lea (%rax), %rsp\n"
	"	.cfi_def_cfa_register %rsp\n"
	"	mov %rdx, %rax\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size outer, . - outer\n"
	".type inner, @function\n"
	"inner:\n"
	"	.cfi_startproc\n"
	"	xor %r8d, %r8d\n"
	"	lea (%rdi,%rdi), %rdx\n"
	"1:	inc %r8\n"
	"	cmp $4, %r8\n"
	"	jb 1b\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size inner, . - inner\n"
	".type moving, @function\n"
	"moving:\n"
	"	mov %rsp, %rax\n"
	"	push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	sub $512, %rsp\n"
	"	and $-1024, %rsp\n"
	"	mov %rax, 0x78(%rsp)\n"
	"	mov %rdi, %r12\n"
	"	mov $3, %ecx\n"
	"1:	lea -64(%rsp), %rsp\n"
	"	push 0xb8(%rsp)\n"
	"	lea 8(%rsp), %rsp\n"
	"	mov -8(%rsp), %rbx\n"
	"	mov %rbx, 0x78(%rsp)\n"
	"	imul $7, %r12\n"
	"	xor %eax, %eax\n"
	"	mov %r12, %rbp\n"
	"	dec %ecx\n"
	"	jnz 1b\n"
	"	mov 0x78(%rsp), %rsi\n"
	"	mov %r12, %rax\n"
	"	mov -24(%rsi), %r12\n"
	"	mov -16(%rsi), %rbp\n"
	"	mov -8(%rsi), %rbx\n"
	"	lea (%rsi), %rsp\n"
	"	ret\n"
	".size moving, . - moving\n");

__attribute__((noinline)) static long both(long n) { return outer(n) + moving(n); }

int main(void) {
	printf("%ld\n", both(3) + both(4));
	return 0;
}
