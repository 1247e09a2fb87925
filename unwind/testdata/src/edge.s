# Call frame information that compilers rarely or never emit, for x86-64.
# Assembled by the tests with as, linked with ld.
	.text
	.globl _start
_start:
	.cfi_startproc
	.cfi_undefined rip
	nop
	.cfi_endproc

# States nested two deep, and the frame pointer given back to the CIE's rule.
nested:
	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	.cfi_remember_state
	push %rbx
	.cfi_def_cfa_offset 24
	.cfi_offset rbx, -24
	.cfi_remember_state
	pop %rbx
	.cfi_restore rbx
	.cfi_def_cfa_offset 16
	pop %rbp
	.cfi_restore rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_restore_state
	pop %rbx
	.cfi_def_cfa_offset 16
	.cfi_restore rbx
	.cfi_restore_state
	pop %rbp
	.cfi_def_cfa_offset 8
	.cfi_restore rbp
	.cfi_restore rip
	ret
	.cfi_endproc

# val_offset and val_offset_sf are factored; val_expression; register.
values:
	.cfi_startproc
	.cfi_val_offset r12, -32
	nop
	.cfi_val_offset r13, 48
	nop
	.cfi_escape 0x15, 14, 0x7e         # DW_CFA_val_offset_sf r14, -2
	nop
	.cfi_escape 0x14, 15, 3            # DW_CFA_val_offset r15, 3
	nop
	.cfi_escape 0x16, 3, 2, 0x77, 0x10 # DW_CFA_val_expression rbx: breg7 16
	nop
	.cfi_escape 0x10, 6, 2, 0x76, 0x08 # DW_CFA_expression rbp: breg6 8
	nop
	.cfi_register rip, rcx
	nop
	.cfi_same_value rbx
	nop
	.cfi_undefined r12
	nop
	.cfi_escape 0x06, 12               # DW_CFA_restore_extended r12
	nop
	.cfi_endproc

# Signed and extended forms, far registers and far offsets.
extended:
	.cfi_startproc
	.cfi_escape 0x12, 6, 0x7c          # DW_CFA_def_cfa_sf rbp, -4: +32
	nop
	.cfi_escape 0x13, 0x78             # DW_CFA_def_cfa_offset_sf -8: +64
	nop
	.cfi_escape 0x11, 3, 0x7d          # DW_CFA_offset_extended_sf rbx, -3: c+24
	nop
	.cfi_escape 0x05, 12, 5            # DW_CFA_offset_extended r12, 5: c-40
	nop
	.cfi_escape 0x2f, 13, 6            # DW_CFA_GNU_negative_offset_extended r13, 6: c+48
	nop
	.cfi_escape 0x2e, 0x20             # DW_CFA_GNU_args_size 32
	nop
	.cfi_offset xmm5, -160
	nop
	.cfi_restore xmm5
	nop
	.cfi_offset r14, -400000
	nop
	.cfi_def_cfa rsp, 0x7000000
	nop
	.cfi_endproc

# Locations in all sizes.
advance:
	.cfi_startproc
	.skip 63, 0x90
	.cfi_def_cfa_offset 16
	.skip 64, 0x90
	.cfi_def_cfa_offset 24
	.skip 255, 0x90
	.cfi_def_cfa_offset 32
	.skip 256, 0x90
	.cfi_def_cfa_offset 40
	.skip 65535, 0x90
	.cfi_def_cfa_offset 48
	.skip 65536, 0x90
	.cfi_def_cfa_offset 56
	.skip 5000, 0x90
	.cfi_endproc

# The return address elsewhere: in another column, and not there.
column:
	.cfi_startproc
	.cfi_return_column rdx
	.cfi_offset rdx, -64
	nop
	.cfi_undefined rdx
	nop
	.cfi_endproc

column_vector:
	.cfi_startproc
	.cfi_return_column 40
	.cfi_offset 40, -56
	nop
	.cfi_endproc

# A realigned stack as hand-written code describes it, and a CFA by expression
# that is not of that form.
realigned:
	.cfi_startproc
	.cfi_escape 0x0f, 5, 0x77, 40, 0x06, 0x23, 8 # breg7 40; deref; plus_uconst 8
	.cfi_offset rbx, -16
	nop
	.cfi_escape 0x0f, 4, 0x77, 8, 0x11, 0x70     # breg7 8; consts -16
	nop
	.cfi_endproc

# A signal trampoline.
trampoline:
	.cfi_startproc
	.cfi_signal_frame
	.cfi_def_cfa rsp, 160
	.cfi_offset rip, -8
	.cfi_offset rax, -16
	.cfi_offset rsp, -24
	nop
	.cfi_endproc
