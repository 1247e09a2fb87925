package steppers

import (
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// frameProgram has functions of many shapes, and no library below it: calls
// in loops and switches, recursion, large and variable frames, many saved
// registers, leaf functions, early returns, tail calls.
const frameProgram = `
typedef unsigned long u64;
#define NOINLINE __attribute__((noinline, noclone))
static volatile u64 sink;
NOINLINE u64 leaf(u64 a, u64 b) { return a * 3 + b; }
NOINLINE u64 branchy(u64 a) {
	if (a < 3) return 1;
	sink += a;
	u64 r = leaf(a, 2);
	if (r & 1) r += leaf(r, a);
	return r;
}
NOINLINE u64 big(u64 n) { volatile u64 buf[300]; for (u64 i = 0; i < 300; i++) buf[i] = i * n; return buf[n % 300] + leaf(n, 7); }
NOINLINE u64 variable(u64 n) { volatile char *p = __builtin_alloca(n * 8 + 1); p[n] = 1; return p[n] + branchy(n); }
NOINLINE u64 many(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h) {
	u64 x = leaf(a, b), y = leaf(c, d), z = leaf(e, f), w = leaf(g, h);
	sink += x;
	u64 v = leaf(x, y);
	return x + y * z + w * v + leaf(z, w) + a + b + c + d + e + f + g + h;
}
NOINLINE u64 choose(u64 k, u64 n) {
	switch (k) {
	case 0: return leaf(n, 1);
	case 1: return branchy(n);
	case 2: return big(n);
	case 3: return variable(n);
	case 4: sink++; return many(n, 1, 2, 3, 4, 5, 6, 7);
	case 5: return n * 5;
	case 6: sink--; return leaf(leaf(n, 2), 3);
	}
	return 0;
}
NOINLINE u64 recurse(u64 n) { return n == 0 ? 1 : recurse(n - 1) + n; }
NOINLINE u64 tail(u64 n) { sink += leaf(n, n); return choose(n % 7, n); }
u64 (*volatile indirect)(u64) = recurse;
NOINLINE u64 run(void) {
	u64 s = 0;
	for (u64 i = 0; i < 8; i++) { s += choose(i, i + 2); s += tail(i); }
	return s + indirect(6);
}
__attribute__((noreturn)) void finish(u64 code) {
	__asm__ volatile("syscall" : : "a"(60L), "D"(code) : "memory");
	__builtin_unreachable();
}
__attribute__((noreturn, used)) void start(void) { sink = run(); finish(sink & 1); }
__asm__(".globl _start\n_start: xor %ebp,%ebp\nand $-16,%rsp\ncall start\nhlt\n");
`

// Programs with frame pointers and without unwind tables are walked at every
// instruction from their first to their last.
func TestFramePointersEveryInstruction(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	type build struct {
		name  string
		cc    []string
		strip bool
	}
	builds := []build{
		{"gcc O0", []string{"gcc", "-O0"}, false},
		{"gcc O3", []string{"gcc", "-O3"}, false},
		{"clang O0", []string{"clang-19", "-O0"}, false},
		{"gcc O2 stripped", []string{"gcc", "-O2", "-s"}, true},
		{"clang O2 stripped", []string{"clang-19", "-O2", "-s"}, true},
	}
	if testenv.Long() {
		builds = append(builds, build{"gcc O1", []string{"gcc", "-O1"}, false}, build{"gcc O2", []string{"gcc", "-O2"}, false},
			build{"gcc Os", []string{"gcc", "-Os"}, false}, build{"clang O2", []string{"clang-19", "-O2"}, false})
	}
	for _, tc := range builds {
		t.Run(tc.name, func(t *testing.T) {
			path := steptest.Compile(t, append(tc.cc, "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",
				"-fno-omit-frame-pointer", "-nostdlib", "-static", "-fno-stack-protector"), "frames.c", frameProgram)
			p := steptest.Start(t, path)
			w := unwind.NewWalker(p, unwind.NewGroup(NewBottom(), NewFrameFunc(nil)), nil)
			n := stepAll(t, p, w, 0)
			total := n[steptest.Exact] + n[steptest.Short] + n[steptest.Wrong]
			t.Logf("%d instructions: %d exact, %d short, %d wrong", total, n[0], n[1], n[2])
			least := total
			if tc.strip {
				least = total * 999 / 1000 // a function that neither has a frame nor returns tells nothing
			}
			if n[steptest.Wrong] > 0 || n[steptest.Exact] < least || total < 1000 {
				t.Errorf("want at least %d exact and none wrong", least)
			}
		})
	}
}

// A small file without unwind tables is looked through for the registers that its functions
// save; a large one, which can take seconds, is not: its frame pointers are enough.
func TestFramePointersOfLargeFile(t *testing.T) {
	steptest.NeedPtrace(t)
	for _, large := range []bool{false, true} {
		source := frameProgram
		if large {
			source += `__asm__(".fill 3 << 20, 1, 0xcc\n");`
		}
		p := steptest.Start(t, steptest.Compile(t, []string{"gcc", "-O1", "-s", "-fno-asynchronous-unwind-tables",
			"-fno-omit-frame-pointer", "-nostdlib", "-static", "-fno-stack-protector"}, "frames.c", source))
		a, frames := NewAnalysis(), NewFrameFunc(nil)
		frames.saved = a
		w := unwind.NewWalker(p, unwind.NewGroup(NewBottom(), frames), nil)
		if n := stepAll(t, p, w, 300); n[steptest.Exact] != 300 {
			t.Errorf("large %t: of 300 instructions %d are exact", large, n[steptest.Exact])
		}
		looked := false
		for _, im := range p.Images() {
			e := a.code.Get(im)
			looked = looked || e != nil && e.rest.done
		}
		if looked == large {
			t.Errorf("large %t: looked through %t", large, looked)
		}
	}
}

// stepAll runs the initial thread of a process to its end, compares a walk at
// each of its instructions with the truth, and counts the results. limit
// bounds the instructions, 0 does not.
func stepAll(t *testing.T, p *steptest.Process, w *unwind.Walker, limit int) (n [steptest.NumResults]int) {
	t.Helper()
	s := steptest.NewShadow(p)
	var regs procstate.Regs
	if err := p.Registers(procstate.DefaultThread, &regs); err != nil {
		t.Fatal(err)
	}
	var frames []unwind.Frame
	shown := 0
	for i := 0; limit == 0 || i < limit; i++ {
		if p.Libraries().MappingAt(regs.Raw(p.Arch().PC)) == nil { // mapped since
			if err := p.UpdateMappings(); err != nil {
				t.Fatal(err)
			}
		}
		var top unwind.Frame
		top.Load(p.Arch(), &regs)
		var err error
		frames, err = w.WalkFrom(frames[:0], &top)
		r := s.Compare(frames, err)
		n[r]++
		if r != steptest.Exact && shown < 5 {
			shown++
			t.Logf("%s\n%s", r, s.Describe(w, frames, err))
		}
		if err := s.Step(p, &regs); err != nil {
			t.Fatal(err)
		}
		if p.Exited() {
			return n
		}
	}
	return n
}

// untypedFunction is a function in assembly, whose symbol has no type, as Go's
// crosscall1 is. What is before it calls one that never returns.
const untypedFunction = `
#include <stdlib.h>
void untyped(void (*f)(void));
void before(void);
__asm__(".text\n"
	".type before,@function\n"
	".globl before\n"
	"before: push %rax\n"
	"	call abort\n"
	".globl untyped\n"
	"untyped: push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	mov %rdi,%rbx\n"
	"	call *%rbx\n"
	"	pop %r12\n"
	"	pop %rbp\n"
	"	pop %rbx\n"
	"	ret\n");
static void nothing(void) {}
int main(int argc, char **argv) { (void)argv; if (argc > 9) before(); untyped(nothing); return 0; }
`

// A function whose symbol has no type is not taken for a part of the one
// before it.
func TestUntypedFunction(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the function is for amd64")
	}
	img := steptest.OpenImage(t, steptest.Compile(t, []string{"gcc", "-O2", "-no-pie"}, "untyped.c", untypedFunction))
	var entry uint64
	img.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == "untyped" {
			entry = s.Value
		}
		return entry == 0
	})
	const behindCall = 9 // bytes into it
	got := NewFrameAnalyzer().analyzeFile(img, entry+behindCall, true)
	if want := (FrameLayout{Type: SaveFPOnlyFrame, State: HalfSetFrame, SP: 32, FP: -1, RA: 8, SavedFP: 24}); entry == 0 || got != want {
		t.Errorf("untyped at %#x: %+v, want %+v", entry, got, want)
	}
}

