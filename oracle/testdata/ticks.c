/* Signals at any instruction: a timer interrupts code of every kind, its
   handler runs on an alternate stack, and is itself interrupted. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))

static volatile sig_atomic_t ticks;
static volatile long sink;

NOINLINE static long deep(int n) { return n ? deep(n - 1) * 3 + 1 : 1; }

static void nested(int sig) { ticks++; sink += deep(1); }

static void tick(int sig, siginfo_t *info, void *context) {
	ticks++;
	sink += deep(2);
	if (ticks % 3 == 0)
		raise(SIGUSR1);
}

static int ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(void) {
	struct itimerval every = {{0, 7000}, {0, 7000}};
	stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
	struct sigaction sa = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	char text[64];
	int v[40];
	sigaltstack(&stack, NULL);
	sigaction(SIGALRM, &sa, NULL);
	signal(SIGUSR1, nested);
	setitimer(ITIMER_REAL, &every, NULL);
	for (int round = 0; round < 2000; round++) {
		for (int i = 0; i < 40; i++)
			v[i] = (int)(i * 2654435761u + round) & 0xfff;
		qsort(v, 40, sizeof *v, ascending);
		snprintf(text, sizeof text, "%d %s", v[0], "text");
		sink += (long)strlen(text) + deep(3) + time(NULL) % 2 + (strchr(text, 't') != NULL);
		memmove(text + 1, text, 32);
	}
	return 0;
}
