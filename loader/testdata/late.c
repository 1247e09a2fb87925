// late N OFTEN MS: N threads that sleep for 20 us so often, for OFTEN milliseconds from the
// first byte of standard input on, that few of these times have a stack of their own; then
// once for MS milliseconds, when they are called "asleep". Says "." when it is ready. Built
// with -no-pie and -pthread.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static long often_ns, late_ns;

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noinline)) static void nap(long ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };
	nanosleep(&t, NULL);
}

__attribute__((noinline)) void sleep_late(void)
{
	nap(late_ns);
	asm volatile("");
}

// At the same depth of the stack: by that, too, are times told from others.
__attribute__((noinline)) static void sleep_often(void)
{
	nap(20000);
	asm volatile("");
}

static void *thread(void *arg)
{
	long long end = now() + often_ns;

	prctl(PR_SET_TIMERSLACK, 1);
	while (now() < end)
		sleep_often();
	prctl(PR_SET_NAME, "asleep");
	sleep_late();
	return arg;
}

int main(int argc, char **argv)
{
	char c = '.';
	pthread_t t;

	if (argc != 4 || write(1, &c, 1) != 1 || read(0, &c, 1) != 1)
		return 1;
	often_ns = atol(argv[2]) * 1000000;
	late_ns = atol(argv[3]) * 1000000;
	for (int i = 0; i < atoi(argv[1]); i++)
		if (pthread_create(&t, NULL, thread, NULL))
			return 1;
	pthread_exit(NULL);
}
