// Threads one after the other, which live for 20 ms each, under a frame of 500 KB that
// is filled or, with -, was touched in its lowest 10 KB alone. Usage: briefthreads THREADS [-]
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static long spin(const char *bytes) {
  volatile long sum = 0;
  for (double end = cpu_seconds() + 0.02; cpu_seconds() < end;)
    for (int i = 0; i < 10000; i++)
      sum += bytes[i];
  return sum;
}

static int fills = 1;

__attribute__((noinline)) static long fill(int value) {
  char bytes[500 << 10];
  memset(bytes, value, fills ? sizeof bytes : 10000);
  return spin(bytes) + bytes[value];
}

__attribute__((noinline)) static void *work(void *value) {
  return (void *)(fill((int)(long)value) + 1);
}

int main(int argc, char **argv) {
  fills = argc < 3;
  for (long i = argc > 1 ? atol(argv[1]) : 100; i > 0; i--) {
    pthread_t t;
    if (pthread_create(&t, NULL, work, (void *)(i & 7)) || pthread_join(t, NULL))
      return 1;
  }
  return 0;
}
