// Threads of the C library, then one under 2 KB of stack whose thread pointer is nearer
// to its stack's end than theirs. Usage: mixedthreads SECONDS, of the CPU
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static volatile int done;

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static long spin(double s) {
  volatile long sum = 0;
  for (double end = now(CLOCK_THREAD_CPUTIME_ID) + s; now(CLOCK_THREAD_CPUTIME_ID) < end;)
    for (int i = 0; i < 100000; i++)
      sum += i;
  return sum;
}

static void *usual(void *arg) {
  return (void *)spin(0.05);
}

__attribute__((noinline)) static long under(double s) {
  volatile char bytes[2000];
  bytes[0] = spin(s);
  return bytes[0];
}

static int unlike(void *arg) {
  int result = under(seconds) & 1;
  done = 1;
  return result;
}

int main(int argc, char **argv) {
  seconds = argc > 1 ? atof(argv[1]) : 1;
  for (int i = 0; i < 30; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, usual, NULL) || pthread_join(t, NULL))
      return 1;
  }
  enum { SIZE = 1 << 20, TOP = 4 << 10, NEAR = 64 };
  char *stack = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *top = stack + SIZE - TOP;
  *(void **)(top + NEAR) = top + NEAR; // a thread pointer points to itself
  if (clone(unlike, top, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS, NULL,
            NULL, top + NEAR, NULL) < 0)
    return 1;
  while (!done)
    usleep(10000);
  return 0;
}
