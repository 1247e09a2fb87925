// Runs code on a stack in the heap that calls C on the thread's, as OCaml 5 does: at
// different depths, so that what is on the stack of C is never the same for long.
// Usage: ocamlstack SECONDS
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

// What runtime/caml/fiber.h has of a stack, and runtime/caml/domain_state.tbl of a domain.
struct stack {
  char *sp;
  void *exceptions;
  char *handler; // where the stack ends
};

static struct {
  void *before[5];
  struct stack *current; // at 0x28
  void *between[2];
  char *c_stack; // at 0x40
} domain;

register void *state __asm__("r14");

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) long on_c(long n) {
  volatile long sum = 0;
  for (int i = 0; i < 20000; i++)
    sum += i * n;
  return sum;
}

long with_stack(long (*f)(long), long n, void *top, void *state);
long call_c(long n), call_direct(long n);
__asm__(
    // caml_start_program: the link that calls of C leave SP in is on the stack of C.
    ".type with_stack,@function\n"
    "with_stack:\n"
    ".cfi_startproc\n"
    "push %rbp\n"
    ".cfi_def_cfa_offset 16\n"
    ".cfi_offset %rbp,-16\n"
    "mov %rsp,%rbp\n"
    ".cfi_def_cfa_register %rbp\n"
    "push %r14\n"
    ".cfi_offset %r14,-24\n"
    "sub $24,%rsp\n"
    "mov %rcx,%r14\n"
    "mov %rsp,0x40(%r14)\n"
    "mov %rdx,%rsp\n"
    "mov %rdi,%rax\n"
    "mov %rsi,%rdi\n"
    "call *%rax\n"
    "mov -8(%rbp),%r14\n"
    "mov %rbp,%rsp\n"
    "pop %rbp\n"
    ".cfi_def_cfa %rsp,8\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size with_stack,.-with_stack\n"
    // caml_c_call
    ".type call_c,@function\n"
    "call_c:\n"
    ".cfi_startproc\n"
    ".cfi_signal_frame\n"
    "mov 0x28(%r14),%r10\n"
    "mov %rsp,(%r10)\n"
    "mov 0x40(%r14),%r11\n"
    "mov %rsp,8(%r11)\n"
    "mov %r10,(%r11)\n"
    "mov %r11,%rsp\n"
    ".cfi_remember_state\n"
    ".cfi_escape 0x0f,5,0x77,8,6,0x23,8\n" // CFA: the word at SP+8, plus 8
    "lea on_c(%rip),%rax\n"
    "call *%rax\n"
    "mov 8(%rsp),%rsp\n"
    ".cfi_restore_state\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size call_c,.-call_c\n"
    // What OCaml's compiler makes of a call of C that neither allocates nor raises.
    ".type call_direct,@function\n"
    "call_direct:\n"
    ".cfi_startproc\n"
    "push %rbx\n"
    ".cfi_def_cfa_offset 16\n"
    ".cfi_offset %rbx,-16\n"
    "mov %rsp,%rbx\n"
    ".cfi_remember_state\n"
    ".cfi_def_cfa_register %rbx\n"
    "mov 0x40(%r14),%rsp\n"
    "call on_c\n"
    "mov %rbx,%rsp\n"
    ".cfi_restore_state\n"
    "pop %rbx\n"
    ".cfi_def_cfa_offset 8\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size call_direct,.-call_direct\n");

__attribute__((noinline)) static long ocaml(long n) { return n > 0 ? ocaml(n - 1) + 1 : call_c(1) + call_direct(2); }

static double seconds;

__attribute__((noinline)) static long program(long n) {
  long sum = 0;
  while (cpu_seconds() < seconds)
    for (int i = 0; i < 30; i++) // a thread that is to stop does so in a system call, if it makes many
      sum += ocaml(n++ % 7);
  return sum;
}

int main(int argc, char **argv) {
  const size_t size = 1 << 16;
  seconds = argc > 1 ? atof(argv[1]) : 1;
  char *stack = mmap((void *)0x10000000000, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED)
    return 1;
  domain.current = (struct stack *)stack;
  domain.current->handler = stack + size - 64;
  return with_stack(program, 0, domain.current->handler, &domain) == 0;
}
