// Stacks of a known depth that recurse as deep as they are told: "recursion THREADS DEPTH".
// Each is of step, or of even and odd in turns, 48 bytes a frame and more.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_barrier_t deep;
static int depth;

__attribute__((noinline)) int leaf(int n)
{
	pthread_barrier_wait(&deep);
	pause();
	return n + 1;
}

__attribute__((noinline)) int step(int n)
{
	volatile char pad[32];
	pad[n & 15] = n;
	return (n > 1 ? step(n - 1) : leaf(n)) + pad[n & 15];
}

__attribute__((noinline)) int odd(int n);

__attribute__((noinline)) int even(int n)
{
	volatile char pad[32];
	pad[n & 15] = n;
	return (n > 1 ? odd(n - 1) : leaf(n)) + pad[n & 15];
}

__attribute__((noinline)) int odd(int n)
{
	volatile char pad[32];
	pad[n & 15] = n;
	return (n > 1 ? even(n - 1) : leaf(n)) + pad[n & 15];
}

static void *run(void *in_turns)
{
	return (void *)(long)(in_turns ? even(depth) : step(depth));
}

int main(int argc, char **argv)
{
	int threads = atoi(argv[1]);
	depth = atoi(argv[2]);
	pthread_barrier_init(&deep, 0, threads + 1);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128l * depth + (1 << 20));
	for (long i = 0; i < threads; i++) {
		pthread_t t;
		if (pthread_create(&t, &attr, run, (void *)(i & 1)))
			return 1;
	}
	pthread_barrier_wait(&deep);
	puts("ready");
	fflush(stdout);
	getchar();
	return 0;
}
