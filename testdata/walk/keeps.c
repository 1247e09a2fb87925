/* Has a register for its own over a call of the C library, as interpreters have, and tells
 * what is in it. */
#include <stdio.h>
#include <unistd.h>

register unsigned long own __asm__("r14");

static __attribute__((noinline)) void keeps(void)
{
	own = 0x1122334455667788;
	printf("{\"TID\": %d, \"Calls\": %lu}\n", getpid(), own);
	fflush(stdout);
	sleep(1000);
	__asm__ volatile("" : "+r"(own));
}

int main(void)
{
	keeps();
	return 0;
}
