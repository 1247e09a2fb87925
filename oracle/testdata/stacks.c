/* Coroutines by makecontext, a thread, and children by fork, vfork and clone. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#ifndef NO_CONTEXT /* musl has no coroutines */
#include <ucontext.h>
#endif

#define NOINLINE __attribute__((noinline))

static volatile long sink;

NOINLINE static long deep(int n) { return n ? deep(n - 1) * 2 + 1 : 1; }

#ifndef NO_CONTEXT
static ucontext_t back, co[2];

NOINLINE static void pass(int self, int n) {
	if (n) {
		pass(self, n - 1);
		sink++;
		return;
	}
	swapcontext(&co[self], &co[!self]);
}

static void body(int self) {
	for (int i = 0; i < 3; i++) {
		sink += deep(3);
		pass(self, i);
	}
}

#endif

static void *thread(void *arg) {
	sink += deep(6);
	return arg;
}

static int child(void *arg) {
	sink += deep(4);
	return 0;
}

int main(void) {
	char *stack = malloc(3 << 16);
#ifndef NO_CONTEXT
	for (int i = 0; i < 2; i++) {
		getcontext(&co[i]);
		co[i].uc_stack.ss_sp = stack + (i << 16);
		co[i].uc_stack.ss_size = 1 << 16;
		co[i].uc_link = &back;
		makecontext(&co[i], (void (*)(void))body, 1, i);
	}
	swapcontext(&back, &co[0]);
#endif
	pthread_t t;
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	if (vfork() == 0)
		_exit(0);
	pid_t p = clone(child, stack + (3 << 16), SIGCHLD | CLONE_VM, NULL);
	waitpid(p, NULL, __WALL);
	wait(NULL);
	printf("%ld\n", sink);
	return 0;
}
