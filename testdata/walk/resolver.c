// A library one of whose functions is chosen when it is loaded (STT_GNU_IFUNC). What chooses
// says so and never returns: the loader has mapped the library, and has not told of it.
#include <sys/syscall.h>

static long call(long n, long a, long b, long c, long d) {
#ifdef __x86_64__
	long r;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return r;
#else
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
#endif
}

__attribute__((used)) static void *choose(void) {
	char said[] = "choosing\n"; // nothing is relocated yet
	call(SYS_write, 1, (long)said, sizeof said - 1, 0);
	for (;;)
		call(SYS_ppoll, 0, 0, 0, 0);
}

int chosen(void) __attribute__((ifunc("choose")));

int plugin(void) { return chosen(); }
