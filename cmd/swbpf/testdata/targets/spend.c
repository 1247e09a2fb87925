// spend MS: five threads that spend about MS milliseconds each, every one in
// its own way. A line for each tells its way, its tid, the nanoseconds from the
// beginning to the end of what it does, from before it was made until it was seen
// to have ended, and those that it was on a CPU. Built with -pthread.
#define _GNU_SOURCE
#include <fcntl.h>
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

// A parent waits for its vfork child uninterruptibly, though for no disk.
__attribute__((noinline)) static void spend_uninterruptible(void)
{
	pid_t child = vfork();
	if (child == 0) {
		nap();
		_exit(0);
	}
	waitpid(child, NULL, 0);
}

__attribute__((used)) static char large[4 << 20] = { 1 }; // in the program's file

// Reads the program's file past the page cache where the file system allows that,
// so much at a time that its waits are few enough for a stack of each.
__attribute__((noinline)) static void spend_disk(void)
{
	static _Alignas(4096) char block[sizeof(large)];
	static int file = -1;

	if (file < 0)
		file = open("/proc/self/exe", O_RDONLY | O_DIRECT);
	if (file < 0 || pread(file, block, sizeof(block), 0) <= 0)
		nap(); // so that the thread has no disk time
}

static struct way {
	const char *name;
	void (*spend)(void);
	pthread_t thread;
	long tid;
	long long created, own, cpu;
} ways[] = {
	{ "asleep", spend_asleep }, { "locked", spend_locked }, { "reading", spend_reading },
	{ "computing", spend_computing }, { "uninterruptible", spend_uninterruptible },
	{ "disk", spend_disk },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void *spend(void *arg)
{
	struct way *way = arg;
	long long start = now(CLOCK_MONOTONIC);

	while (!is_over())
		way->spend();
	way->tid = syscall(SYS_gettid);
	way->cpu = now(CLOCK_THREAD_CPUTIME_ID);
	way->own = now(CLOCK_MONOTONIC) - start;
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 2 || pipe(fds))
		return 2;
	deadline = now(CLOCK_MONOTONIC) + atoll(argv[1]) * 1000000;
	for (struct way *w = ways; w < ways + WAYS; w++) {
		w->created = now(CLOCK_MONOTONIC);
		if (pthread_create(&w->thread, NULL, spend, w))
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
	for (struct way *w = ways; w < ways + WAYS; w++) {
		pthread_join(w->thread, NULL);
		printf("%s %ld %lld %lld %lld\n", w->name, w->tid, w->own, now(CLOCK_MONOTONIC) - w->created, w->cpu);
	}
	return 0;
}
