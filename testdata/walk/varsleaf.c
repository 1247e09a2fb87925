// A function that runs with its variables in registers, those for floating
// point included. It crashes, or with an argument runs on and on.
#include <stdio.h>

#define NOINLINE __attribute__((noinline, noclone))

struct pair {
	double a, b;
};

static volatile int never;

NOINLINE static double leaf(double d, float f, long double ld, int i, struct pair p, volatile int *at) {
	double sum = d * 2 + i;
	float product = f * 3;
	while (*at == 0)
		continue;
	return sum + product + (double)ld + p.a - p.b + d + f + i;
}

int main(int argc, char **argv) {
	struct pair p = {0.125 + never, -4 + never};
	int one = 1 + never;
	puts("ready");
	fflush(stdout);
	return (int)leaf(1.5 * one, 0.1f * (float)one, 3.25L * one, one * 7, p, argc > 1 ? &never : (int *)8) & (argv == 0);
}
