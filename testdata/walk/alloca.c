// Frames of varying size on a stack full of stale return addresses.
#include <alloca.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) int leaf(int n) {
	volatile char pad[16];
	pad[0] = n;
	puts("ready");
	fflush(stdout);
	pause();
	return pad[0];
}

__attribute__((noinline)) int dirt(int n) {
	volatile long pad[64];
	for (int i = 0; i < 64; i++)
		pad[i] = (long)dirt + i;
	return n > 0 ? dirt(n - 1) + pad[n & 63] : pad[3];
}

__attribute__((noinline)) int step(int n) {
	volatile char *p = alloca(16 + (n * 7919) % 700);
	p[0] = n;
	int r = n > 1 ? step(n - 1) : leaf(n);
	return r + p[0];
}

int main(void) {
	dirt(200);
	return step(50);
}
