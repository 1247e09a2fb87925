/* A bit of everything that makes frames different: recursion, callbacks,
   jump tables, variable and aligned frames, tail calls, string functions,
   jumps out of frames. */
#include <alloca.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;
static jmp_buf env;

NOINLINE static long leaf(long a, long b) { return a * 31 + (b ^ a >> 3); }

NOINLINE static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

static int compare(const void *a, const void *b) {
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

NOINLINE static long sorted(int n) {
	int *v = malloc(n * sizeof *v);
	long sum = 0;
	for (int i = 0; i < n; i++)
		v[i] = (int)(i * 2654435761u >> 8);
	qsort(v, n, sizeof *v, compare);
	for (int i = 0; i < n; i++)
		sum += v[i] * (long)i;
	free(v);
	return sum;
}

NOINLINE static long many(long a, long b, long c, long d, long e, long f, long g, long h) {
	return leaf(a, b) + leaf(c, d) * leaf(e, f) - leaf(g, h);
}

NOINLINE static long machine(const char *prog) {
	long acc = 1, top = 0, st[16];
	for (; *prog; prog++) {
		switch (*prog) {
		case 'a': acc += 3; break;
		case 'b': acc = leaf(acc, 2); break;
		case 'c': st[top++ & 15] = acc; break;
		case 'd': acc ^= st[--top & 15]; break;
		case 'e': acc = many(acc, 1, 2, 3, 4, 5, 6, 7); break;
		case 'f': acc = fib((int)(acc & 3)); break;
		case 'g': acc = -acc; break;
		case 'h': acc = sink; break;
		case 'i': acc *= 7; break;
		case 'j': sink = acc; break;
		default: abort();
		}
	}
	return acc + top;
}

NOINLINE static long variable(int n) {
	char *p = alloca(n * 8 + 1);
	long v[n];
	memset(p, n, n * 8);
	for (int i = 0; i < n; i++)
		v[i] = leaf(p[i * 8], i);
	for (int i = 0; i < 3; i++) {
		char *q = alloca(16 * (i + 1));
		q[0] = (char)i;
		sink += q[0];
	}
	return n ? v[n - 1] + leaf(p[0], n) : 0;
}

NOINLINE static double aligned(double x) {
	_Alignas(64) double v[8];
	for (int i = 0; i < 8; i++)
		v[i] = x * i;
	sink += leaf((long)v[3], (long)v[7]);
	return sqrt(v[1]) + v[7];
}

NOINLINE static long large(int n) {
	volatile char big[20000];
	big[n] = (char)n;
	return leaf(big[n], n);
}

NOINLINE static long variadic(int n, ...) {
	va_list ap;
	long sum = 0;
	va_start(ap, n);
	for (int i = 0; i < n; i++)
		sum += i & 1 ? (long)va_arg(ap, double) : va_arg(ap, long);
	va_end(ap);
	return sum;
}

NOINLINE static long last(long x) { return x + 1; }
NOINLINE static long tail(long x) { sink++; return last(x * 2); }

NOINLINE static void thrower(int n) {
	if (n == 0)
		longjmp(env, 7);
	thrower(n - 1);
	sink++;
}

NOINLINE static long catcher(void) {
	int r = setjmp(env);
	if (r == 0)
		thrower(5);
	return leaf(r, 1);
}

struct wide { long v[6]; };
NOINLINE static struct wide structure(long x) {
	struct wide w;
	for (int i = 0; i < 6; i++)
		w.v[i] = leaf(x, i);
	return w;
}

NOINLINE static long strings(void) {
	char a[600], b[600];
	long n = 0;
	for (int len = 1; len < 500; len = len * 2 + 3) {
		memset(a, 'x', len);
		a[len] = 0;
		memcpy(b, a, len + 1);
		memmove(b + 1, b, len);
		n += strlen(a) + strcmp(a, b) + (strchr(a, 'y') == NULL) + (memchr(b, 0, len + 1) != NULL);
		strcpy(b, a);
		strncat(b, "abc", 3);
		n += strspn(b, "x") + (strstr(b, "abc") - b);
	}
	return n;
}

int main(void) {
	long (*volatile fp)(long) = tail;
	char buf[128];
	long r = fib(7) + sorted(24) + machine("abcabdecfghijjab") + variable(9) + variable(0);
	r += (long)aligned(2.5) + large(77) + variadic(5, 1L, 2.0, 3L, 4.0, 5L) + fp(9) + catcher();
	r += structure(3).v[5] + strings();
	snprintf(buf, sizeof buf, "%ld %s %g %x", r, "text", 2.5, 255);
	puts(buf);
	return 0;
}
