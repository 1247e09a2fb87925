// A recursion over frames of 144 bytes, which works at its deepest level.
// Build: gcc -O2 -fomit-frame-pointer. Usage: deep LEVELS SECONDS
#include <stdlib.h>
#include <time.h>

static double seconds;

static __attribute__((noinline)) long leaf(long x) {
  struct timespec t;
  do {
    for (int i = 0; i < 200000; i++)
      x = x * 6364136223846793005L + 1442695040888963407L;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  } while (t.tv_sec + t.tv_nsec * 1e-9 < seconds);
  return x;
}

static __attribute__((noinline)) long deep(int level, long x) {
  volatile char local[120];
  local[level % sizeof local] = x;
  long r = level > 1 ? deep(level - 1, x + 1) : leaf(x);
  return r + local[level % sizeof local];
}

int main(int argc, char **argv) {
  int levels = argc > 1 ? atoi(argv[1]) : 30;
  seconds = argc > 2 ? atof(argv[2]) : 1;
  return deep(levels, 1) == 42;
}