// longFunctions have their prologues far behind, as those of interpreters and of
// code that was inlined a lot.
const longFunctions = `
	.globl _start
	.p2align 4, 0xcc
_start:	push %rbp
	mov %rsp, %rbp
	push %rbx
	call leaf
	test %eax, %eax
	je 2f
	.rept 3000
	call leaf
	test %eax, %eax
	.endr
	.globl far
far:	call leaf
2:	pop %rbx
	pop %rbp
	ret
	.p2align 4, 0xcc
	.globl loop
loop:	push %rbp
	mov %rsp, %rbp
	push %rbx
	push %rax
1:	movzbl (%rdi), %eax
	lea table(%rip), %rcx
	movslq (%rcx,%rax,4), %rax
	add %rcx, %rax
	jmp *%rax
	.globl case0
case0:	call leaf
	test %eax, %eax
	jmp 1b
	.globl case1
case1:	call far
	jmp 1b
	.p2align 4, 0xcc
	cmp %rdi, %rcx
	je 1f
	.globl early
early:	test %rdi, %rdi
	push %rbp
	mov %rsp, %rbp
	ud2
1:	jmp *%rax
	.p2align 4, 0xcc
	sub $8, %rsp
	push %rbp
	mov %rsp, %rbp
	.globl late
late:	call leaf
	call leaf
	leave
	add $8, %rsp
	ret
	.p2align 4, 0xcc
	push %rbx
	push %r12
	push %rbp
	mov %rsp, %rbp
	.globl third
third:	call leaf
	jmp third
	jmp *0x50(%rax)
	push %rbp
	mov %rsp, %rbp
	.globl behind
behind:	call leaf
	jmp behind
	.p2align 4, 0xcc
	.globl leaf
leaf:	mov $1, %eax
	ret
	.section .rodata
table:	.long case0 - table, case1 - table
`

