/*
 * Gets so many blocks of memory in each of some ways, and keeps them or gives them back. With
 * "exec" it runs itself in the place of itself in the end, without; with "threads" what one thread
 * gets another gives back; with "peak" it gets much more before, and gives it back; with "wait" it tells on its standard
 * output that it waits, gets them when it is told to by its standard input, tells when it has them, and
 * waits for its end.
 */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static void **kept;
static size_t n;

static APART void keep(void) { kept[n++] = malloc(1000); }
static APART void give_back(void) { free(malloc(3000)); }
static APART void zeroed(void) { kept[n++] = calloc(7, 100); }
static APART void aligned(void) { kept[n++] = aligned_alloc(64, 640); }
static APART void memaligned(void) { free(memalign(64, 500)); }

static APART void posix_aligned(void)
{
	if (!posix_memalign(&kept[n++], 4096, 8192) && n % 2)
		free(kept[n - 1]);
}

static void *growing;

static APART void grow(void)
{
	static size_t size;
	growing = realloc(growing, size += 100);
}

static APART void grow_array(void)
{
	static size_t count;
	static void *array;
	array = reallocarray(array, count += 2, 50);
}

static APART void too_much(void)
{
	volatile size_t all = -4096;
	kept[n++] = malloc(all);
}

#if defined(__x86_64__)
#define RESULT(p) "a"(p) /* where malloc leaves it, so that nothing comes between */
#else
#define RESULT(p) "r"(p)
#endif

/* The address that malloc returns to is in another function, by its lines, than the call. */
static inline __attribute__((always_inline)) void *taken(void) { return malloc(150); }

static inline __attribute__((always_inline)) void used(void *p)
{
	asm volatile("nop" : : RESULT(p) : "memory");
	free(p);
}

static APART void take_and_use(void) { used(taken()); }

static APART void nothing(void) { free(realloc(NULL, 200)); }

static APART void *get(void *unused)
{
	for (int i = 0; i < 1000; i++)
		kept[n++] = malloc(400);
	return NULL;
}

static APART void get_much(void)
{
	void *much[1000];

	for (int i = 0; i < 1000; i++)
		much[i] = malloc(10000);
	for (int i = 0; i < 1000; i++)
		free(much[i]);
}

static void threads(void)
{
	pthread_t t;

	pthread_create(&t, NULL, get, NULL);
	pthread_join(t, NULL);
	for (int i = 0; i < 900; i++)
		free(kept[--n]);
}

int main(int argc, char **argv)
{
	size_t count = atoi(argv[1]);
	const char *how = argc > 2 ? argv[2] : "";

	kept = mmap(NULL, (8 * count + 1000) * sizeof(*kept), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!strcmp(how, "threads")) {
		threads();
		return 0;
	}
	if (!strcmp(how, "peak"))
		get_much();
	if (!strcmp(how, "wait")) {
		write(1, "wait\n", 5);
		getchar();
	}
	for (size_t i = 0; i < count; i++) {
		keep();
		give_back();
		zeroed();
		aligned();
		memaligned();
		posix_aligned();
		grow();
		grow_array();
		too_much();
		nothing();
		take_and_use();
	}
	if (!strcmp(how, "exec"))
		execl("/proc/self/exe", argv[0], "10", NULL);
	if (!strcmp(how, "wait")) {
		write(1, "done\n", 5);
		pause();
	}
	return 0;
}
