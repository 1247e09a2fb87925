// golibrary N: calls the library in Go N times in each of three threads, and is
// called back.
#include <pthread.h>
#include <stdlib.h>

extern long GoWork(long, long (*)(long));

static long calls;

__attribute__((noinline)) static long burnC(long n)
{
	volatile long r = n;

	for (int i = 0; i < 2000; i++)
		r += i ^ n;
	return r;
}

__attribute__((noinline)) static long back(long n)
{
	long r = burnC(n);

	return n % 3 == 1 ? r + GoWork(n - 1, back) : r;
}

static void *work(void *p)
{
	for (long i = 0; i < calls; i++)
		GoWork(i, back);
	return p;
}

int main(int argc, char **argv)
{
	pthread_t t[2];

	calls = argc > 1 ? atol(argv[1]) : 1000;
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, work, NULL);
	work(NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	return 0;
}