// In a stripped file, frames are known far behind a prologue, where only a table of
// jumps leads to, and before a prologue that is not the function's start, as well as behind
// one.
func TestLongFunctions(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the functions are for amd64")
	}
	cc := []string{"gcc", "-nostdlib", "-static", "-Wl,--build-id=none"}
	whole := steptest.OpenImage(t, steptest.Compile(t, cc, "long.s", longFunctions))
	stripped := steptest.OpenImage(t, steptest.Compile(t, append(cc, "-s"), "long.s", longFunctions))
	if n := len(stripped.FuncStarts()); n > 0 {
		t.Fatalf("%d functions are known", n)
	}
	want := map[string]FrameLayout{
		"far":    {Type: StandardFrame, State: SetFrame, SP: 24, FP: 16, RA: 8, SavedFP: 16},
		"case0":  {Type: StandardFrame, State: SetFrame, SP: 32, FP: 16, RA: 8, SavedFP: 16},
		"case1":  {Type: StandardFrame, State: SetFrame, SP: 32, FP: 16, RA: 8, SavedFP: 16},
		"late":   {Type: StandardFrame, State: SetFrame, SP: -1, FP: 24, RA: 8, SavedFP: 24},
		"third":  {Type: StandardFrame, State: SetFrame, SP: 32, FP: 32, RA: 8, SavedFP: 32},
		"behind": {Type: StandardFrame, State: SetFrame, SP: 16, FP: 16, RA: 8, SavedFP: 16},
		"early":  {Type: StandardFrame, State: UnsetFrame, SP: 8, FP: -1, RA: 8},
		"leaf":   {Type: NoFrame, State: UnsetFrame, SP: 8, FP: -1, RA: 8},
	}
	whole.EachSymbol(func(s *procstate.ELFSymbol) bool {
		name := string(s.Name)
		l, ok := want[name]
		if !ok {
			return true
		}
		delete(want, name)
		const call = 5 // bytes
		pc, returned := s.Value, l.State == SetFrame
		if returned {
			pc += call
		}
		if got := NewFrameAnalyzer().analyzeFile(stripped, pc, returned); got != l {
			t.Errorf("%s at %#x: %+v, want %+v", name, pc, got, l)
		}
		return true
	})
	if len(want) > 0 {
		t.Errorf("no symbols of %v", want)
	}
}

