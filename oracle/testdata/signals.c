/* Signals on the normal and on an alternate stack, nested, from a fault, and
   left by a jump. With an argument the alternate stack lies above the
   thread's own. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile sig_atomic_t seen;
static sigjmp_buf env;
static volatile long sink;

NOINLINE static long leaf(long a) { return a * 3 + 1; }
NOINLINE static long deep(int n) { return n ? deep(n - 1) + leaf(n) : leaf(0); }

static void plain(int sig) { seen += (int)deep(2); }
static void nested(int sig) { raise(SIGUSR1); seen += (int)deep(1); }
static void info(int sig, siginfo_t *si, void *uc) { seen += (int)deep(si->si_signo & 3); }
static void fault(int sig, siginfo_t *si, void *uc) { deep(2); siglongjmp(env, 1); }

static void install(int sig, void (*h)(int), void (*a)(int, siginfo_t *, void *), int flags) {
	struct sigaction sa;
	memset(&sa, 0, sizeof sa);
	if (a) {
		sa.sa_sigaction = a;
		flags |= SA_SIGINFO;
	} else {
		sa.sa_handler = h;
	}
	sa.sa_flags = flags;
	sigaction(sig, &sa, NULL);
}

NOINLINE static void run(int n) {
	if (n) {
		run(n - 1);
		sink++;
		return;
	}
	raise(SIGUSR1);
	raise(SIGUSR2);
	kill(getpid(), SIGALRM);
	for (int i = 0; i < 3; i++)
		sink += deep(i);
	if (sigsetjmp(env, 1) == 0)
		*(volatile int *)8 = 1;
	sink += deep(3);
}

int main(int argc, char **argv) {
	size_t size = 64 << 10;
	stack_t ss = {.ss_size = size};
	ss.ss_sp = argc > 1 ? mmap((void *)0x7ffffff00000, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
	                    : malloc(size);
	sigaltstack(&ss, NULL);
	install(SIGUSR1, plain, NULL, 0);
	install(SIGUSR2, nested, NULL, SA_ONSTACK);
	install(SIGALRM, NULL, info, SA_ONSTACK);
	install(SIGSEGV, NULL, fault, SA_ONSTACK);
	for (int i = 0; i < 3; i++)
		run(i);
	printf("%d %ld\n", (int)seen, sink);
	return 0;
}
