// Starts a program over and over. Usage: churn RATE SECONDS COMMAND [ARGS...]
// RATE is in starts a second; what the machine cannot do is left out.
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
  if (argc < 4)
    return 2;
  double period = 1 / atof(argv[1]), end = now() + atof(argv[2]);
  long n = 0;
  for (double next = now(); next < end; next += period) {
    double wait = next - now();
    if (wait < 0)
      next -= wait;
    else {
      struct timespec t = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
      nanosleep(&t, NULL);
    }
    pid_t pid;
    int status;
    if (posix_spawnp(&pid, argv[3], NULL, NULL, argv + 3, environ))
      return 1;
    waitpid(pid, &status, 0);
    n++;
  }
  printf("%ld\n", n);
}
