// Sixty threads that begin at once, each with 60 KB of stack that it writes all the
// time. Usage: burst SECONDS
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { THREADS = 60, WORDS = (60 << 10) / sizeof(long) };

static double end;
static pthread_barrier_t begin;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) static void spin(volatile unsigned long *words) {
  unsigned long x = (unsigned long)words;
  while (now() < end)
    for (int i = 0; i < 4 * WORDS; i++)
      words[i % WORDS] = x = x * 6364136223846793005 + 1442695040888963407;
}

static void *work(void *unused) {
  volatile unsigned long words[WORDS];
  pthread_barrier_wait(&begin);
  spin(words);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t t[THREADS];
  end = now() + (argc > 1 ? atof(argv[1]) : 1);
  pthread_barrier_init(&begin, NULL, THREADS);
  for (int i = 0; i < THREADS; i++)
    if (pthread_create(&t[i], NULL, work, NULL))
      return 1;
  for (int i = 0; i < THREADS; i++)
    pthread_join(t[i], NULL);
  return 0;
}
