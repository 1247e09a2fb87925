// Signal handlers on the thread's own stack and on an alternate one, which
// lies below or, as static memory never does but a mapping can, above it.
// argv[1]: plain, alt, segv, above.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((noinline)) void inner(void) {
	puts("ready");
	fflush(stdout);
	pause();
	__asm__ volatile("");
}

static void handler(int sig) {
	inner();
	__asm__ volatile("");
}

static volatile int *bad;

__attribute__((noinline)) int fall(int n, const char *how) {
	volatile char pad[40];
	pad[0] = n;
	int r = 0;
	if (n > 0)
		r = fall(n - 1, how);
	else if (!strcmp(how, "segv"))
		r = *bad;
	else
		raise(SIGUSR1);
	return r + pad[0];
}

static const char *how;

static void *run(void *altstack) {
	if (altstack) {
		stack_t ss = {.ss_sp = altstack, .ss_size = 1 << 16};
		sigaltstack(&ss, NULL);
	}
	fall(10, how);
	return NULL;
}

int main(int argc, char **argv) {
	how = argv[1];
	struct sigaction sa = {.sa_handler = handler};
	if (strcmp(how, "plain"))
		sa.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	if (strcmp(how, "above")) {
		run(strcmp(how, "plain") ? malloc(1 << 16) : NULL);
		return 0;
	}
	char *both = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t attr;
	pthread_t t;
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, both, 1 << 19);
	pthread_create(&t, &attr, run, both + (1 << 19));
	pthread_join(t, NULL);
}
