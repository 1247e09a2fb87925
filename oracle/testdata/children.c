/* A child of vfork, which runs on its parent's stack, and with an argument one
   of posix_spawn, which runs on a stack of its own in the same memory. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

extern char **environ;
static volatile long sink;

NOINLINE static long deep(int n) { return n ? deep(n - 1) * 3 + 1 : 1; }

NOINLINE static pid_t child(int n) {
	pid_t pid = vfork();
	if (pid == 0) {
		char text[40];
		sink += deep(n);
		snprintf(text, sizeof text, "%ld", sink);
		sink += (long)strlen(text);
		_exit(0);
	}
	return pid;
}

int main(int argc, char **argv) {
	char *const args[] = {"true", NULL};
	pid_t pid;
	if (argc > 1) {
		if (posix_spawn(&pid, "/bin/true", NULL, NULL, args, environ) != 0)
			return 1;
	} else {
		pid = child(12);
	}
	waitpid(pid, NULL, 0);
	return 0;
}
