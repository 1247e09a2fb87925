//go:build linux && amd64

package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// sbclProgram has at run time what SBCL 2.2 makes of calls, and calls it as SBCL's runtime does.
const sbclProgram = `
extern char begin[], f[], end[];
extern long call_into_lisp(void *fun, long arg, void *cfun);
void arrange_return_to_lisp_function(void) {}
static volatile int sum;
static __attribute__((noinline)) int called(int n) { sum += n; return n > 0 ? 1 + called(n - 1) : 0; }
#define LINE(s) "\t" s "\n"
#define FULL_CALL(f) LINE("sub $16,%rsp") LINE("mov %rbp,(%rsp)") LINE("mov %rsp,%rbp") LINE("call " f) LINE("cmovb %rbx,%rsp")
#define LEAVE LINE("mov %rbp,%rsp") LINE("clc") LINE("pop %rbp") LINE("ret")
__asm__(".text\n"
	".globl call_into_lisp\n"
	"call_into_lisp:\n"
	LINE(".cfi_startproc")
	LINE("push %rbp") LINE(".cfi_def_cfa_offset 16") LINE(".cfi_offset rbp,-16")
	LINE("mov %rsp,%rbp") LINE(".cfi_def_cfa_register rbp")
	LINE("push %rbx") LINE(".cfi_offset rbx,-24")
	LINE("push %r13") LINE(".cfi_offset r13,-32")
	LINE("mov %rdx,%r13")
	LINE("sub $16,%rsp")
	LINE("mov %rbp,(%rsp)")
	LINE("mov %rsp,%rbp")
	LINE("call *%rdi")
	LINE("mov -16(%rbp),%r13") LINE("mov -8(%rbp),%rbx")
	LINE("mov %rbp,%rsp") LINE("pop %rbp") LINE(".cfi_def_cfa rsp,8") LINE("ret")
	LINE(".cfi_endproc")

	"begin:\n"
	// A routine, which has no frame unless it calls C,
	"routine:" LINE("test $1,%rsi") LINE("jne 1f") LINE("add $2,%rsi") LINE("clc") LINE("ret")
	"1:" LINE("push $16") LINE("call tramp") LINE("pop %rcx") LINE("jmp 2f")
	"2:" LINE("xor %eax,%eax") LINE("je 3f") LINE("int3") LINE(".byte 9")
	"3:" LINE("clc") LINE("ret")
	"tramp:" LINE("push %rbp") LINE("mov %rsp,%rbp") LINE("and $-64,%rsp") LINE("sub $832,%rsp")
	LINE("push %rsi") LINE("push %rdi") LINE("mov 16(%rbp),%rdi") LINE("mov $3,%edi") LINE("call *%r13")
	LINE("pop %rdi") LINE("pop %rsi") LINE("mov %rbp,%rsp") LINE("pop %rbp") LINE("ret")
	// and one that goes on as a function.
	"slow:" LINE("test $1,%rsi") LINE("jne 1f") LINE("ret")
	"1:" LINE("push %rbp") LINE("mov %rsp,%rbp") LINE("sub $8,%rsp") LINE("push 8(%rbp)") LINE("mov $4,%ecx") LINE("jmp g")
	// By way of these a function is called.
	"closure:" LINE("lea g(%rip),%rax") LINE("lea 3(%rax),%rax") LINE("jmp *word(%rip)")
	"defined:" LINE("jmp g")
	LINE(".balign 8") "word:" LINE(".quad 0")

	"g:" LINE("pop 8(%rbp)") LINE("lea -16(%rbp),%rsp") LINE("mov %rsi,-8(%rbp)") LINE("mov $2,%edx") LINE("cmp $1,%rdx") LINE("jb 1f")
	LEAVE
	"1:" LINE("int3") LINE(".byte 16")
	// h returns three values.
	"h:" LINE("pop 8(%rbp)") LINE("lea -16(%rbp),%rsp") LINE("lea 16(%rbp),%rbx") LINE("mov $3,%ecx")
	LINE("mov %rbp,%rsp") LINE("stc") LINE("pop %rbp") LINE("ret")
	// k calls another in its place.
	"k:" LINE("pop 8(%rbp)") LINE("lea -24(%rbp),%rsp") LINE("mov %rsi,-16(%rbp)") LINE("mov $1,%edx")
	LINE("lea g(%rip),%rax") LINE("mov %rbp,%rsp") LINE("push 8(%rbp)") LINE("mov $6,%ecx") LINE("jmp *%rax")
	"f:" LINE("pop 8(%rbp)") LINE("lea -32(%rbp),%rsp") LINE("mov %rsi,-8(%rbp)")
	FULL_CALL("g")
	FULL_CALL("h")
	FULL_CALL("k")
	FULL_CALL("closure")
	FULL_CALL("defined")
	LINE("mov $2,%esi") LINE("call routine") LINE("mov $3,%esi") LINE("call routine") LINE("call slow")
	LINE("mov $7,%edi") LINE("call *%r13")
	// A call with arguments on the stack, whose frame another register gives.
	LINE("mov %rbp,%rax") LINE("lea -16(%rsp),%r15") LINE("sub $64,%rsp") LINE("mov %rdx,-24(%r15)") LINE("mov %rax,(%r15)")
	LINE("mov %r15,%rbp") LINE("call g")
	LINE("lea -32(%rbp),%rsp")
	LINE("mov -8(%rbp),%rsi") LINE("sub $1,%rsi") LINE("je 1f")
	LINE("mov %r14,%rax") LINE("sub $16,%rsp") LINE("mov %rbp,(%rsp)") LINE("mov %rsp,%rbp") LINE("call *%rax") LINE("jb 1f") LINE("mov %rsp,%rbx")
	"1:"
	LEAVE
	"end:\n");
static long call_kernel(long n, long a, long b, long c) {
  register long flags __asm__("r10") = 0x22, fd __asm__("r8") = -1, off __asm__("r9") = 0;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(flags), "r"(fd), "r"(off) : "rcx", "r11", "memory");
  return n;
}
void run(void) {
  extern char word[], g[];
  char *made = (char *)call_kernel(9, 0, 4096, 7); // mmap
  for (long i = 0; i < end - begin; i++) made[i] = begin[i];
  *(void **)(made + (word - begin)) = made + (g - begin);
  register char *self __asm__("r14") = made + (f - begin);
  __asm__ volatile("" : "+r"(self));
  call_into_lisp(made + (f - begin), 3, (void *)called);
  call_kernel(231, 0, 0, 0); // exit_group
}
__asm__(".globl _start\n_start: .cfi_startproc\n .cfi_undefined rip\n xor %ebp,%ebp\n call run\n .cfi_endproc\n");
`

