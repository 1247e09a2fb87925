/* A 32-bit program that spins with every general register set. */
	.code32
	.globl _start
	.text
_start:
	mov	$4, %eax		/* write(1, ".", 1) */
	mov	$1, %ebx
	mov	$dot, %ecx
	mov	$1, %edx
	int	$0x80
	mov	$0x11111101, %eax
	mov	$0x11111102, %ecx
	mov	$0x11111103, %edx
	mov	$0x11111104, %ebx
	mov	$0x11111106, %ebp
	mov	$0x11111107, %esi
	mov	$0x11111108, %edi
	.globl	spin
spin:
	jmp	spin

	.section .rodata
dot:	.ascii	"."
	.section .note.GNU-stack, "", @progbits
