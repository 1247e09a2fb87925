// A recursion whose argument is not kept: what it was is only known from the caller,
// and so on.
#include <stdio.h>
#include <unistd.h>

__attribute__((noinline)) long recurse(int n, const volatile char *p) {
	volatile char local[32];
	long r;
	local[n & 31] = n;
	if (n == 0) {
		char c;
		puts("ready");
		fflush(stdout);
		r = read(0, &c, 1);
	} else {
		r = recurse(n - 1, local);
	}
	return r + local[3];
}

int main(void) { return recurse(100, 0); }
