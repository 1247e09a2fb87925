// Functions for AArch64 without CFI, with parts of their prologues and epilogues in functions that they
// call, as clang's machine outliner makes them.
	.text
	.macro function name
	.globl \name
	.type \name, %function
\name:
	.endm

function saves
	stp	x28, x27, [sp, #16]
	mov	x29, sp
	stp	x22, x21, [sp, #32]
	stp	x20, x19, [sp, #48]
	ret

function probes
	str	x28, [sp, #16]
	add	x29, sp, #0
	sub	sp, sp, #1, lsl #12
	str	xzr, [sp]
	ret

function restores
	add	sp, sp, #80
	ldp	x20, x19, [sp, #48]
	ldp	x22, x21, [sp, #32]
	ldp	x28, x27, [sp, #16]
	ret

function more
	sub	sp, sp, #32
	str	x0, [sp, #8]
	ret

function less
	mov	x0, #1
	add	sp, sp, #32
	ret

function leaf
	add	x0, x0, #1
	ret

function spreads
	stp	x29, x30, [sp, #-64]!
	bl	saves
	sub	sp, sp, #80
	mov	x19, x0
	bl	leaf
	cbz	x19, 1f
	bl	deep
1:	bl	restores
	ldp	x29, x30, [sp], #64
	ret

function deep
	stp	x29, x30, [sp, #-32]!
	bl	probes
	sub	sp, sp, #64
	bl	leaf
	add	x0, sp, #8
	mov	sp, x29
	ldr	x28, [sp, #16]
	ldp	x29, x30, [sp], #32
	ret

// Without a frame pointer.
function bare
	str	x30, [sp, #-16]!
	bl	more
	bl	leaf
	bl	less
	ldr	x30, [sp], #16
	ret

// With it, and with SP moved behind that.
function moves
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	bl	more
	bl	leaf
	bl	less
	mov	x0, #2
	ldp	x29, x30, [sp], #16
	ret

// With a jump that is never taken to what stands behind it.
function chooses
	stp	x29, x30, [sp, #-16]!
	mov	x29, sp
	cmp	x0, #3
	b.hi	beyond
	bl	leaf
	ldp	x29, x30, [sp], #16
	ret

function beyond
	hint	#34	// bti c
	mov	x0, #17
	ret

function main
	stp	x29, x30, [sp, #-32]!
	mov	x29, sp
	str	x19, [sp, #16]
	mov	x19, #30
1:	and	x0, x19, #1
	bl	spreads
	bl	deep
	bl	bare
	bl	moves
	bl	chooses
	subs	x19, x19, #1
	b.ne	1b
	mov	w0, #0
	ldr	x19, [sp, #16]
	ldp	x29, x30, [sp], #32
	ret
	.section .note.GNU-stack, "", %progbits
