// A program that blocks for known times. Built with -pthread.
//
//   block sleep N MS   sleeps N times for MS milliseconds
//   block lock N MS    waits N times for a lock that another thread holds for
//                      MS milliseconds more
//   block pipe N MS    reads N times from a pipe that another thread writes
//                      to MS milliseconds later
//
// It writes the nanoseconds that the calls took, as it saw them, and exits.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int fds[2];
static long n, ms;
static int locking;
static int meeting[2][2];

// Both threads wait for each other: by a barrier, which is a futex, or in the
// mode lock by pipes, so that a wait for the lock is told from it.
static void meet(int self)
{
	char c = '.';
	if (!locking)
		pthread_barrier_wait(&barrier);
	else if (write(meeting[self][1], &c, 1) != 1 || read(meeting[!self][0], &c, 1) != 1)
		exit(1);
}

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void sleep_ms(void)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

__attribute__((noinline)) static void block_in_sleep(void) { sleep_ms(); asm volatile(""); }
__attribute__((noinline)) static void block_in_lock(void) { pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); }
__attribute__((noinline)) static void block_in_pipe(void)
{
	char c;
	if (read(fds[0], &c, 1) != 1)
		exit(1);
}

// Waits until the main thread blocks, by what the kernel says of it.
static void await_blocked(void)
{
	char stat[512], path[64];
	struct timespec t = { 0, 1000000 };

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getpid());
	for (;;) {
		int fd = open(path, O_RDONLY);
		ssize_t length = read(fd, stat, sizeof(stat) - 1);
		close(fd);
		stat[length > 0 ? length : 0] = 0;
		char *state = strrchr(stat, ')');
		if (state && state[2] == 'S')
			return;
		nanosleep(&t, NULL);
	}
}

static void *other(void *arg)
{
	for (long i = 0; i < n; i++) {
		if (locking)
			pthread_mutex_lock(&lock);
		meet(1);
		await_blocked();
		sleep_ms();
		if (locking)
			pthread_mutex_unlock(&lock);
		else if (write(fds[1], ".", 1) != 1)
			exit(1);
		meet(1);
	}
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t t;
	long long total = 0;

	if (argc != 4 || pipe(fds) || pipe(meeting[0]) || pipe(meeting[1]))
		return 2;
	n = atol(argv[2]);
	ms = atol(argv[3]);
	locking = !strcmp(argv[1], "lock");
	int alone = !strcmp(argv[1], "sleep");
	pthread_barrier_init(&barrier, NULL, 2);
	if (!alone && pthread_create(&t, NULL, other, NULL))
		return 1;
	for (long i = 0; i < n; i++) {
		if (!alone)
			meet(0);
		long long start = now();
		if (alone)
			block_in_sleep();
		else if (locking)
			block_in_lock();
		else
			block_in_pipe();
		total += now() - start;
		if (!alone)
			meet(0);
	}
	printf("%lld\n", total);
	return 0;
}
