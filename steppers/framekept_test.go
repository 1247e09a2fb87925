package steppers

import (
	"fmt"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/unwind"
)

// keptProgram returns a program of many functions, a third of which jump to where only data
// tells, as interpreters do, so that no code tells of their frames.
func keptProgram() string {
	const kinds, each = 6, 20
	bodies := [kinds]string{
		`{ static void *const ops[] = {&&add, &&call, &&mul, &&out}; u8 code[8]; long n = 0; int pc = 0;
	for (int i = 0; i < 7; i++) code[i] = ((u64)a >> i) % 3;
	code[7] = 3;
	goto *ops[code[pc++]];
add: a += d ^ 5; n++; goto *ops[code[pc++]];
call: if (d > 0) a += table[(a ^ 21) & 127](a + n, d - 1); n += 2; goto *ops[code[pc++]];
mul: a = a * 3 + n; sink = a; goto *ops[code[pc++]];
out: return a + n; }`,
		`{ long s = 0; for (int i = 0; i < (a & 7); i++) s += i * d ^ a; return s; }`,
		`{ if (d <= 0) return a;
	switch (a & 7) {
	case 0: a = table[a & 127](a, d - 1); break;
	case 1: a = table[(a + 1) & 127](a * 3, d - 1) + 1; break;
	case 2: a += 4; break;
	case 3: a = table[(a + 3) & 127](a * 5, d - 1) + 3; break;
	case 4: sink = a; break;
	case 5: a = table[(a + 5) & 127](a * 7, d - 1) + 5; break;
	default: a++;
	}
	return a ^ d; }`,
		`{ if (d <= 0) return a; volatile char *p = __builtin_alloca((a & 63) + 1); p[0] = a; return table[(a * 5) & 127](a + p[0], d - 1) + p[0]; }`,
		`{ if (d <= 0 || (a & 3) == 1) return a + 1; return table[(a >> 2) & 127](a / 3, d - 1); }`,
		`{ long x = a, y = d, z = a ^ d, u = a + d, v = a - d;
	for (int i = 0; i < 3; i++) { if (d > 0) x += table[(u + i) & 127](y + z, d - 1 - i); y ^= x + v; u -= x; v ^= y; }
	return x + y + z + u + v; }`,
	}
	var b, names strings.Builder
	b.WriteString("typedef unsigned long u64; typedef unsigned char u8;\n" +
		"typedef long (*fn)(long, long); extern fn table[]; static volatile long sink;\n")
	for i := range kinds * each {
		fmt.Fprintf(&b, "__attribute__((noinline, noclone)) static long f%d(long a, long d) %s\n", i, bodies[i%kinds])
		fmt.Fprintf(&names, "f%d,", i)
	}
	fmt.Fprintf(&b, "fn table[128] = {%s f0, f1, f2, f3, f4, f5, f6, f7};\n", names.String())
	b.WriteString(`
__attribute__((noreturn, used)) void start(void) {
	for (long i = 0; i < 24; i++) sink += table[i * 7 & 127]((u64)i * 2654435761u >> 7, 3);
	__asm__ volatile("syscall" : : "a"(60L), "D"(0) : "memory");
	__builtin_unreachable();
}
__asm__(".globl _start\n_start: xor %ebp,%ebp\nand $-16,%rsp\ncall start\nhlt\n");
`)
	return b.String()
}

// Functions whose code tells nothing are walked by their frame pointer, in files without unwind
// tables that are compiled with it, and in these alone.
func TestKeepsFrames(t *testing.T) {
	needPtrace(t)
	for _, tc := range []struct {
		cc    string
		keeps bool
		exact int // of 100, at least
	}{
		{"gcc -O1 -fno-omit-frame-pointer", true, 85},
		{"gcc -O2 -fno-omit-frame-pointer", true, 85},
		{"clang-19 -O2 -fno-omit-frame-pointer", true, 85},
		{"gcc -O2 -fomit-frame-pointer", false, 0},
	} {
		t.Run(tc.cc, func(t *testing.T) {
			cc := strings.Fields(tc.cc)
			testenv.Needs(t, cc[0])
			path := steptest.Compile(t, append(cc, "-s", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",
				"-nostdlib", "-static", "-fno-stack-protector"), "kept.c", keptProgram())
			if keeps := keepsFrames(steptest.OpenImage(t, path)); keeps != tc.keeps {
				t.Errorf("keepsFrames is %t", keeps)
			}
			p := steptest.Start(t, path)
			w := unwind.NewWalker(p, unwind.NewGroup(NewBottom(), NewFrameFunc(nil)), nil)
			n := stepAll(t, p, w, 12000)
			total := n[steptest.Exact] + n[steptest.Short] + n[steptest.Wrong]
			t.Logf("%d instructions: %d exact, %d short, %d wrong", total, n[0], n[1], n[2])
			if n[steptest.Wrong] > 0 || n[steptest.Exact]*100 < total*tc.exact || total < 3000 {
				t.Errorf("want %d %% exact and none wrong", tc.exact)
			}
		})
	}
}
