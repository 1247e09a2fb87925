// Tells for how long at most the machine has not run a thread that comes before all others,
// in microseconds, for each CPU, when its standard input ends: as when its hypervisor does
// not run a CPU, or the kernel does not let go of one.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, TICK = 1000 }; // CPUs; us

static atomic_long longest[MOST];

static long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void *watch(void *cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET((long)cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
  for (long last = now();; ) {
    usleep(TICK);
    long t = now();
    if (t - last - TICK > longest[(long)cpu])
      longest[(long)cpu] = t - last - TICK;
    last = t;
  }
}

int main(void) {
  cpu_set_t all;
  struct sched_param first = {.sched_priority = sched_get_priority_max(SCHED_FIFO)};
  if (sched_getaffinity(0, sizeof all, &all) || sched_setscheduler(0, SCHED_FIFO, &first)) {
    perror("stalls");
    return 1;
  }
  for (long i = 0; i < MOST; i++) {
    pthread_t t;
    if (CPU_ISSET(i, &all) && pthread_create(&t, NULL, watch, (void *)i))
      return 1;
  }
  puts("ready");
  fflush(stdout);
  char end;
  while (read(0, &end, 1) > 0)
    ;
  for (long i = 0; i < MOST; i++)
    if (CPU_ISSET(i, &all))
      printf("%ld\n", (long)longest[i]);
  return 0;
}
