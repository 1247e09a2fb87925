// Page faults under 600 functions with 1 MB of stack. Usage: faults PAGES
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGES = 256, PAGE = 4096 };

__attribute__((noinline)) static long fault(long pages) {
  long n = 0;
  while (n < pages) {
    volatile char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < PAGES; i++, n++)
      p[i * PAGE] = 1;
    munmap((void *)p, PAGES * PAGE);
  }
  return n;
}

__attribute__((noinline)) static long deep(int level, long pages) {
  volatile char local[1650];
  for (unsigned i = 0; i < sizeof(local); i++)
    local[i] = i ^ level;
  return (level > 0 ? deep(level - 1, pages) : fault(pages)) + local[level];
}

int main(int argc, char **argv) {
  return deep(600, argc > 1 ? atol(argv[1]) : 10000) == 0;
}
