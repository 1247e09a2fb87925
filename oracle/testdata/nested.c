/* Functions that call one another deeply, by tail calls and recursion too, to
   be judged under uretprobes; see probes.go. */
#include <setjmp.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;
static jmp_buf env;

NOINLINE long leaf(long a) { return a * 3 + sink; }
NOINLINE void tail(long a) { sink += leaf(a); }
NOINLINE void jumper(long a) { sink++; tail(a + 1); }
NOINLINE void plain(long a) { jumper(a); sink += leaf(a); }
NOINLINE void rec(int n) {
	volatile char pad[40];
	pad[n] = n;
	if (n)
		rec(n - 1);
	else
		plain(n);
	sink += pad[n];
}
NOINLINE void framed(int n) {
	volatile char *pad = __builtin_alloca(16 + 8 * n);
	pad[n] = n;
	rec(n);
	sink += pad[n];
}
NOINLINE void f3(int n) { framed(n); sink++; }
NOINLINE void f2(int n) { f3(n); sink++; }
NOINLINE void f1(int n) { f2(n); sink++; }
NOINLINE void leave(int n) { if (n) leave(n - 1); else longjmp(env, 1); sink++; }
NOINLINE void jump(int n) { if (!setjmp(env)) leave(n); sink++; }

int main(void) {
	for (int i = 0; i < 6; i++) {
		f1(i);
		jump(i);
		f1(2);
	}
	return 0;
}
