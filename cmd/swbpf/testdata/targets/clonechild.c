// Children that have the memory of a thread, and a stack that is in its own, until they execute a
// program: as posix_spawn makes them, in musl and in early versions of glibc.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int child(void *args)
{
	execve("/bin/true", args, environ);
	return 1;
}

static void *run(void *n)
{
	char *args[] = {"true", NULL};
	char stack[4096] __attribute__((aligned(16)));

	for (long i = 0; i < (long)n; i++) {
		int status = 1;
		pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, args);

		if (waitpid(pid, &status, 0) != pid || status)
			exit(1);
	}
	return NULL;
}

int main(void)
{
	pthread_t t;

	if (pthread_create(&t, NULL, run, (void *)20) || pthread_join(t, NULL))
		return 1;
	return 0;
}
