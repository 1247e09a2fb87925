// spend MS: five threads that spend about MS milliseconds each, every one in
// its own way. A line for each tells its way, its tid, the nanoseconds from its
// beginning to its end, and those of them that it was on a CPU. Built with
// -pthread.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long deadline;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int fds[2];

static long long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int is_over(void) { return now(CLOCK_MONOTONIC) >= deadline; }

static void nap(void)
{
	struct timespec t = { 0, 20000000 };
	nanosleep(&t, NULL);
}

__attribute__((noinline)) static void spend_asleep(void) { nap(); asm volatile(""); }
__attribute__((noinline)) static void spend_locked(void) { pthread_mutex_lock(&lock); pthread_mutex_unlock(&lock); asm volatile(""); }
__attribute__((noinline)) static void spend_reading(void)
{
	char c;
	if (read(fds[0], &c, 1) != 1)
		exit(1);
}

__attribute__((noinline)) static void spend_computing(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
}

// A parent waits for its vfork child uninterruptibly, as for a disk.
__attribute__((noinline)) static void spend_uninterruptible(void)
{
	pid_t child = vfork();
	if (child == 0) {
		nap();
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

static const struct way {
	const char *name;
	void (*spend)(void);
} ways[] = {
	{ "asleep", spend_asleep }, { "locked", spend_locked }, { "reading", spend_reading },
	{ "computing", spend_computing }, { "uninterruptible", spend_uninterruptible },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void *spend(void *arg)
{
	const struct way *way = arg;
	long long start = now(CLOCK_MONOTONIC);

	while (!is_over())
		way->spend();
	char line[100];
	int n = snprintf(line, sizeof(line), "%s %ld %lld %lld\n", way->name, syscall(SYS_gettid),
			 now(CLOCK_MONOTONIC) - start, now(CLOCK_THREAD_CPUTIME_ID));
	return (void *)(long)write(1, line, n);
}

int main(int argc, char **argv)
{
	pthread_t threads[WAYS];

	if (argc != 2 || pipe(fds))
		return 2;
	deadline = now(CLOCK_MONOTONIC) + atoll(argv[1]) * 1000000;
	for (int i = 0; i < WAYS; i++) {
		if (pthread_create(&threads[i], NULL, spend, (void *)&ways[i]))
			return 1;
	}
	// Holds the lock nearly always, and feeds the reader.
	while (!is_over()) {
		pthread_mutex_lock(&lock);
		nap();
		if (write(fds[1], ".", 1) != 1)
			return 1;
		pthread_mutex_unlock(&lock);
		sched_yield();
	}
	if (write(fds[1], "..", 2) != 2)
		return 1;
	for (int i = 0; i < WAYS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}
