// Threads that work one after the other. Usage: threads COUNT MILLISECONDS
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static double milliseconds;

static void *work(void *arg) {
  struct timespec t;
  volatile long sum = 0;
  do {
    for (int i = 0; i < 100000; i++)
      sum += i;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  } while (t.tv_sec * 1e3 + t.tv_nsec * 1e-6 < milliseconds);
  return arg;
}

int main(int argc, char **argv) {
  int count = argc > 1 ? atoi(argv[1]) : 10;
  milliseconds = argc > 2 ? atof(argv[2]) : 100;
  for (int i = 0; i < count; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, work, NULL) || pthread_join(t, NULL))
      return 1;
  }
}
