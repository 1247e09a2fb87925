// pingpong MS: two threads that wait for each other through pipes, as often as
// they can in MS milliseconds. A line for each tells its tid, the nanoseconds
// from its beginning to its end, and those of them that it was on a CPU. Built
// with -pthread.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int pipes[2][2];
static long long deadline;

static long long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *play(void *arg)
{
	int in = arg ? 1 : 0, out = !in;
	long long start = now(CLOCK_MONOTONIC);
	char c = '.';

	do {
		if (write(pipes[out][1], &c, 1) != 1 || read(pipes[in][0], &c, 1) != 1)
			exit(1);
		if (now(CLOCK_MONOTONIC) >= deadline)
			c = 'x'; // also for the other
	} while (c != 'x');
	if (write(pipes[out][1], &c, 1) != 1)
		exit(1);
	char line[100];
	int n = snprintf(line, sizeof(line), "switching %ld %lld %lld\n", syscall(SYS_gettid),
			 now(CLOCK_MONOTONIC) - start, now(CLOCK_THREAD_CPUTIME_ID));
	return (void *)(long)write(1, line, n);
}

int main(int argc, char **argv)
{
	pthread_t a, b;

	if (argc != 2 || pipe(pipes[0]) || pipe(pipes[1]))
		return 2;
	deadline = now(CLOCK_MONOTONIC) + atoll(argv[1]) * 1000000;
	if (pthread_create(&a, NULL, play, NULL) || pthread_create(&b, NULL, play, argv))
		return 1;
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	return 0;
}
