// golibraries LIB LIB: calls two libraries in Go, each with its runtime, within each other, six deep, and
// stays there.
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

typedef long function(long);

static long (*goWork[2])(long, function *);

__attribute__((noinline)) static long back(long n)
{
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
	return back(6) + 1;
}
