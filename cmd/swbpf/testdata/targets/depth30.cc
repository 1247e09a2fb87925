// A call chain of 30 levels, of which the optimiser may drop none, that ends
// in libstdc++. Build: g++ -O2 -fomit-frame-pointer. Usage: depth30 SECONDS [CALLS]
#include "budget.h"
#include <sstream>

template <int N> struct chain {
  // The work after the call keeps it from being a tail call; its locals make
  // the frames of levels differ in size.
  [[gnu::noinline, gnu::noclone]] static long level(long x) {
    volatile long local[N % 7 + 1];
    local[0] = x;
    long r = chain<N - 1>::level(x + N);
    return r + local[0];
  }
};

template <> struct chain<0> {
  [[gnu::noinline, gnu::noclone]] static long level(long x) {
    long sum = 0;
    for (int i = 0; i < 50; i++) {
      std::ostringstream out;
      out << x + i << ' ' << 3.25 * i;
      sum += out.str().size();
    }
    return sum;
  }
};

int main(int argc, char **argv) {
  arguments a = parse(argc, argv);
  long sum = 0;
  while (a.calls-- > 0 && cpu_seconds() < a.seconds)
    sum += chain<29>::level(sum);
  return sum == 42;
}
