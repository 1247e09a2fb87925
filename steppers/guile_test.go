//go:build linux && amd64

package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/unwind"
)

// guileProgram makes code at run time as Guile 3.0.8 does, and enters it as that does.
const guileProgram = `
#include <string.h>
#include <sys/mman.h>
extern char entry[], body[], end[];
static void (*enter)(void **thread, void *code);
static volatile int sum;
static __attribute__((noinline)) int called(int n) { sum += n; return n > 0 ? 1 + called(n - 1) : 0; }
static __attribute__((noinline)) int run(void **thread, void *code, int n) {
  volatile int kept = n * 3;
  enter(thread, code);
  return kept + sum;
}
__asm__(".text\n"
	"entry:	sub $24,%rsp\n"
	"	mov %rbx,(%rsp)\n"
	"	mov %r12,8(%rsp)\n"
	"	mov %r13,16(%rsp)\n"
	"	mov %rdi,%rbx\n"
	"	mov %rsi,%r12\n"
	"	mov 8(%rbx),%rax\n"
	"	.byte 0x49,0xff,0xe4\n" // jmp *%r12
	"leave:	mov (%rsp),%rbx\n"
	"	mov 8(%rsp),%r12\n"
	"	mov 16(%rsp),%r13\n"
	"	add $24,%rsp\n"
	"	ret\n"
	"	.skip 40,0\n"
	"slow:	ret\n"
	"body:	mov $3,%edi\n"
	"	push %rdx\n"
	"	push %rax\n"
	"	xor %r13d,%r13d\n"
	"	pop %rax\n"
	"	pop %rdx\n"
	"	call *(%rbx)\n"
	"	mov %rax,%r12\n"
	"	call slow\n"
	"	test %r12,%r12\n"
	"	jmp leave\n"
	"end:\n");
int main(void) {
  char *made = mmap(0, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(made, entry, end - entry);
  enter = (void (*)(void **, void *))made;
  void *thread[] = { (void *)called, 0 };
  int r = 0;
  for (int i = 0; i < 3; i++) r += run(thread, made + (body - entry), i);
  return r & 1 ? 3 : 2;
}
`

// Code that Guile makes, and what it calls, has its callers at each instruction, also where the code is entered
// and left, or calls other such code.
func TestGuileEveryInstruction(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O2", "-static", "-fno-pie", "-no-pie"}, "guile.c", guileProgram)
	p := steptest.Start(t, path)
	n := stepAll(t, p, unwind.NewWalker(p, Default(unwind.NewTables()), nil), 0)
	t.Logf("%d exact, %d short, %d wrong", n[steptest.Exact], n[steptest.Short], n[steptest.Wrong])
	if n[steptest.Exact] < 1000 || n[steptest.Short]+n[steptest.Wrong] > 0 {
		t.Error("want all exact")
	}
}
