// Runs under a function that it makes at run time, for 300 ms each, and then gives that up:
// where its code was there is other code. Usage: givenup TIMES
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void spin(void) {
  volatile long sum = 0;
  for (double end = now() + 0.3; now() < end;)
    for (int i = 0; i < 10000; i++)
      sum += i;
}

int main(int argc, char **argv) {
  // push %rbp; mov %rsp,%rbp; call *%rdi; pop %rbp; ret
  static const unsigned char made[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
  // sub $24,%rsp; add $24,%rsp; ret; nop...
  static const unsigned char other[16] = {0x48, 0x83, 0xec, 0x18, 0x48, 0x83, 0xc4, 0x18, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90};
  unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (code == MAP_FAILED)
    return 1;
  for (int i = argc > 1 ? atoi(argv[1]) : 1, at = 0; i > 0; i--, at = (at + 64) % 2048) {
    memcpy(code + at, made, sizeof made);
    ((void (*)(void (*)(void)))(code + at))(spin);
    for (int j = 0; j < 4096; j += sizeof other)
      memcpy(code + j, other, sizeof other);
  }
  return 0;
}
