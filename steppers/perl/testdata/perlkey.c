// How Perl finds the interpreter of a thread: the C library has it under a key. It tells where the key
// is, and of two threads the thread pointer and what is there.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static pthread_key_t PL_thr_key;

static void tell(void *interpreter)
{
	pthread_setspecific(PL_thr_key, interpreter);
	printf("%lu %lu\n", (uint64_t)__builtin_thread_pointer(), (uint64_t)interpreter);
	fflush(stdout);
}

static void *run(void *interpreter)
{
	tell(interpreter);
	pause();
	return 0;
}

int main(void)
{
	pthread_t t;
	pthread_key_t before;

	pthread_key_create(&before, 0);
	pthread_key_create(&PL_thr_key, 0);
	printf("%lu\n", (uint64_t)&PL_thr_key);
	tell((void *)0x11223344556678);
	pthread_create(&t, 0, run, (void *)0x11223344556680);
	pause();
}
