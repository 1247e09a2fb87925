/* Contexts: gone back to with setcontext, from deeper and from another stack,
   and one that ends where uc_link says. */
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;
static ucontext_t here, out, other;

NOINLINE static long deep(int n) { return n ? deep(n - 1) * 2 + 1 : 1; }

NOINLINE static void again(int n) {
	if (n) {
		again(n - 1);
		sink++;
		return;
	}
	setcontext(&here);
}

NOINLINE static void back(void) {
	volatile int times = 0;
	getcontext(&here);
	sink += deep(2);
	if (times++ < 3)
		again(times);
}

static void body(int n) {
	sink += deep(n);
	swapcontext(&other, &out);
	sink += deep(n);
}

int main(void) {
	char *stack = malloc(1 << 16);
	back();
	getcontext(&other);
	other.uc_stack.ss_sp = stack;
	other.uc_stack.ss_size = 1 << 16;
	other.uc_link = &out;
	makecontext(&other, (void (*)(void))body, 1, 3);
	swapcontext(&out, &other);
	sink += deep(3);
	swapcontext(&out, &other); /* which ends */
	back();
	printf("%ld\n", sink);
	return 0;
}
