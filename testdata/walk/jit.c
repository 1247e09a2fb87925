// Calls through machine code that was made at run time and has no unwind
// tables: with a frame pointer, or without one but described by a table that
// the program keeps (argv[1]: fp, table).
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What the program says of its own code: within [start, end), the return
// address lies frame bytes above SP while a call is made.
struct jit_frame {
	uint64_t start, end, frame;
};

struct jit_frame jit_frames[4];
uint64_t jit_frame_count;

__attribute__((noinline)) int leaf(void) {
	puts("ready");
	fflush(stdout);
	pause();
	return 1;
}

typedef int (*fn)(int (*)(void));

#if defined(__x86_64__)
static const unsigned char with_fp[] = {
	0x55,                   // push %rbp
	0x48, 0x89, 0xe5,       // mov %rsp,%rbp
	0x48, 0x83, 0xec, 0x20, // sub $32,%rsp
	0xff, 0xd7,             // call *%rdi
	0xc9,                   // leave
	0xc3,                   // ret
};
static const unsigned char without_fp[] = {
	0x48, 0x83, 0xec, 0x48, // sub $72,%rsp
	0xff, 0xd7,             // call *%rdi
	0x48, 0x83, 0xc4, 0x48, // add $72,%rsp
	0xc3,                   // ret
};
#endif

__attribute__((noinline)) int enter(fn f) { return f(leaf) + 1; }

int main(int argc, char **argv) {
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (argc > 1 && !strcmp(argv[1], "table")) {
		memcpy(code, without_fp, sizeof without_fp);
		jit_frames[0] = (struct jit_frame){(uint64_t)code, (uint64_t)code + sizeof without_fp, 72};
		jit_frame_count = 1;
	} else {
		memcpy(code, with_fp, sizeof with_fp);
	}
	mprotect(code, 4096, PROT_READ | PROT_EXEC);
	return enter((fn)code);
}
