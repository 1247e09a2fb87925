/* Functions that are given more stack when they have used theirs up. */
#include <stdio.h>

__attribute__((noinline)) static long deep(long n, long a) {
	volatile char pad[3000];
	pad[n & 1023] = a;
	return n ? deep(n - 1, a + 1) + pad[5] : a;
}

int main(void) {
	printf("%ld\n", deep(40, 3));
	return 0;
}
