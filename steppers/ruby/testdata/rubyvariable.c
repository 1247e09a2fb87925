// What of Ruby leads to what its threads run: a variable of each thread, in a library or a program.
// It tells thread pointers and the variables' addresses, of two threads.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#ifdef LIBRARY
extern void tell(void);
#else
const char ruby_version[] = "3.1.2";

struct thread {
	uint64_t before[5];
	struct context *context;
};

struct context {
	uint64_t *stack, words, *current, more[3];
	struct thread *thread;
};

static __thread uint64_t other = 7;
#ifndef NAMED
static
#endif
__thread struct context *ruby_current_ec;
static __thread struct context context;
static __thread struct thread thread;
static __thread uint64_t stack[64];

void tell(void)
{
	thread.context = ruby_current_ec = &context;
	context.stack = stack;
	context.words = 64;
	context.current = stack + 64 - 8;
	context.thread = &thread;
	printf("%lu %lu\n", (uint64_t)__builtin_thread_pointer() + 0 * other, (uint64_t)&ruby_current_ec);
	fflush(stdout);
}
#endif

#ifndef SHARED
static void *run(void *arg)
{
	tell();
	pause();
	return arg;
}

int main(void)
{
	pthread_t t;

	tell();
	pthread_create(&t, 0, run, 0);
	pause();
}
#endif
