/* The address of a nested function is that of code which GCC puts on the stack. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) static long each(int n, long (*f)(long)) {
	long s = 0;
	for (int i = 0; i < n; i++)
		s += f(i);
	return s;
}

__attribute__((noinline)) static long outer(long n) {
	long sum = n;
	volatile char large[200];
	int compare(const void *a, const void *b) { return sum++, *(const int *)a - *(const int *)b; }
	long inner(long x) {
		int order[] = {3, 1, x, 2};
		sum += large[x % 200] = x;
		if (x % 3 == 0)
			qsort(order, 4, sizeof *order, compare);
		return sum % 7 + order[0];
	}
	return each(5, inner);
}

int main(void) {
	printf("%ld\n", outer(3) + outer(4));
	return 0;
}
