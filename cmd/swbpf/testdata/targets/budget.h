// What main calls beside the chain in depth30.cc and depth200.cc: how long to
// go on. That these call functions of libraries, at first by way of the dynamic
// linker, is then not seen below main.
#include <climits>
#include <cstdlib>
#include <ctime>

struct arguments {
  double seconds;
  long calls;
};

[[gnu::noinline, gnu::noclone]] static arguments parse(int argc, char **argv) {
  return {argc > 1 ? atof(argv[1]) : 1, argc > 2 ? atol(argv[2]) : LONG_MAX};
}

[[gnu::noinline, gnu::noclone]] static double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
