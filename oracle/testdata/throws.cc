// Throws through frames that are found by the frame pointer: recursion with
// something to clean up, and frames of a size that run time chooses.
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile int live;

struct Guard {
	NOINLINE ~Guard() { live++; }
};

NOINLINE static void fixed(int n) {
	Guard g;
	if (n == 0)
		throw 1;
	fixed(n - 1);
	live++;
}

NOINLINE static void variable(int n) {
	Guard g;
	volatile char *p = static_cast<char *>(__builtin_alloca(n * 16 + 1));
	p[n] = 1;
	if (n == 0)
		throw 1;
	variable(n - 1);
	live += p[n];
}

int main(int argc, char **) {
	void (*f)(int) = argc > 1 ? variable : fixed;
	for (int i = 0; i < 2; i++) {
		if (i == 1)
			getppid();
		try {
			f(2);
		} catch (int) {
			live++;
		}
	}
}
