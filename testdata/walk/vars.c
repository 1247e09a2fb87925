// Frames full of variables of every type that C has, standing still in read().
#include <complex.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define NOINLINE __attribute__((noinline, noclone))
#define HIDE(x) __asm__ volatile("" : "+r"(x))

enum color { RED, GREEN = 5, BLUE };
enum flags { F_A = 1, F_B = 2, F_C = 8 };

struct point {
	int x, y;
};

struct record {
	char name[16];
	struct point at;
	const char *text;
	unsigned a : 3;
	int b : 5;
	unsigned long long c : 40;
	enum color color;
	double weight;
	int (*apply)(int);
	bool on;
	union {
		int i;
		float f;
	};
	int data[];
};

union either {
	uint32_t word;
	float real;
	unsigned char bytes[4];
};

typedef struct record record_t;
typedef int (*apply_t)(int);

#ifdef __SIZEOF_INT128__
typedef __int128 wide_t;
typedef unsigned __int128 uwide_t;
#else
typedef long long wide_t;
typedef unsigned long long uwide_t;
#endif

static volatile int sink;
static __thread int counter = 41;

static int twice(int v) { return v + v; }

NOINLINE static long stand(const char *why, int depth) {
	char c[4] = {1, 2, 3, 4};
	static int calls = 7;
	static __thread char mark = 'm';
	static __thread long per_thread __attribute__((aligned(64))) = 17;
	calls++;
	printf("ready\n");
	fflush(stdout);
	long n = read(0, c, 1);
	sink += c[0] + (int)strlen(why) + depth + calls + counter + mark + (int)per_thread;
	return n;
}

NOINLINE static long scalars(int i, unsigned u, long l, unsigned char uc, signed char sc, short s, double d, float f) {
	bool yes = true, no = false;
	char letter = 'x', newline = '\n', high = (char)0xfe;
	unsigned short us = 65535;
	long long ll = -1234567890123456789LL;
	unsigned long long ull = 18446744073709551615ULL;
	wide_t wide = (wide_t)ll * 1000000007;
	uwide_t uwide = ~(uwide_t)0;
	long double ld = 1.0L / 3.0L;
	double complex z = 1.5 + 2.25 * I;
	wchar_t w = L'\u00e9';
	double tiny = 5e-324, none = 0.0 / (double)(sink - sink), inf = 1e308 * 10;
	enum color green = GREEN, odd = (enum color)77;
	enum flags both = F_A | F_C, more = (enum flags)(F_B | 64);
	long r = stand("scalars", i);
	sink += yes + no + letter + newline + high + us + (int)ll + (int)ull + (int)wide + (int)uwide + (int)ld + (int)creal(z) + w +
		(tiny > 0) + (none == none) + (inf > 1) + green + odd + both + more;
	return r + u + l + uc + sc + s + (long)d + (long)f;
}

NOINLINE static long aggregates(record_t *rec, struct point by_value, const struct point *by_pointer) {
	struct record copy = *rec;
	union either e = {.real = 1.5f};
	int numbers[6] = {3, 1, 4, 1, 5, 9};
	int matrix[2][3] = {{1, 2, 3}, {4, 5, 6}};
	struct point points[2] = {{1, 2}, {3, 4}};
	char text[] = "tab\tquote\"end";
	char full[4] = {'a', 'b', 'c', 'd'};
	char *nul = NULL;
	unsigned char raw[3] = {0, 255, 'A'};
	const char *strings[2] = {"one", "two"};
	apply_t fn = twice;
	void *nothing = NULL;
	struct point *volatile self = &points[1];
	struct {
		int inner;
		struct point p;
	} anonymous = {8, {9, 10}};
	const volatile int cv = 17;
	int zeros[40] = {0};
	long r = scalars(-1, 2, 3, 200, -100, -5, 2.5, 0.1f);
	sink += copy.a + e.word + numbers[sink & 3] + matrix[1][sink & 1] + points[0].x + text[0] + full[1] + (nul != NULL) + raw[1] +
		strings[1][0] + fn(2) + (nothing != NULL) + self->x + anonymous.inner + cv + zeros[sink & 7];
	return r + by_value.x + by_pointer->y;
}

NOINLINE static long variable_length(int n, int m) {
	int vla[n];
	short grid[n][m];
	for (int i = 0; i < n; i++) {
		vla[i] = i * i;
		for (int j = 0; j < m; j++)
			grid[i][j] = (short)(10 * i + j);
	}
	struct point p = {n, m};
	struct {
		record_t r;
		int room[2];
	} big = {.r = {.name = "record", .at = {1, -1}, .text = "some text", .a = 5, .b = -3, .c = 1ULL << 39, .color = BLUE, .weight = 3.14, .apply = twice, .on = true, .i = 7}};
	long r = aggregates(&big.r, p, &p);
	sink += vla[n - 1] + grid[n - 1][m - 1];
	return r;
}

static inline __attribute__((always_inline)) int clamp(int value, int low, int high) {
	int result = value < low ? low : value > high ? high : value;
	HIDE(result);
	return result;
}

static inline __attribute__((always_inline)) long inlined(int outer_arg) {
	int mine = outer_arg * 3;
	HIDE(mine);
	{
		int block = mine + 1;
		struct point pair = {block, outer_arg};
		HIDE(block);
		int limited = clamp(block, 0, 20);
		long r = variable_length(3, 2);
		sink += limited + pair.x + pair.y + block;
		return r + mine;
	}
}

NOINLINE static long many(int a, int b, int c, int d, int e, int f, int g, int h) {
	int sum = a + b + c + d + e + f + g + h;
	for (int i = 0; i < 2; i++) {
		long each = inlined(i + a);
		sum += (int)each;
		if (sink < 0) {
			int never = sum;
			sink = never;
		}
	}
	return sum;
}

NOINLINE static long recurse(int depth, const char *name) {
	int local = depth * 100;
	if (depth == 0)
		return many(1, 2, 3, 4, 5, 6, 7, 8);
	long r = recurse(depth - 1, name + 1);
	return r + local;
}

int main(int argc, char **argv) {
	int unused = argc * 2;
	long r = recurse(3, "abcdef");
	return (int)(r + sink) & (argv == NULL) & unused;
}
