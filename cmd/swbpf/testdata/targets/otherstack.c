// Calls with another stack, as C calls Lisp, and Rust where a stack might not
// suffice: one that is mapped far from the first. Usage: otherstack SECONDS
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double seconds;

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static long spin(void) {
  volatile long sum = 0;
  while (cpu_seconds() < seconds)
    for (int i = 0; i < 100000; i++)
      sum += i;
  return sum;
}

__attribute__((noinline)) static long inner(long n) { return (n > 0 ? inner(n - 1) : spin()) + 1; }

long with_stack(long (*f)(long), long n, void *top);
__asm__(
    ".globl with_stack\n"
    ".type with_stack,@function\n"
    "with_stack:\n"
    ".cfi_startproc\n"
    "push %rbp\n"
    ".cfi_def_cfa_offset 16\n"
    ".cfi_offset %rbp,-16\n"
    "mov %rsp,%rbp\n"
    ".cfi_def_cfa_register %rbp\n"
    "mov %rdx,%rsp\n"
    "mov %rdi,%rax\n"
    "mov %rsi,%rdi\n"
    "call *%rax\n"
    "mov %rbp,%rsp\n"
    "pop %rbp\n"
    ".cfi_def_cfa %rsp,8\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size with_stack,.-with_stack\n");

__attribute__((noinline)) static long outer(long n, char *top) {
  return (n > 0 ? outer(n - 1, top) : with_stack(inner, 5, top)) + 1;
}

int main(int argc, char **argv) {
  const size_t size = 1 << 20;
  seconds = argc > 1 ? atof(argv[1]) : 1;
  char *stack = mmap((void *)0x10000000000, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return stack == MAP_FAILED || outer(4, stack + size) == 0;
}