// realigned has a function that aligns its stack and finds its arguments on the caller's,
// whose frame pointer does not tell where that is.
const realigned = `
typedef double v4 __attribute__((vector_size(32)));
#define NOINLINE __attribute__((noinline, noclone))
volatile double sink;
NOINLINE void use(v4 *p) { __asm__ volatile("" : : "r"(p) : "memory"); sink += (*p)[0]; }
NOINLINE double aligned(int n, double x, long b, long c, long d, long e, long f, long g, long h) {
	v4 a = {x, x, x, x};
	char *p = __builtin_alloca(n * 8 + 16);
	__asm__ volatile("" : : "r"(p) : "memory");
	use(&a);
	for (int i = 0; i < n; i++) { a = a * a; use(&a); }
	return a[0] + a[1] + b + g * h;
}
NOINLINE double outer(int n, double x) {
	double r = 0;
	for (int i = 0; i < n; i++) r += aligned(i, x, 1, 2, 3, 4, 5, i, n) * 1.5;
	return r;
}
__attribute__((noreturn, used)) void start(void) {
	for (int i = 0; i < 3; i++) sink += outer(3 + i, 0.5);
	__asm__ volatile(SYSEXIT);
	__builtin_unreachable();
}
`

// A frame pointer that is set behind a copy of the return address does not tell where the
// caller's frame is.
func TestRealignedStack(t *testing.T) {
	steptest.NeedPtrace(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the programs are for amd64")
	}
	for _, c := range []struct {
		name  string
		flags []string
		start string
	}{
		{"x86-64", nil, `#define SYSEXIT "syscall" : : "a"(60L), "D"(0L)
			__asm__(".globl _start\n_start: xor %ebp,%ebp\nand $-16,%rsp\ncall start\nhlt\n");`},
		{"i386", []string{"-m32", "-msse2", "-mpreferred-stack-boundary=2"}, `#define SYSEXIT "int $0x80" : : "a"(1L), "b"(0L)
			__asm__(".globl _start\n_start: xor %ebp,%ebp\ncall start\nhlt\n");`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "i386" {
				testenv.Needs32Bit(t)
			}
			path := steptest.Compile(t, append([]string{"gcc", "-O2", "-s", "-fno-asynchronous-unwind-tables", "-fno-stack-protector",
				"-fomit-frame-pointer", "-fno-pic", "-no-pie", "-nostdlib", "-static"}, c.flags...), "realigned.c", c.start+realigned)
			p := steptest.Start(t, path)
			n := stepAll(t, p, unwind.NewWalker(p, Default(nil), nil), 0)
			t.Logf("%d exact, %d short, %d wrong", n[steptest.Exact], n[steptest.Short], n[steptest.Wrong])
			if n[steptest.Exact] < 500 || n[steptest.Wrong] > 0 {
				t.Errorf("want none wrong")
			}
		})
	}
}
