// Many processes of many threads, which sleep, or wake up ten times a second to
// work a little. Prints "ready" when all are there, and ends when its standard
// input does.
// Build: gcc -O2 -fomit-frame-pointer -pthread.
// Usage: crowd [-p PROCESSES] [-t THREADS] [-d DEPTH] [-w LOOPS]
//              [-l DIR -n LIBRARIES] [-g FILE]
//   -w  additions that each thread does each time that it wakes up; 0: it sleeps
//   -l  where lib0.so, lib1.so, ... are, of which LIBRARIES are loaded
//   -g  keeps the longest time for which a thread of the first process did not
//       get to run, in ns, as text in FILE; SIGUSR1 begins anew
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static int processes = 1, threads = 1, depth = 1, libraries;
static long loops;
static volatile int ended; // stays 0, which the compiler must not know
static const char *dir, *gaps;
static long (*work[1024])(long);

static long own(long n) {
  volatile long sum = 0;
  for (long i = 0; i < n; i++)
    sum += i;
  return sum;
}

static __attribute__((noinline)) long live(long which) {
  long sum = 0;
  while (!ended) {
    while (loops == 0)
      pause();
    usleep(100000);
    sum += libraries ? work[which++ % libraries](loops) : own(loops);
  }
  return sum;
}

static __attribute__((noinline)) long deep(int level, long which) {
  volatile long local[4];
  local[level % 4] = which;
  long r = level > 1 ? deep(level - 1, which) : live(which);
  return r + local[level % 4];
}

static void *thread(void *which) { return (void *)deep(depth, (long)which); }

static volatile sig_atomic_t again;

static void begin_anew(int unused) { again = 1; }

// watch writes the longest gap between two wake-ups of this thread.
static void *watch(void *unused) {
  int fd = open(gaps, O_RDWR | O_CREAT | O_TRUNC, 0600);
  struct timespec t, pause = {0, 50000};
  long last = 0, longest = 0;
  for (;;) {
    clock_gettime(CLOCK_MONOTONIC, &t);
    long now = t.tv_sec * 1000000000L + t.tv_nsec;
    if (again)
      again = last = longest = 0;
    if (last && now - last > longest) {
      char text[32];
      longest = now - last;
      snprintf(text, sizeof text, "%20ld\n", longest);
      if (pwrite(fd, text, strlen(text), 0) < 0)
        return unused;
    }
    last = now;
    nanosleep(&pause, NULL);
  }
}

static void start(int first) {
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 256 << 10);
  pthread_t t;
  if (first && gaps && pthread_create(&t, &attr, watch, NULL))
    exit(1);
  // The initial thread of the first process waits for the end.
  for (long i = first ? 0 : 1; i < threads; i++)
    if (pthread_create(&t, &attr, thread, (void *)i))
      exit(1);
}

int main(int argc, char **argv) {
  for (int c; (c = getopt(argc, argv, "p:t:d:w:l:n:g:")) != -1;) {
    switch (c) {
    case 'p': processes = atoi(optarg); break;
    case 't': threads = atoi(optarg); break;
    case 'd': depth = atoi(optarg); break;
    case 'w': loops = atol(optarg); break;
    case 'l': dir = optarg; break;
    case 'n': libraries = atoi(optarg); break;
    case 'g': gaps = optarg; break;
    default: return 2;
    }
  }
  for (int i = 0; i < libraries; i++) {
    char path[4096];
    snprintf(path, sizeof path, "%s/lib%d.so", dir, i);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib || i >= 1024 || !(work[i] = (long (*)(long))dlsym(lib, "work"))) {
      fprintf(stderr, "%s: %s\n", path, dlerror());
      return 1;
    }
  }
  pid_t parent = getpid();
  for (long i = 1; i < processes; i++) {
    pid_t pid = fork();
    if (pid < 0)
      return 1;
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent)
        return 1;
      start(0);
      deep(depth, i);
    }
  }
  signal(SIGCHLD, SIG_IGN);
  signal(SIGUSR1, begin_anew);
  start(1);
  usleep(100000);
  puts("ready");
  fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0)
    ;
  return 0;
}