// Code that SBCL makes, and what it calls, has its callers at each instruction.
func TestSBCLEveryInstruction(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O2", "-nostdlib", "-pie", "-fPIE", "-Wl,-E,--no-dynamic-linker"}, "sbcl.c", sbclProgram)
	p := steptest.Start(t, path)
	w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
	var regs procstate.Regs
	if err := p.Registers(procstate.DefaultThread, &regs); err != nil {
		t.Fatal(err)
	}
	var calls []uint64 // return addresses, the outermost first; what is on the stack of Lisp returns with another SP
	var frames []unwind.Frame
	exact, shown := 0, 0
	for !p.Exited() {
		a, pc := p.Arch(), regs.Raw(p.Arch().PC)
		if p.Libraries().MappingAt(pc) == nil {
			if err := p.UpdateMappings(); err != nil {
				t.Fatal(err)
			}
		}
		isMade := func(pc uint64) bool {
			m := p.Libraries().MappingAt(pc)
			return m != nil && m.Path == ""
		}
		inLisp := isMade(pc)
		for _, ra := range calls {
			inLisp = inLisp || isMade(ra)
		}
		if inLisp {
			var top unwind.Frame
			top.Load(a, &regs)
			var err error
			frames, err = w.WalkFrom(frames[:0], &top)
			same := err == nil && len(frames) == len(calls)+1
			for i := 1; same && i < len(frames); i++ {
				same = frames[i].PC() == calls[len(calls)-i]
			}
			if same {
				exact++
			} else if shown++; shown <= 5 {
				t.Errorf("at %#x sp %#x fp %#x: %v", pc, top.SP(), top.FP(), err)
				for i := 0; i < max(len(frames), len(calls)+1); i++ {
					var walked, called uint64
					if i < len(frames) {
						walked = frames[i].PC()
					}
					if n := len(calls) - i; i > 0 && n >= 0 {
						called = calls[n]
					}
					t.Logf("  %#x | %#x", walked, called)
				}
			}
		}
		var buf [16]byte
		n, _ := p.ReadMemory(pc, buf[:])
		var in isa.Inst
		if !isa.DecodeAMD64(buf[:n], pc, &in) {
			in = isa.Inst{}
		}
		if err := p.Step(p.PID()); err != nil {
			t.Fatal(err)
		}
		if p.Exited() {
			break
		}
		if err := p.Registers(procstate.DefaultThread, &regs); err != nil {
			t.Fatal(err)
		}
		next := regs.Raw(a.PC)
		switch in.Flow {
		case isa.Call, isa.IndirectCall:
			calls = append(calls, pc+uint64(in.Len))
		case isa.Return:
			for n := len(calls); n > 0; n-- {
				if calls[n-1] == next {
					calls = calls[:n-1]
					break
				}
			}
		}
	}
	if exact < 300 {
		t.Errorf("%d exact", exact)
	}
	t.Logf("%d exact, %d not", exact, shown)
}
