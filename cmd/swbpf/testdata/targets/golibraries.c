// golibraries LIB LIB [N]: calls two libraries in Go, each with its runtime, within each other, six deep, N times;
// without N it stays there.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef long function(long);

static long (*goWork[2])(long, function *);
static long times;

__attribute__((noinline)) static long burn(long n)
{
	volatile long r = n;

	for (int i = 0; i < 1000000; i++)
		r += i ^ n;
	return r;
}

__attribute__((noinline)) static long back(long n)
{
	if (n == 0 && times)
		return burn(n) + 1;
	if (n == 0) {
		puts("there");
		fflush(stdout);
		for (;;)
			pause();
	}
	return goWork[n % 2](n - 1, back) + 1;
}

int main(int argc, char **argv)
{
	for (int i = 0; i < 2 && i + 1 < argc; i++) {
		void *lib = dlopen(argv[i + 1], RTLD_NOW);

		goWork[i] = lib ? dlsym(lib, "GoWork") : NULL;
		if (!goWork[i])
			return 1;
	}
	times = argc > 3 ? atol(argv[3]) : 0;
	for (long i = 0; i <= times; i++)
		back(6);
	return 0;
}
