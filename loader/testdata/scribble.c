// scribble THREADS CALLS WORDS: threads that keep changing some of WORDS words
// on their stacks, in a way that can be told from the number of the round, and
// make a system call getppid after each of CALLS rounds. The words follow
// a magic one, the number of the thread, and that of the round.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static long calls, words;

__attribute__((noinline)) static void scribble(uint64_t thread)
{
	volatile uint64_t *p = __builtin_alloca((3 + words) * 8);
	uint64_t x = thread;

	p[1] = thread;
	for (long i = 0; i < words; i++)
		p[3 + i] = 0;
	p[0] = 0x5c21bb1e5c21bb1e;
	for (long round = 1; round <= calls; round++) {
		// Once in a while all of them, else a few.
		for (long n = round % 97 ? round % 13 : words; n > 0; n--) {
			x = x * 6364136223846793005 + 1442695040888963407;
			p[3 + (x >> 20) % words] = x;
		}
		p[2] = round;
		syscall(SYS_getppid);
	}
}

static void *thread(void *arg)
{
	scribble((uintptr_t)arg);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t t[64];
	long n = atol(argv[1]);

	calls = atol(argv[2]);
	words = atol(argv[3]);
	for (long i = 1; i < n; i++)
		if (pthread_create(&t[i], NULL, thread, (void *)i))
			return 1;
	scribble(0);
	for (long i = 1; i < n; i++)
		pthread_join(t[i], NULL);
	return 0;
}
