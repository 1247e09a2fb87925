// Functions that call each other with arrays of 600 KB, which they fill, in their
// frames, on the main thread and another one. Usage: bigframes SECONDS
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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

__attribute__((noinline)) static long nest(int level) {
  char filled[600 << 10];
  memset(filled, level, sizeof(filled));
  __asm__ volatile("" : : "r"(filled) : "memory");
  long sum = level > 0 ? nest(level - 1) : spin();
  return sum + filled[sum & 1023];
}

static void *work(void *unused) {
  return (void *)nest(2);
}

int main(int argc, char **argv) {
  pthread_t t;
  seconds = argc > 1 ? atof(argv[1]) : 1;
  if (pthread_create(&t, NULL, work, NULL))
    return 1;
  nest(2);
  return pthread_join(t, NULL);
}
