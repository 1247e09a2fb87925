// Starts threads that live some 20 us, one after the other. Usage: brief SECONDS
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void *work(void *arg) {
  volatile unsigned long x = 1;
  for (int i = 0; i < 20000; i++)
    x = x * 3 + 1;
  return arg;
}

int main(int argc, char **argv) {
  if (argc < 2)
    return 2;
  time_t end = time(NULL) + atoi(argv[1]);
  long n = 0;
  for (; time(NULL) < end; n++) {
    pthread_t t;
    if (pthread_create(&t, NULL, work, NULL))
      return 1;
    pthread_join(t, NULL);
  }
  printf("%ld threads\n", n);
}
