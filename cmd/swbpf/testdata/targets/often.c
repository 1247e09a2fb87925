// often MS: waits for another thread as often as it can in MS milliseconds, and
// after each 1,000th time sleeps, for 1 ms in rest_short or for 6 ms in
// rest_long. Tells how long it slept in these: the ns it asked for, and those it
// got. Built with -pthread.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int there[2], back[2];

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *echo(void *arg)
{
	char c;
	while (read(there[0], &c, 1) == 1) {
		if (write(back[1], &c, 1) != 1)
			break;
	}
	return arg;
}

static struct rest { long long asked, got; } brief, extended;

static void sleep_for(struct rest *r, long ns)
{
	struct timespec t = { 0, ns };
	long long start = now();
	nanosleep(&t, NULL);
	r->asked += ns;
	r->got += now() - start;
}

__attribute__((noinline)) static void rest_short(void) { sleep_for(&brief, 1000000); __asm__ volatile(""); }
__attribute__((noinline)) static void rest_long(void) { sleep_for(&extended, 6000000); __asm__ volatile(""); }

int main(int argc, char **argv)
{
	pthread_t other;
	char c = '.';

	if (argc != 2 || pipe(there) || pipe(back) || pthread_create(&other, NULL, echo, NULL))
		return 1;
	long long end = now() + atoll(argv[1]) * 1000000;
	for (long i = 1; now() < end; i++) {
		if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
			return 1;
		if (i % 2000 == 0)
			rest_short();
		else if (i % 1000 == 0)
			rest_long();
	}
	close(there[1]);
	printf("%lld %lld %lld %lld\n", brief.asked, brief.got, extended.asked, extended.got);
	return 0;
}
