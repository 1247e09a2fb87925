/* A compiler as QEMU has it: all code that it generates has one frame, made by a
   way in and a way out that are beside it, and of all of it one object file tells.
   That is argv[1], of buffer.s. With another argument it also pushes an address and
   jumps to a function that is to return there. */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct entry {
	struct entry *next, *prev;
	const char *symfile;
	uint64_t size;
} entry;

struct {
	uint32_t version, action;
	struct entry *relevant, *first;
} __jit_debug_descriptor = {1, 0, 0, 0};

static unsigned char *at;

static void emit(const void *code, size_t n) { memcpy(at, code, n); at += n; }
#define EMIT(...) emit((const unsigned char[]){__VA_ARGS__}, sizeof((unsigned char[]){__VA_ARGS__}))

__attribute__((noinline)) static long helper(long x) {
	char text[24];
	return snprintf(text, sizeof text, "%ld", x) + x;
}

/* An instruction with the distance to a place, as the last four bytes. */
static void to(const void *place) {
	int32_t distance = (const unsigned char *)place - (at + 4);
	emit(&distance, 4);
}

int main(int argc, char **argv) {
	static char file[1 << 14];
	FILE *f = fopen(argv[1], "rb");
	if (!f || argc < 2)
		return 1;
	entry.symfile = file;
	entry.size = fread(file, 1, sizeof file, f);
	fclose(f);

	unsigned char *room = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const void **literal = (const void **)(room + 4096);
	*literal = helper;
	at = room;
	EMIT(0x55, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57); /* push %rbp ... %r15 */
	EMIT(0x48, 0x8b, 0xef);                                           /* mov %rdi,%rbp */
	EMIT(0x48, 0x81, 0xc4, 0x78, 0xfb, 0xff, 0xff, 0xff, 0xe6);       /* add $-0x488,%rsp; jmp *%rsi */
	unsigned char *out = at;
	EMIT(0x48, 0x81, 0xc4, 0x88, 0x04, 0, 0, 0xc5, 0xf8, 0x77);       /* add $0x488,%rsp; vzeroupper */
	EMIT(0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3);
	unsigned char *code = at;

	Elf64_Ehdr *header = (Elf64_Ehdr *)file;
	Elf64_Shdr *sections = (Elf64_Shdr *)(file + header->e_shoff);
	for (int i = 0; i < header->e_shnum; i++)
		if (sections[i].sh_flags & SHF_EXECINSTR && sections[i].sh_type == SHT_NOBITS)
			sections[i].sh_addr = (uintptr_t)code;
	__jit_debug_descriptor.first = __jit_debug_descriptor.relevant = &entry;
	__jit_debug_descriptor.action = 1;

	long (*run)(long, const void *) = (long (*)(long, const void *))room, sum = 0;
	getppid();
	for (int round = 0; round < 3; round++) {
		at = code; /* other code in the place of what was there */
		for (int n = 0; n <= round; n++) {
			if (argc > 2) {
				EMIT(0x48, 0x89, 0xef, 0x4c, 0x8d, 0x05, 8, 0, 0, 0);             /* mov %rbp,%rdi; lea 8(%rip),%r8 */
				EMIT(0x41, 0x50, 0xff, 0x25); to(literal);                        /* push %r8; jmp *literal */
			}
			EMIT(0x48, 0x89, 0xef, 0xff, 0x15); to(literal);                          /* mov %rbp,%rdi; call *literal */
			EMIT(0x48, 0x01, 0xc5);                                                  /* add %rax,%rbp */
		}
		EMIT(0xe9); to(out);
		sum += run(round + 7, code);
	}
	printf("%ld\n", sum);
	return 0;
}
