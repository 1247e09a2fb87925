/* The same kinds of frames in a program that is all its own: no libc, so that
   every function was compiled with the flags under test. */
#define NOINLINE __attribute__((noinline, used))

static volatile long sink;

NOINLINE static long leaf(long a, long b) { return a * 31 + (b ^ a >> 3); }
NOINLINE static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
NOINLINE static long last(long x) { return x + 1; }
NOINLINE static long tail(long x) { sink++; return last(x * 2); }

NOINLINE static long many(long a, long b, long c, long d, long e, long f, long g, long h) {
	return leaf(a, b) + leaf(c, d) * leaf(e, f) - leaf(g, h);
}

NOINLINE static long large(int n) {
	volatile char big[3000];
	big[n] = (char)n;
	return leaf(big[n], n);
}

NOINLINE static long variable(int n) {
	volatile char p[n + 1];
	for (int i = 0; i < n; i++)
		p[i] = (char)leaf(i, n);
	return n ? p[n - 1] + leaf(p[0], n) : 0;
}

NOINLINE static long early(long x) {
	if (x < 3)
		return x;
	long a = leaf(x, 1), b = leaf(a, 2), c = leaf(b, 3);
	return many(a, b, c, x, a + b, b + c, a + c, fib((int)(x & 3)));
}

NOINLINE static long aligned(long x) {
	_Alignas(64) volatile long v[8];
	for (int i = 0; i < 8; i++)
		v[i] = leaf(x, i);
	return v[3] + v[7];
}

__attribute__((noreturn, noinline, used)) static void stop(long code) {
#ifdef __aarch64__
	register long number __asm__("x8") = 94, first __asm__("x0") = code;
	__asm__ volatile("svc #0" : : "r"(number), "r"(first) : "memory");
#else
	__asm__ volatile("syscall" : : "a"(231), "D"(code) : "rcx", "r11", "memory");
#endif
	__builtin_unreachable();
}

NOINLINE static long checked(long x) {
	if (x < 0)
		stop(x);
	return leaf(x, 4) + last(x);
}

NOINLINE static long inLoop(const char *s) {
	long n = 0;
	while (*s++)
		n = n * 7 + *s;
	return n;
}

struct node { struct node *left, *right; long v; };

NOINLINE static long tree(struct node *n) {
	if (!n)
		return 0;
	return tree(n->left) + n->v + tree(n->right);
}

NOINLINE static long machine(const char *prog) {
	long acc = 1;
	for (; *prog; prog++) {
		switch (*prog) {
		case 'a': acc += 3; break;
		case 'b': acc = leaf(acc, 2); break;
		case 'c': acc = early(acc); break;
		case 'd': acc ^= sink; break;
		case 'e': acc = many(acc, 1, 2, 3, 4, 5, 6, 7); break;
		case 'f': acc = fib((int)(acc & 3)); break;
		case 'g': acc = -acc; break;
		default: acc = tail(acc);
		}
	}
	return acc;
}

NOINLINE static long work(void) {
	long (*volatile fp)(long) = tail;
	long r = fib(8) + large(77) + variable(9) + variable(0) + fp(9);
	struct node a = {0, 0, 1}, b = {&a, 0, 2}, c = {&a, &b, 3};
	r += aligned(3) + checked(5) + inLoop("some text") + tree(&c);
	for (int i = 0; i < 8; i++)
		r += early(i) + machine("abcabdecfgzhab");
	return r;
}

__attribute__((noreturn, used)) static void begin(void) {
	sink = work();
	stop(0);
}

#ifdef __aarch64__
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n bl begin\n brk #1\n");
#else
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call begin\n hlt\n");
#endif
