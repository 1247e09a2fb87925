// Runs a command and writes what it cost to a file, in one line: start and end
// (CLOCK_REALTIME, ns) and the CPU time of the command and its children (us).
// Usage: timed FILE COMMAND [ARGS...]
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv) {
  if (argc < 3)
    return 2;
  long long start = now();
  pid_t pid = fork();
  if (pid == 0) {
    execvp(argv[2], argv + 2);
    _exit(127);
  }
  int status = 1;
  struct rusage u;
  if (pid < 0 || wait4(pid, &status, 0, &u) != pid)
    return 1;
  long long end = now();
  FILE *f = fopen(argv[1], "w");
  if (!f)
    return 1;
  fprintf(f, "%lld %lld %lld\n", start, end,
          (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000LL + u.ru_utime.tv_usec + u.ru_stime.tv_usec);
  fclose(f);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
