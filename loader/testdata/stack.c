// Programs with a known stack. Each writes one byte when it is set up.
//
//   stack fill BYTES     fills BYTES of main's stack with a pattern and spins
//   stack deep BYTES     does so in a thread
//   stack gap BYTES      spins below a frame of BYTES that were never touched
//   stack sparse BYTES   does so in a thread
//   stack scatter BYTES  spins below a frame of BYTES of which half of the pages were touched
//   stack hole           spins with SP four pages below an unmapped page
//   stack nowhere        spins with SP at an address that is not mapped
//   stack threads N      spins in N threads named t0, t1, ..., the later
//                        half of them started once a byte can be read
//   stack spawn N        waits for a child that spins 512 bytes below the end of
//                        the stack given to it by system call N, clone or clone3
//   stack faults N       maps N pages and touches each; exits
//   stack getppid N      makes N system calls getppid; exits
//   stack children N MS  runs N children, one after another, that each burn
//                        MS milliseconds of CPU; exits
//   stack tree           has a child, which has one that computes and sleeps in turns,
//                        and one more for each byte that can be read; each writes a byte
//   stack user REAL EFFECTIVE
//                        computes and sleeps in turns as these users
#define _GNU_SOURCE
#include <linux/sched.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

__attribute__((noinline)) static void scatter(size_t bytes)
{
	volatile char *p = __builtin_alloca(bytes);
	unsigned random = 1;
	for (size_t at = 0; at < bytes; at += 4096)
		if ((random = random * 1103515245 + 12345) >> 30 & 1)
			p[at] = 1;
	spin(p);
	asm volatile("" : : "r"(p) : "memory");
}

static void *sparse(void *bytes)
{
	ready();
	gap((size_t)bytes);
	return NULL;
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

// Has this process end when its parent does, or at once where that has ended.
static void end_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
}

// Makes a child that ends with us.
static void spawn_at(long nr, unsigned long first, unsigned long second)
{
#if defined(__x86_64__)
	asm volatile("syscall\n"
		     "test %%rax, %%rax\n"
		     "jnz 2f\n"
		     "sub $512, %%rsp\n"
		     "mov %3, %%eax\n"
		     "mov %4, %%edi\n"
		     "mov %5, %%esi\n"
		     "syscall\n"
		     "1: jmp 1b\n"
		     "2:"
		     : "+a"(nr)
		     : "D"(first), "S"(second), "i"(SYS_prctl), "i"(PR_SET_PDEATHSIG), "i"(SIGKILL)
		     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long x8 asm("x8") = nr;
	register unsigned long x0 asm("x0") = first, x1 asm("x1") = second;
	asm volatile("svc #0\n"
		     "cbnz x0, 2f\n"
		     "sub sp, sp, #512\n"
		     "mov x8, %3\n"
		     "mov x0, %4\n"
		     "mov x1, %5\n"
		     "svc #0\n"
		     "1: b 1b\n"
		     "2:"
		     : "+r"(x0), "+r"(x1), "+r"(x8)
		     : "i"(SYS_prctl), "i"(PR_SET_PDEATHSIG), "i"(SIGKILL)
		     : "memory");
#endif
}

static void spawn(long nr)
{
	const size_t size = 16 << 10;
	char *stack = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct clone_args args = {
		.flags = CLONE_VM | CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.stack = (unsigned long)stack,
		.stack_size = size,
	};

	memset(stack, 0x5a, size);
	memset(stack + size, 0x77, size); // not of the stack
	ready();
	if (nr == SYS_clone)
		spawn_at(nr, CLONE_VM | CLONE_VFORK | SIGCHLD, (unsigned long)(stack + size));
	else
		spawn_at(nr, (unsigned long)&args, sizeof args);
}

static void take_turns(void)
{
	for (ready();; usleep(2000))
		burn(2);
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
	if (!strcmp(what, "scatter")) {
		ready();
		scatter(n);
	}
	if (!strcmp(what, "sparse")) {
		pthread_t t;
		if (pthread_create(&t, NULL, sparse, (void *)n) || pthread_join(t, NULL))
			return 1;
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
	if (!strcmp(what, "spawn")) {
		spawn(n);
		return 3; // the child cannot have ended
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
	if (!strcmp(what, "tree")) {
		char byte;
		pid_t parent = getpid();
		if (fork())
			for (;;)
				pause();
		end_with(parent);
		parent = getpid();
		do {
			if (fork())
				continue;
			end_with(parent);
			take_turns();
		} while (read(0, &byte, 1) == 1);
		return 0;
	}
	if (!strcmp(what, "user")) {
		if (setresuid(n, argc > 3 ? atol(argv[3]) : 0, 0))
			return 1;
		take_turns();
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
