// pingpong MS: two threads that wait for each other through pipes, as often as
// they can in MS milliseconds. A line for each is as that of spend. Built with
// -pthread.
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

static struct player {
	pthread_t thread;
	int in;
	long tid;
	long long created, own, cpu;
} players[2] = { { .in = 0 }, { .in = 1 } };

static void *play(void *arg)
{
	struct player *p = arg;
	int in = p->in, out = !in;
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
	p->tid = syscall(SYS_gettid);
	p->cpu = now(CLOCK_THREAD_CPUTIME_ID);
	p->own = now(CLOCK_MONOTONIC) - start;
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 2 || pipe(pipes[0]) || pipe(pipes[1]))
		return 2;
	deadline = now(CLOCK_MONOTONIC) + atoll(argv[1]) * 1000000;
	for (struct player *p = players; p < players + 2; p++) {
		p->created = now(CLOCK_MONOTONIC);
		if (pthread_create(&p->thread, NULL, play, p))
			return 1;
	}
	for (struct player *p = players; p < players + 2; p++) {
		pthread_join(p->thread, NULL);
		printf("switching %ld %lld %lld %lld\n", p->tid, p->own, now(CLOCK_MONOTONIC) - p->created, p->cpu);
	}
	return 0;
}
