/* Code that gdbjit.cc and llvmjit.cc load while they run. It knows the program
   that loads it by what that hands over, so that nothing need be linked. */
#define NOINLINE __attribute__((noinline))

struct host {
	long (*call)(const struct host *, long (*)(const struct host *, long), long); /* calls back */
	long (*raise)(long);                                                        /* throws */
};

static long table[16];

/* A leaf without a frame. */
NOINLINE static long mix(long x, long y) { return x * 31 + (y ^ x >> 3); }

/* Arguments on the stack, and more registers than there are. */
NOINLINE static long many(long a, long b, long c, long d, long e, long f, long g, long h, long i) {
	long s = 0;
	for (long n = 0; n < 2; n++)
		s += mix(a + n, b) * mix(c, d - n) + mix(e ^ n, f) * (g + h) - mix(h, i + n);
	return s;
}

/* A frame of a size that is known at run time only. */
NOINLINE static long variable(const struct host *h, long n) {
	volatile long room[n % 5 + 2];
	for (long i = 0; i < n % 5 + 2; i++)
		room[i] = mix(i, n);
	return h->call(h, 0, n) + room[n % 5];
}

/* A frame that is aligned to more than the stack is. */
NOINLINE static long aligned(const struct host *h, long n) {
	_Alignas(64) volatile char room[96];
	for (unsigned i = 0; i < sizeof room; i += 24)
		room[i] = (char)(n + i);
	return h->call(h, 0, n) + room[24];
}

/* A frame for some of the ways through it, and a jump table. */
NOINLINE static long choose(const struct host *h, long n) {
	switch (n % 7) {
	case 0: return mix(n, 1);
	case 1: return many(n, 2, 3, 4, 5, 6, 7, 8, 9) + 1;
	case 2: return variable(h, n);
	case 3: return aligned(h, n) - 1;
	case 4: table[n % 16] += n; return table[n % 16];
	case 5: return many(n, n, n, n, n, 1, n, n, n);
	default: return mix(n, n);
	}
}

NOINLINE static long recurse(const struct host *h, long n) {
	if (n <= 0)
		return 1;
	long before = choose(h, n);
	return before + recurse(h, n - 1) * (before | 1);
}

NOINLINE static long back(const struct host *h, long n) { return n > 0 ? recurse(h, n / 2) : h->raise(n); }

/* Throws through its own frames when n is negative. */
long entry(const struct host *h, long n) {
	long s = 0;
	if (n < 0)
		return h->call(h, back, n) + 1;
	for (long i = 0; i < 3; i++)
		s += recurse(h, n + i) + h->call(h, back, n + i);
	return s;
}
