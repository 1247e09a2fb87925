/* A small compiler that keeps frame pointers: it turns expressions in reverse
   Polish notation into code in anonymous memory, and runs it. A word is its
   own function, which other words call; one of them calls back into C. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NOINLINE __attribute__((noinline))

typedef long (*word)(long);

static unsigned char *at;
static word words[26];

static void emit(const void *code, size_t n) { memcpy(at, code, n); at += n; }
#define EMIT(...) emit((const unsigned char[]){__VA_ARGS__}, sizeof((unsigned char[]){__VA_ARGS__}))

static void call(uintptr_t to) {
	EMIT(0x48, 0x89, 0xc7, 0x48, 0xb8); /* mov %rax,%rdi; mov $to,%rax */
	emit(&to, 8);
	EMIT(0xff, 0xd0);                   /* call *%rax */
}

static int descending(const void *a, const void *b) { return *(const char *)b - *(const char *)a; }

NOINLINE static long back(long x) {
	char text[32], *end;
	snprintf(text, sizeof text, "%ld", x);
	qsort(text, strlen(text), 1, descending);
	return strtol(text, &end, 10) % 1000;
}

static word compile(const char *source) {
	word entry;
	at = (unsigned char *)(((uintptr_t)at + 15) & ~15ul);
	entry = (word)at;
	EMIT(0x55, 0x48, 0x89, 0xe5);                         /* push %rbp; mov %rsp,%rbp */
	EMIT(0x53, 0x48, 0x81, 0xec, 0x28, 0, 0, 0);          /* push %rbx; sub $40,%rsp */
	EMIT(0x48, 0x89, 0xf8, 0x48, 0x89, 0xfb);             /* mov %rdi,%rax; mov %rdi,%rbx */
	for (; *source; source++) {
		switch (*source) {
		case '+': EMIT(0x48, 0x83, 0xc0, 0x07); break;      /* add $7,%rax */
		case '*': EMIT(0x48, 0x6b, 0xc0, 0x03); break;      /* imul $3,%rax,%rax */
		case '-': EMIT(0x48, 0x29, 0xd8); break;            /* sub %rbx,%rax */
		case '!': call((uintptr_t)back); break;
		case '?': EMIT(0x48, 0x85, 0xc0, 0x75, 0x07, 0x48, 0x8b, 0x5d, 0xf8, 0xc9, 0xc3, 0x66, 0x90); break;
		          /* test %rax,%rax; jne over; mov -8(%rbp),%rbx; leave; ret */
		default: call((uintptr_t)words[*source - 'a']);
		}
	}
	EMIT(0x48, 0x8b, 0x5d, 0xf8);                         /* mov -8(%rbp),%rbx */
	EMIT(0xc9, 0xc3);                                     /* leave; ret */
	return entry;
}

/* A leaf that keeps no frame, as compilers make them of small words. */
static word leaf(void) {
	word entry = (word)(at = (unsigned char *)(((uintptr_t)at + 15) & ~15ul));
	EMIT(0x48, 0x8d, 0x47, 0x05, 0x48, 0xd1, 0xe0, 0xc3); /* lea 5(%rdi),%rax; shl %rax; ret */
	return entry;
}

int main(void) {
	static const char *const sources[] = {"+*", "a-a", "b!b", "c+c?", "d!*c", "z+e", "f?f"};
	long sum = 0;
	at = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	words[25] = leaf();
	for (unsigned i = 0; i < sizeof sources / sizeof *sources; i++)
		words[i] = compile(sources[i]);
	for (long i = 0; i < 4; i++)
		sum += words[6](i);
	printf("%ld\n", sum);
	return 0;
}
