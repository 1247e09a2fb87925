// A stack of a known depth: main, 50 times step, then wait in pause.
#include <stdio.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int n) {
	volatile char pad[24];
	pad[n & 15] = n;
	puts("ready");
	fflush(stdout);
	pause();
	return pad[n & 15];
}

__attribute__((noinline)) int step(int n) {
	volatile char pad[48];
	pad[n & 31] = n;
	int r = n > 1 ? step(n - 1) : leaf(n);
	return r + pad[n & 31];
}

#ifndef DEPTH
#define DEPTH 50
#endif

int main(void) { return step(DEPTH); }
