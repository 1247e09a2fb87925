extern long goWalk(void);

static volatile long sink;

__attribute__((noinline)) long innermost(void) { return goWalk() + sink; }

__attribute__((noinline)) long inner(long n) {
	volatile char pad[40];
	pad[n] = n;
	return (n ? inner(n - 1) : innermost()) + pad[n];
}

long outer(void) { return inner(3) + sink; }
