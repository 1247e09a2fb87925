# Code that is generated later, all of it with one frame: see buffer.c.
	.section .generated, "ax", @nobits
	.globl generated
	.type generated, @function
generated:
	.cfi_startproc
	.cfi_def_cfa rsp, 1216
	.cfi_offset rbp, -16
	.cfi_offset rbx, -24
	.cfi_offset r12, -32
	.cfi_offset r13, -40
	.cfi_offset r14, -48
	.cfi_offset r15, -56
	.skip 4000
	.cfi_endproc
	.size generated, . - generated
	.section .note.GNU-stack, "", @progbits
