// A thread that no library has made: its stack ends with a null as the return address, and
// the null frame pointer, above the large frame of its first function. Usage: nullend SECONDS
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static char stack[1 << 20] __attribute__((aligned(4096)));
static volatile unsigned long sink;

__attribute__((noinline)) static void leaf(void) {
  for (int i = 0; i < 100000; i++)
    sink += i;
}

__attribute__((noinline)) static void inner(char *b) {
  for (;;) {
    leaf();
    b[sink % 150] = 1;
  }
}

__attribute__((noinline, used)) void outer(void) {
  char b[200];
  inner(b);
}

int main(int argc, char **argv) {
  if (argc < 2)
    return 2;
  long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  register long top asm("rsi") = (long)(stack + sizeof(stack) - 4096);
  asm volatile("xor %%edx, %%edx\n xor %%r10d, %%r10d\n xor %%r8d, %%r8d\n syscall\n"
               "test %%eax, %%eax\n jnz 1f\n xor %%ebp, %%ebp\n push $0\n jmp outer\n1:"
               : : "a"(SYS_clone), "D"(flags), "r"(top) : "rcx", "r11", "rdx", "r10", "r8", "memory");
  sleep(atoi(argv[1]));
  _exit(0);
}
