// Programs with a known stack. Each writes one byte when it is set up.
//
//   stack fill BYTES     fills BYTES of main's stack with a pattern and spins
//   stack deep BYTES     does so in a thread
//   stack gap BYTES      spins below a frame of BYTES that were never touched
//   stack hole           spins with SP four pages below an unmapped page
//   stack nowhere        spins with SP at an address that is not mapped
//   stack threads N      spins in N threads named t0, t1, ..., the later
//                        half of them started once a byte can be read
//   stack faults N       maps N pages and touches each; exits
//   stack getppid N      makes N system calls getppid; exits
//   stack children N MS  runs N children, one after another, that each burn
//                        MS milliseconds of CPU; exits
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void ready(void)
{
	if (write(1, ".", 1) != 1)
		exit(1);
}

__attribute__((noinline)) static void spin(const volatile char *keep)
{
	for (;;)
		asm volatile("" : : "r"(keep) : "memory");
}

__attribute__((noinline)) static void fill(size_t bytes)
{
	volatile char *p = __builtin_alloca(bytes);
	unsigned x = 12345;
	for (size_t i = 0; i < bytes; i++) {
		x = x * 1103515245 + 12345;
		p[i] = x >> 16;
	}
	ready();
	spin(p);
	asm volatile("" : : "r"(p) : "memory");
}

static void *deep(void *bytes)
{
	fill((size_t)bytes);
	return NULL;
}

__attribute__((noinline)) static void gap(size_t bytes)
{
	volatile char *p = __builtin_alloca(bytes);
	spin(p);
	asm volatile("" : : "r"(p) : "memory");
}

static void spin_at(char *sp)
{
	ready();
#if defined(__x86_64__)
	asm volatile("mov %0, %%rsp\n1: jmp 1b" : : "r"(sp));
#elif defined(__aarch64__)
	asm volatile("mov sp, %0\n1: b 1b" : : "r"(sp));
#endif
}

static void *thread(void *arg)
{
	char name[16];
	snprintf(name, sizeof name, "t%ld", (long)arg);
	pthread_setname_np(pthread_self(), name);
	spin(name);
	return NULL;
}

static void start(long i)
{
	pthread_t t;
	if (pthread_create(&t, NULL, thread, (void *)i))
		exit(1);
}

static void burn(long ms)
{
	struct timespec ts;
	do
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	while (ts.tv_sec * 1000 + ts.tv_nsec / 1000000 < ms);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long n = argc > 2 ? atol(argv[2]) : 0;
	char c;

	if (!strcmp(what, "fill"))
		fill(n);
	if (!strcmp(what, "deep")) {
		pthread_t t;
		if (pthread_create(&t, NULL, deep, (void *)n) || pthread_join(t, NULL))
			return 1;
	}
	if (!strcmp(what, "gap")) {
		ready();
		gap(n);
	}
	if (!strcmp(what, "hole")) {
		char *p = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(p, 0x5a, 4 * 4096);
		munmap(p + 4 * 4096, 4096);
		spin_at(p + 8);
	}
	if (!strcmp(what, "nowhere"))
		spin_at((char *)0x10000);
	if (!strcmp(what, "threads")) {
		for (long i = 0; i < n / 2; i++)
			start(i);
		ready();
		if (read(0, &c, 1) != 1)
			return 1;
		for (long i = n / 2; i < n; i++)
			start(i);
		pause();
	}
	if (!strcmp(what, "faults")) {
		char *p = mmap(NULL, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(p, n * 4096, MADV_NOHUGEPAGE);
		for (long i = 0; i < n; i++)
			p[i * 4096] = 1;
		return 0;
	}
	if (!strcmp(what, "getppid")) {
		for (long i = 0; i < n; i++)
			syscall(SYS_getppid);
		return 0;
	}
	if (!strcmp(what, "children")) {
		long ms = argc > 3 ? atol(argv[3]) : 0;
		for (long i = 0; i < n; i++) {
			pid_t pid = fork();
			if (!pid) {
				burn(ms);
				_exit(0);
			}
			waitpid(pid, NULL, 0);
		}
		return 0;
	}
	return 2;
}
