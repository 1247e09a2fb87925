// argv[1] threads, each argv[2] calls deep, and, unless argv[3] is quiet, a
// heartbeat: a thread that wakes up often and keeps the longest time that it
// was kept from it. With argv[4] the threads are called so, and a number.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int depth;
static const char *prefix;
static atomic_int ready;

__attribute__((noinline)) int step(int n) {
	volatile char pad[64];
	pad[0] = n;
	int r = 0;
	if (n > 0) {
		r = step(n - 1);
	} else {
		ready++;
		for (;;)
			pause();
	}
	return r + pad[0];
}

static void *work(void *arg) {
	if (prefix) {
		char name[16];
		snprintf(name, sizeof name, "%s%d", prefix, (int)(intptr_t)arg);
		pthread_setname_np(pthread_self(), name);
	}
	step(depth);
	return NULL;
}

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static atomic_ullong longest;

static void *heartbeat(void *arg) {
	uint64_t last = now();
	for (;;) {
		struct timespec t = {0, 100000};
		nanosleep(&t, NULL);
		uint64_t n = now();
		if (n - last > longest)
			longest = n - last;
		last = n;
	}
}

// A line on the input asks for the longest gap since the last, in ns.
int main(int argc, char **argv) {
	int n = atoi(argv[1]);
	depth = atoi(argv[2]);
	prefix = argc > 4 ? argv[4] : NULL;
	pthread_attr_t attr;
	pthread_t t;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	for (int i = 0; i < n; i++)
		if (pthread_create(&t, &attr, work, (void *)(intptr_t)i))
			return 1;
	if (argc < 4)
		pthread_create(&t, &attr, heartbeat, NULL);
	while (ready < n)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		printf("%llu\n", (unsigned long long)atomic_exchange(&longest, 0));
		fflush(stdout);
	}
	return 0;
}
