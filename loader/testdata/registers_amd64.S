/*
 * A program whose registers are known. Without arguments it spins in user
 * code with every general register set; with one it calls sched_yield without
 * end, again with every register set that a system call leaves alone.
 * It writes one byte when it is about to begin.
 */
	.globl _start
	.text
_start:
	mov	(%rsp), %r15		/* argc */
	mov	$1, %eax		/* write(1, ".", 1) */
	mov	$1, %edi
	lea	dot(%rip), %rsi
	mov	$1, %edx
	syscall
	cmp	$1, %r15
	mov	$0x1111111111111101, %rax
	mov	$0x1111111111111102, %rdx
	mov	$0x1111111111111103, %rcx
	mov	$0x1111111111111104, %rbx
	mov	$0x1111111111111105, %rsi
	mov	$0x1111111111111106, %rdi
	mov	$0x1111111111111107, %rbp
	mov	$0x1111111111111109, %r8
	mov	$0x111111111111110a, %r9
	mov	$0x111111111111110b, %r10
	mov	$0x111111111111110c, %r11
	mov	$0x111111111111110d, %r12
	mov	$0x111111111111110e, %r13
	mov	$0x111111111111110f, %r14
	mov	$0x1111111111111110, %r15
	jne	yield
	.globl	spin
spin:
	jmp	spin
yield:
	mov	$24, %eax
	syscall
	.globl	yielded
yielded:
	jmp	yield

	.section .rodata
dot:	.ascii	"."
	.section .note.GNU-stack, "", @progbits
