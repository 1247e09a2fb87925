// The parent of a vfork, which waits uninterruptibly until the child ends: at
// the end of a line of input.
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(void) {
	char c = 0;
	puts("ready");
	fflush(stdout);
	pid_t pid = vfork();
	if (!pid) {
		while (read(0, &c, 1) == 1 && c != '\n')
			;
		_exit(0);
	}
	puts("done");
	fflush(stdout);
	pause();
	return 0;
}
