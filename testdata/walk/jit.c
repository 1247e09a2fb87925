// Calls through machine code that was made at run time and has no unwind
// tables: with a frame pointer, without one but described by a table that the
// program keeps, or as an interpreter of code templates makes its calls: by a
// jump, behind a return address that it has pushed (argv[1]: fp, table,
// interpreter).
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

typedef int (*fn)(int (*)(void), int);

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
static const unsigned char interpreter[] = {
	// where methods return to
	0x48, 0x8b, 0x65, 0xf0,                   // mov -16(%rbp),%rsp
	0x4c, 0x8d, 0x15, 0x21, 0x00, 0x00, 0x00, // lea end(%rip),%r10
	0x41, 0xff, 0xe2,                         // jmp *%r10
	0xcc, 0xcc,
	// a method, which calls itself until %esi is 0, then %rdi
	0x55,                                     // push %rbp
	0x48, 0x89, 0xe5,                         // mov %rsp,%rbp
	0x48, 0x83, 0xec, 0x20,                   // sub $32,%rsp
	0x48, 0x89, 0x65, 0xf0,                   // mov %rsp,-16(%rbp)
	0xff, 0xce,                               // dec %esi
	0x74, 0x0a,                               // jz call
	0x48, 0x8d, 0x05, 0xd9, 0xff, 0xff, 0xff, // lea interpreter(%rip),%rax
	0x50,                                     // push %rax
	0xeb, 0xe6,                               // jmp method
	0xff, 0xd7,                               // call: call *%rdi
	0xc9,                                     // end: leave
	0xc3,                                     // ret
};
enum { RETURN = 64, METHOD = RETURN + 16 };
#endif

__attribute__((noinline)) int enter(fn f) { return f(leaf, 10) + 1; }

int main(int argc, char **argv) {
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (argc > 1 && !strcmp(argv[1], "table")) {
		memcpy(code, without_fp, sizeof without_fp);
		jit_frames[0] = (struct jit_frame){(uint64_t)code, (uint64_t)code + sizeof without_fp, 72};
		jit_frame_count = 1;
	} else if (argc > 1 && !strcmp(argv[1], "interpreter")) {
		memcpy(code + RETURN, interpreter, sizeof interpreter);
		mprotect(code, 4096, PROT_READ | PROT_EXEC);
		return enter((fn)(code + METHOD));
	} else {
		memcpy(code, with_fp, sizeof with_fp);
	}
	mprotect(code, 4096, PROT_READ | PROT_EXEC);
	return enter((fn)code);
}
