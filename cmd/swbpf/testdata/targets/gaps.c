// Functions that call each other with 16 KB of a frame never touched, on the main
// thread and another one. Usage: gaps SECONDS [DEPTH]
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static double seconds;
static int depth = 30;

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

__attribute__((noinline)) static long nest(int level) {
  volatile char untouched[16 << 10];
  long sum = level > 0 ? nest(level - 1) : spin();
  untouched[0] = 0;
  return sum;
}

static void *work(void *unused) {
  return (void *)nest(depth);
}

int main(int argc, char **argv) {
  pthread_t t;
  seconds = argc > 1 ? atof(argv[1]) : 1;
  depth = argc > 2 ? atoi(argv[2]) : depth;
  if (pthread_create(&t, NULL, work, NULL))
    return 1;
  nest(depth);
  return pthread_join(t, NULL);
}
