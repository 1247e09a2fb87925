// A recursion over some 100 KB of stack in a thread. Usage: deepthread SECONDS
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static double seconds;

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static long deep(int level) {
  volatile char local[488];
  local[level] = level;
  if (level > 0)
    return deep(level - 1) + local[level];
  long sum = 0;
  while (cpu_seconds() < seconds)
    for (int i = 0; i < 100000; i++)
      sum += local[i & 255];
  return sum;
}

static void *work(void *unused) {
  return (void *)deep(200);
}

int main(int argc, char **argv) {
  pthread_t t;
  seconds = argc > 1 ? atof(argv[1]) : 1;
  return pthread_create(&t, NULL, work, NULL) || pthread_join(t, NULL);
}
