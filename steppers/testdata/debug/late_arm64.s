// Functions for AArch64 whose CFI tells late of what their first and last instructions do.
	.text

// As GCC 14 makes them, with X29 loaded before other registers.
	.globl record_first
	.type record_first, %function
record_first:
	.cfi_startproc
	sub	sp, sp, #112
	.cfi_def_cfa_offset 112
	stp	x29, x30, [sp, #48]
	.cfi_offset 29, -64
	.cfi_offset 30, -56
	add	x29, sp, #48
	.cfi_def_cfa 29, 64
	stp	x19, x20, [sp, #64]
	.cfi_offset 19, -48
	.cfi_offset 20, -40
	mov	x19, #1
	bl	leaf
record_first_called:
	cbz	x19, 2f
record_first_loads:
	ldp	x29, x30, [sp, #48]
	ldp	x19, x20, [sp, #64]
	mov	x0, #0
	add	sp, sp, #112
	.cfi_remember_state
	.cfi_restore 19
	.cfi_restore 20
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa 31, 0
	ret
	.cfi_restore_state
2:	b	record_first_loads
	.cfi_endproc

// The same with a call of another function in place of a return.
	.globl goes_on
	.type goes_on, %function
goes_on:
	.cfi_startproc
	sub	sp, sp, #48
	.cfi_def_cfa_offset 48
	stp	x29, x30, [sp, #16]
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	add	x29, sp, #16
	.cfi_def_cfa 29, 32
	bl	leaf
goes_on_called:
	ldp	x29, x30, [sp, #16]
	mov	x0, #1
	add	sp, sp, #48
	b	leaf
	.cfi_endproc

// Like it, but jumps to a part of itself, with its frame and with what is not its X29.
	.globl apart
	.type apart, %function
apart:	.cfi_startproc
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	mov	x29, sp
	.cfi_def_cfa_register 29
apart_jumps:
	mov	x0, #1
	b	apart_rest
	.cfi_endproc
	.type apart_rest, %function
apart_rest:
	.cfi_startproc
	.cfi_def_cfa 29, 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	bl	leaf
apart_called:
	ldp	x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa 31, 0
	ret
	.cfi_endproc

// As clang makes them without asynchronous tables: with a frame pointer,
	.globl one_row
	.type one_row, %function
one_row:
	.cfi_startproc
	sub	sp, sp, #48
	stp	x29, x30, [sp, #16]
	str	x19, [sp, #32]
	add	x29, sp, #16
	.cfi_def_cfa 29, 32
	.cfi_offset 19, -16
	.cfi_offset 30, -24
	.cfi_offset 29, -32
	bl	leaf
one_row_called:
	ldp	x29, x30, [sp, #16]
	ldr	x19, [sp, #32]
	add	sp, sp, #48
	ret
	.cfi_endproc

// without,
	.globl no_pointer
	.type no_pointer, %function
no_pointer:
	.cfi_startproc
	str	x30, [sp, #-64]!
	stp	x22, x21, [sp, #32]
	stp	x20, x19, [sp, #48]
	.cfi_def_cfa_offset 64
	.cfi_offset 19, -8
	.cfi_offset 20, -16
	.cfi_offset 21, -24
	.cfi_offset 22, -32
	.cfi_offset 30, -64
	bl	leaf
no_pointer_called:
	ldp	x20, x19, [sp, #48]
	ldp	x22, x21, [sp, #32]
	ldr	x30, [sp], #64
	ret
	.cfi_endproc

// and with a call in place of the return.
	.globl no_return
	.type no_return, %function
no_return:
	.cfi_startproc
	sub	sp, sp, #32
	stp	x30, x19, [sp, #16]
	.cfi_def_cfa_offset 32
	.cfi_offset 19, -8
	.cfi_offset 30, -16
	bl	leaf
no_return_called:
	ldp	x30, x19, [sp, #16]
	add	sp, sp, #32
	b	leaf
	.cfi_endproc

	.globl leaf
	.type leaf, %function
leaf:	.cfi_startproc
	sub	sp, sp, #16
	.cfi_def_cfa_offset 16
	str	x0, [sp, #8]
	add	sp, sp, #16
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc

	.globl main
	.type main, %function
main:	.cfi_startproc
	stp	x19, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset 19, -16
	.cfi_offset 30, -8
	mov	x19, #30
1:	bl	record_first
	bl	goes_on
	bl	apart
	bl	one_row
	bl	no_pointer
	bl	no_return
	subs	x19, x19, #1
	b.ne	1b
	mov	w0, #0
	ldp	x19, x30, [sp], #16
	.cfi_restore 19
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	ret
	.cfi_endproc
	.section .note.GNU-stack, "", %progbits
