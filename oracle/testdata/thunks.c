/* Indirect branches of all kinds, which compilers replace by returns: calls, with
 * arguments on the stack and without, jumps to functions, and to labels. */
#include <stdio.h>
#include <stdlib.h>

typedef int (*fn)(int);

__attribute__((noinline)) static int inc(int x) { return x + 1; }
__attribute__((noinline)) static int twice(int x) { return inc(x) * 2; }
__attribute__((noinline)) static int neg(int x) { return -x; }
static fn volatile table[] = {inc, twice, neg};

__attribute__((noinline)) static int tail(int i, int x) { return table[i](x); }

__attribute__((noinline)) static int choose(int i, int x) {
	switch (i) {
	case 0: return inc(x) + 5;
	case 1: return twice(x);
	case 2: return neg(x) * 3;
	case 3: return x ^ 7;
	case 4: return tail(1, x);
	case 5: return inc(inc(x));
	case 6: return x * 9;
	}
	return 0;
}

__attribute__((noinline)) static int interpret(const char *code, int x) {
	static const void *const labels[] = {&&add, &&call, &&end};
	int large[20] = {x};
	goto *labels[*code++ - 'a'];
add:
	large[x & 7] += x++;
	goto *labels[*code++ - 'a'];
call:
	x = tail(x % 3, x) + choose(x & 7, large[1]);
	goto *labels[*code++ - 'a'];
end:
	return x + large[0];
}

static int compare(const void *a, const void *b) { return table[0](*(const int *)a) - table[0](*(const int *)b); }

__attribute__((noinline)) static int sum(int a, int b, int c, int d, int e, int f, int g, int h) { return a + b + c + d + e + f + g + h; }
static int (*volatile many)(int, int, int, int, int, int, int, int) = sum;

int main(void) {
	int s = 0, a[] = {5, 2, 8, 1, 9, 3};
	for (int i = 0; i < 30; i++)
		s += tail(i % 3, i) + choose(i % 8, i);
	s += interpret("abababbac", 3);
	qsort(a, 6, sizeof *a, compare);
	s += many(1, 2, 3, s, 5, 6, 7, a[0]);
	printf("%d %d\n", s, a[1]);
	return 0;
}
