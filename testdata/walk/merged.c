// A program that makes its own code writable, as those do that patch
// themselves: the mappings of its header and of its code become one.
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

extern char __executable_start[], etext[];

static __attribute__((noinline)) int waits(void) {
	char c;
	return read(0, &c, 1);
}

int main(void) {
	if (mprotect(__executable_start, etext - __executable_start, PROT_READ | PROT_WRITE | PROT_EXEC)) {
		perror("mprotect");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	return waits() + 1;
}
