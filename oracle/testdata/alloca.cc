// Throws through frames of a size that run time chooses, over memory that still
// has the frames of earlier calls of the same functions in it: one return
// address on the stack looks like another.
#include <alloca.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile int live;

struct Guard {
	NOINLINE ~Guard() { live++; }
};

// Recursion that comes back first, and throws the second time, with nothing
// to clean up: all of its frames are left at once.
NOINLINE static int again(int n, bool throws, int size) {
	if (n == 0) {
		volatile char *p = static_cast<char *>(alloca(size));
		p[0] = 1;
		if (throws)
			throw 1;
		return p[0];
	}
	live += again(n - 1, false, size);
	volatile char *p = static_cast<char *>(alloca(size * n)); // over what has been called
	live += p[size];
	if (throws)
		live += again(n - 1, true, size);
	return live + p[0];
}

// Functions that call each other, frames of either kind between them.
NOINLINE static int odd(int n, bool throws);

NOINLINE static int even(int n, bool throws) {
	Guard g;
	if (n > 0)
		odd(n - 1, false);
	volatile char *p = static_cast<char *>(alloca(400 + 16 * n));
	if (n > 0)
		return odd(n - 1, throws) + p[0];
	if (throws)
		throw 2;
	return 2;
}

NOINLINE static int odd(int n, bool throws) {
	volatile int keep = n;
	return even(n - 1, throws) + keep;
}

// The same function from the same caller, whose stack is lower the first time.
NOINLINE static int called(int n, bool throws) {
	volatile char *p = static_cast<char *>(alloca(n));
	p[0] = 1;
	if (throws)
		throw 3;
	return p[0];
}

NOINLINE static int lower(int n) {
	for (int i = 0; i < 2; i++) {
		volatile char a[i == 0 ? n : 16];
		a[0] = 1;
		called(64, false);
		live += a[0];
	}
	return called(n + 64, true) + 1;
}

NOINLINE static void rethrow(int n) {
	volatile char *p = static_cast<char *>(alloca(n));
	p[0] = 1;
	try {
		lower(n);
	} catch (int) {
		live += p[0];
		throw;
	}
}

static void all(int n) {
	try {
		again(n, true, 200);
	} catch (int) {
		live++;
	}
	try {
		even(2 * n, true);
	} catch (int) {
		live++;
	}
	try {
		rethrow(300 + n * 8);
	} catch (int) {
		live++;
	}
}

int main() {
	all(1);
	getppid();
	all(2);
}
