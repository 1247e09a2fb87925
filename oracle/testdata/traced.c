/* A program that traces its own functions, as mcount and ftrace do: compiled
   with -pg -mfentry, each function calls __fentry__ first, which keeps the
   return address in a table and puts return_trampoline in its place. */
#define NOINLINE __attribute__((noinline))
#define UNTRACED __attribute__((no_instrument_function))

struct call { unsigned long slot, ra; };
struct { volatile long depth; volatile struct call calls[256]; } call_table;

extern char return_trampoline[];

UNTRACED void enter_function(volatile unsigned long *slot) {
	long n = call_table.depth;
	call_table.calls[n].slot = (unsigned long)slot;
	call_table.calls[n].ra = *slot;
	call_table.depth = n + 1;
	*slot = (unsigned long)return_trampoline;
}

UNTRACED unsigned long leave_function(void) {
	call_table.depth--;
	return call_table.calls[call_table.depth].ra;
}

asm("	.text\n"
    "	.globl __fentry__\n"
    "	.type __fentry__, @function\n"
    "__fentry__:\n"
    "	.cfi_startproc\n"
    "	push %rdi\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rsi\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rdx\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rax\n	.cfi_adjust_cfa_offset 8\n"
    "	lea 40(%rsp), %rdi\n"
    "	call enter_function\n"
    "	pop %rax\n	.cfi_adjust_cfa_offset -8\n"
    "	pop %rdx\n	.cfi_adjust_cfa_offset -8\n"
    "	pop %rsi\n	.cfi_adjust_cfa_offset -8\n"
    "	pop %rdi\n	.cfi_adjust_cfa_offset -8\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size __fentry__, .-__fentry__\n"
    /* Entered by the return of a traced function, so that SP is above the
       return address. The CFI cannot tell where the original is. */
    "	.globl return_trampoline\n"
    "	.type return_trampoline, @function\n"
    "return_trampoline:\n"
    "	.cfi_startproc\n"
    "	.cfi_def_cfa_offset 0\n"
    "	sub $8, %rsp\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rax\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rdx\n	.cfi_adjust_cfa_offset 8\n"
    "	push %rcx\n	.cfi_adjust_cfa_offset 8\n"
    "	call leave_function\n"
    "	mov %rax, 24(%rsp)\n"
    "	pop %rcx\n	.cfi_adjust_cfa_offset -8\n"
    "	pop %rdx\n	.cfi_adjust_cfa_offset -8\n"
    "	pop %rax\n	.cfi_adjust_cfa_offset -8\n"
    "	ret\n"
    "	.cfi_endproc\n"
    "	.size return_trampoline, .-return_trampoline\n");

static volatile long sink;

NOINLINE long leaf(long a) { return a * 3 + sink; }
NOINLINE void tail(long a) { sink += leaf(a); }
NOINLINE void jumper(long a) { sink++; tail(a + 1); }
NOINLINE void plain(long a) { jumper(a); sink += leaf(a); }
NOINLINE void rec(long n) {
	volatile char pad[40];
	pad[n] = n;
	if (n)
		rec(n - 1);
	else
		plain(n);
	sink += pad[n];
}
NOINLINE void framed(long n) {
	volatile char *pad = __builtin_alloca(16 + 8 * n);
	pad[n] = n;
	rec(n);
	sink += pad[n];
}

int main(void) {
	for (long i = 0; i < 6; i++) {
		framed(i);
		rec(2);
	}
	return 0;
}
