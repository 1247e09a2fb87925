/*
 * Two threads that tell profilers what they work on, as OpenTelemetry's SDKs do (OTEP 4719, 4947), and a third that
 * does not. Usage: contexts SECONDS [LIBRARY]: with a library the variable is in that, loaded now; with "-" in
 * one that is there already; with "none" nowhere, and just the process tells what it is; with "quiet" not even
 * that; else here. With "sleep" behind that they sleep most of the time; with "exec" the program runs once more, quiet; with "alone"
 * the main thread is the only one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

struct record {
	uint8_t trace[16], span[8], valid, flags;
	uint16_t bytes;
	uint8_t attributes[64];
};

static void (*publish_record)(void *);
static double until;

#ifdef OWN
__thread void *otel_thread_ctx_v1;
void publish(void *record) { otel_thread_ctx_v1 = record; }
#endif

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Appends a field of protobuf, of bytes. */
static uint8_t *field(uint8_t *to, int number, const void *bytes, size_t n)
{
	*to++ = number << 3 | 2;
	if (n >= 128)
		*to++ = 128 | (n & 127), n >>= 7, *to++ = n, n = (n << 7) | (to[-2] & 127);
	else
		*to++ = n;
	memcpy(to, bytes, n);
	return to + n;
}

static uint8_t *text_attribute(uint8_t *to, int number, const char *key, const char *value)
{
	uint8_t any[128], kv[256], *end = field(any, 1, value, strlen(value));
	uint8_t *kv_end = field(field(kv, 1, key, strlen(key)), 2, any, end - any);

	return field(to, number, kv, kv_end - kv);
}

static void publish_process(void)
{
	struct {
		char signature[8];
		uint32_t version, bytes;
		uint64_t published;
		void *payload;
	} *head;
	static uint8_t payload[1024];
	uint8_t resource[512], texts[128], array[160], any[200], kv[300], *end;

	end = text_attribute(resource, 1, "service.name", "shop");
	end = text_attribute(end, 1, "service.version", "1.2");
	end = text_attribute(end, 1, "telemetry.sdk.language", "c");
	end = field(payload, 1, resource, end - resource);
	uint8_t *t = field(texts, 1, "http.route", 10), *a = field(array, 1, texts, t - texts);
	t = field(texts, 1, "tenant", 6);
	a = field(a, 1, texts, t - texts);
	uint8_t *n = field(any, 5, array, a - array), *k = field(kv, 1, "threadlocal.attribute_key_map", 29);
	k = field(k, 2, any, n - any);
	end = field(end, 2, kv, k - kv);
	end = text_attribute(end, 2, "threadlocal.schema_version", "tls_v1");

	int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, 4096))
		exit(2);
	head = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (head == MAP_FAILED)
		exit(2);
	close(fd);
	head->version = 2;
	head->bytes = end - payload;
	head->published = 1;
	head->payload = payload;
	__sync_synchronize();
	memcpy(head->signature, "OTEL_CTX", 8);
}

static void nothing(void *record) {}

static int sleeps; /* and does not compute */

APART static void spin(double seconds)
{
	double end = now() + seconds;

	if (sleeps)
		usleep(seconds * 1e6);
	while (now() < end)
		;
}

APART static void checkout(void) { spin(0.004); __asm__ volatile(""); }
APART static void login(void) { spin(0.004); __asm__ volatile(""); }
APART static void unpublished(void) { spin(0.004); __asm__ volatile(""); }

static void fill(struct record *r, int what, uint32_t number)
{
	static const char *routes[] = { "/checkout", "/login" };
	uint8_t *a = r->attributes;

	r->valid = 0;
	memset(r->trace, what + 1, sizeof(r->trace));
	memset(r->span, what + 1, sizeof(r->span));
	memcpy(r->span, &number, sizeof(number));
	*a++ = 0, *a++ = strlen(routes[what]);
	memcpy(a, routes[what], strlen(routes[what]));
	a += strlen(routes[what]);
	*a++ = 1, *a++ = 1, *a++ = 'x'; /* the last one counts */
	*a++ = 1, *a++ = 4;
	memcpy(a, "acme", 4);
	r->bytes = a + 4 - r->attributes;
	__asm__ volatile("" ::: "memory");
	r->valid = 1;
}

static void *serve(void *arg)
{
	struct record r = { .flags = 1 };

	for (uint32_t i = 0; now() < until; i++) {
		fill(&r, i % 2, i);
		publish_record(&r);
		if (i % 2)
			login();
		else
			checkout();
		publish_record(NULL);
		unpublished();
	}
	return arg;
}

static void *other(void *arg)
{
	while (now() < until)
		unpublished();
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t threads[2];
	const char *where = argc > 2 ? argv[2] : "", *how = argc > 3 ? argv[3] : "";
	void *library = *where == '/' ? dlopen(where, RTLD_NOW) : RTLD_DEFAULT;

	publish_record = !strcmp(where, "none") || !strcmp(where, "quiet") ? nothing : dlsym(library, "publish");
	if (!publish_record)
		return 2;
	sleeps = !strcmp(how, "sleep");
	until = now() + atof(argc > 1 ? argv[1] : "1");
	if (strcmp(where, "quiet"))
		publish_process();
	if (!strcmp(how, "alone"))
		return serve(NULL) != NULL;
	pthread_create(&threads[0], NULL, serve, NULL);
	pthread_create(&threads[1], NULL, other, NULL);
	serve(NULL);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	if (!strcmp(how, "exec"))
		return execv("/proc/self/exe", (char *[]){ argv[0], argv[1], "quiet", NULL });
	return 0;
}
