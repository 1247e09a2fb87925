// Functions as hand-written libraries have them, without unwind tables and frame pointers, in a
// file with so much code that it is not looked through at once: one that a symbol gives the
// size of, and one that nothing tells of, which calls a subroutine. Usage: handwritten SECONDS
#include <stdlib.h>
#include <time.h>

__asm__(
    ".text\n"
    ".skip 4000000, 0x90\n" // would take 0.1 s
    "ret\n"
    ".balign 16\n"
    "	.globl sized\n"
    "	.type sized, @function\n"
    "sized:\n"
    "	sub $0x60, %rsp\n"
    "	mov %rbx, (%rsp)\n"
    "	mov %rsp, %rbx\n"
    "	and $-4096, %rsp\n"
    "1:	imul %rax, %rax\n"
    "	dec %rdi\n"
    "	jnz 1b\n"
    "	mov %rbx, %rsp\n"
    "	mov (%rsp), %rbx\n"
    "	add $0x60, %rsp\n"
    "	ret\n"
    "	.size sized, . - sized\n"
    ".balign 16\n"
    ".Lleaf:\n"
    "	imul %rax, %rax\n"
    "	imul %rax, %rax\n"
    "	ret\n"
    ".balign 16\n"
    "plain:\n"
    "	mov %rsp, %rax\n"
    "	sub $0x100, %rsp\n"
    "	and $-32, %rsp\n"
    "	mov %rax, 8(%rsp)\n"
    "2:	call .Lleaf\n"
    "	dec %rdi\n"
    "	jnz 2b\n"
    "	mov 8(%rsp), %rsp\n"
    "	ret\n");

void sized(long times);
extern void plain(long times) __asm__("plain");

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 1;
  do {
    sized(3000000);
    plain(1000000);
  } while (clock() < seconds * CLOCKS_PER_SEC);
  return 0;
}
