// A recursion of 200 levels over more than 90 KB of stack.
// Build: g++ -O2 -fomit-frame-pointer. Usage: depth200 SECONDS [CALLS]
#include "budget.h"

[[gnu::noinline, gnu::noclone]] static long leaf(long x) {
  for (int i = 0; i < 200000; i++)
    x = x * 6364136223846793005L + 1442695040888963407L;
  return x;
}

[[gnu::noinline, gnu::noclone]] static long deep(int level, long x) {
  volatile char local[456];
  local[level % sizeof local] = x;
  long r = level > 1 ? deep(level - 1, x + 1) : leaf(x);
  return r + local[level % sizeof local];
}

int main(int argc, char **argv) {
  arguments a = parse(argc, argv);
  long sum = 0;
  while (a.calls-- > 0 && cpu_seconds() < a.seconds)
    sum += deep(200, sum);
  return sum == 42;
}
