package steppers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/steppers/dataflow"
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
	t.Parallel()
	steptest.NeedPtrace(t)
	type build struct {
		cc    string
		keeps bool
		exact int // of 100, at least
	}
	builds := []build{
		{"gcc -O2 -fno-omit-frame-pointer", true, 85},
		{"clang-19 -O2 -fno-omit-frame-pointer", true, 85},
		{"gcc -O2 -fomit-frame-pointer", false, 0},
	}
	if testenv.Long() {
		builds = append(builds, build{"gcc -O1 -fno-omit-frame-pointer", true, 85})
	}
	for _, tc := range builds {
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

// The caller of the first function of such a file, of another one, keeps in the register what it likes.
func TestKeepsFramesEntered(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.Needs(t, "gcc")
	source := `__attribute__((noinline)) static void trap(void) { __asm__ volatile("int3; nop"); }` + "\n" +
		strings.ReplaceAll(keptProgram(), "mul: ", "mul: trap(); ")
	lib := steptest.Compile(t, []string{"gcc", "-O1", "-s", "-shared", "-fPIC", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-nostdlib"},
		"kept.c", source)
	if !keepsFrames(steptest.OpenImage(t, lib)) {
		t.Fatal("keepsFrames is false")
	}
	path := steptest.Compile(t, []string{"gcc", "-O1", "-fomit-frame-pointer", "-Wl,--no-as-needed", lib, "-Wl,-rpath," + filepath.Dir(lib)}, "main.c",
		`extern long (*table[])(long, long); int main(void) { __asm__ volatile("mov $8, %%ebp" ::: "rbp"); return table[0](2, 0); }`)
	p, tid := steptest.StartToTrap(t, path)
	frames, err := unwind.NewWalker(p, unwind.NewGroup(NewBottom(), NewDebug(nil), NewFrameFunc(nil)), nil).WalkStack(nil, tid)
	if err != nil {
		t.Error(err)
	}
	if len(frames) != 6 {
		t.Errorf("%d frames, want 6: trap, f0, main and three of libc's start", len(frames))
	}
}

// callingProgram returns a program of functions that call each other, of which a table tells,
// and one that never returns.
func callingProgram() string {
	const each = 100
	var b, names strings.Builder
	b.WriteString("typedef long (*fn)(long, long); extern fn table[]; static volatile long sink;\n" +
		"__attribute__((noinline, noclone, noreturn)) static void end(void) { __asm__ volatile(\"syscall\" : : \"a\"(60L), \"D\"(0) : \"memory\"); __builtin_unreachable(); }\n")
	for i := range each {
		fmt.Fprintf(&b, "static long f%d(long, long);\n", i)
	}
	for i := range each {
		fmt.Fprintf(&b, `__attribute__((noinline, noclone)) static long f%d(long a, long d) {
	if (d <= 0) return a;
	if (a == 123456789) end();
	long b = f%d(a + 1, d - 1);
	if (b & %d) b += f%d(a ^ b, d - 2);
	return b ^ (d + a);
}
`, i, (7*i+1)%each, 1<<(i%4), (3*i+2)%each)
		fmt.Fprintf(&names, "f%d,", i)
	}
	fmt.Fprintf(&b, "fn table[%d] = {%s};\n", each, names.String())
	b.WriteString(`
__attribute__((used)) long run(void) {
	for (long i = 0; i < 100; i++) sink += table[i * 7 % 100](i, 4);
	return sink;
}
__asm__(".globl _start\n_start: xor %ebp,%ebp\nand $-16,%rsp\ncall run\nmov $60,%eax\nsyscall\nhlt\n");
`)
	return b.String()
}

// A nop behind each call, as GraalVM puts there, is not the gap behind a function that does not
// return, where all of a file's calls have one.
func TestNopsBehindCalls(t *testing.T) {
	steptest.NeedPtrace(t)
	testenv.Needs(t, "gcc")
	dir := t.TempDir()
	c := filepath.Join(dir, "calls.c")
	if err := os.WriteFile(c, []byte(callingProgram()), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("gcc", "-S", "-O1", "-fomit-frame-pointer", "-fno-stack-protector", "-fno-asynchronous-unwind-tables",
		"-o", "-", c).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, nops := range []bool{false, true} {
		var source strings.Builder
		for line := range strings.Lines(string(out)) {
			source.WriteString(line)
			if nops && strings.HasPrefix(line, "\tcall") {
				source.WriteString("\tnop\n")
			}
		}
		path := steptest.Compile(t, []string{"gcc", "-s", "-nostdlib", "-static"}, "calls.s", source.String())
		if found := dataflow.NopsBehindCalls(steptest.OpenImage(t, path)); found != nops {
			t.Errorf("nops behind calls: %t, found %t", nops, found)
		}
		p := steptest.Start(t, path)
		w := unwind.NewWalker(p, unwind.NewGroup(NewBottom(), NewFrameFunc(nil)), nil)
		n := stepAll(t, p, w, 5000)
		t.Logf("nops behind calls %t: %d exact, %d short, %d wrong", nops, n[0], n[1], n[2])
		if n[steptest.Wrong] > 0 || n[steptest.Short] > 50 || n[steptest.Exact] < 3000 {
			t.Errorf("nops behind calls %t: not nearly all exact, or some wrong", nops)
		}
	}
}
