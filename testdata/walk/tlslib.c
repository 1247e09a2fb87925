// A library with thread-local variables, and, with -DLIB=path, a program that
// loads it: it waits in the library.
#ifdef LIB
#include <dlfcn.h>
#include <pthread.h>
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static int (*wait_here)(int, int);

static void *other(void *arg)
{
	wait_here(3, 0);
	return arg;
}

int main(void)
{
	void *lib = dlopen(TEXT(LIB), RTLD_NOW);
	if (!lib)
		return 1;
	wait_here = (int (*)(int, int))dlsym(lib, "wait_here");
	pthread_t t;
	pthread_create(&t, 0, other, 0);
	pthread_join(t, 0); // it has memory of its own for the variables
	return wait_here(7, 1);
}
#else
#include <stdio.h>
#include <unistd.h>

#ifdef __cplusplus
// Other files could define these as well: the loader finds them by name.
#define EXPORTED inline
extern "C" int wait_here(int, int);
#else
#define EXPORTED static
#endif

EXPORTED __thread char before[100] = "before";

EXPORTED int waiting(int n, int last)
{
	static __thread long mine = 17;
	static __thread int zero;

	mine += n;
	zero -= n;
	if (last) {
		char c;
		puts("ready");
		fflush(stdout);
		read(0, &c, 1);
	}
	return (int)mine + zero + before[0];
}

int wait_here(int n, int last) { return waiting(n, last); }
#endif
