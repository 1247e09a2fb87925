//go:build linux && amd64

package steppers

import (
	"bytes"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// i386Program has what is of i386 alone: functions that take arguments off the stack,
// because they return structures or by their convention, arguments in registers, a main
// that aligns the stack, nested functions; and frames of a size that only run time knows,
// tail calls, switches, callbacks from libc, its string functions, and the vDSO.
const i386Program = `
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define NOINLINE __attribute__((noinline, noclone))
typedef struct { int a, b, c; double d; } big;
static volatile long sink;
NOINLINE int leaf(int a, int b) { return a * 3 + b; }
NOINLINE big structure(int n) { big r = {n, leaf(n, 2), n + 1, n / 3.0}; return r; }
NOINLINE __attribute__((stdcall)) int standard(int a, int b, int c) { return leaf(a, b) + c; }
NOINLINE __attribute__((fastcall)) int fast(int a, int b, int c, int d) { sink += c; return leaf(a, b) + leaf(c, d); }
NOINLINE __attribute__((regparm(3))) int registers(int a, int b, int c) { sink += leaf(c, b); return leaf(a, b) + c; }
NOINLINE int variable(int n) { volatile char *p = alloca(n * 8 + 1); p[n] = 1; return p[n] + leaf(n, 1); }
NOINLINE int aligned(int n) { __attribute__((aligned(64))) volatile int x[8]; x[n & 7] = n; return x[n & 7] + leaf(n, 1); }
NOINLINE int wide(void) { volatile char x[9000]; x[17] = 1; return x[17] + leaf(1, 2); }
NOINLINE int recurse(int n) { return n == 0 ? 1 : recurse(n - 1) + n; }
NOINLINE int tail(int n) { sink += n; return recurse(n % 5); }
static big (*volatile makes)(int) = structure;
static int (__attribute__((stdcall)) *volatile takes)(int, int, int) = standard;
NOINLINE int structures(int n) {
	big x = structure(n), y = makes(n + 1);
	int k = leaf(x.a, y.b);
	x = makes(k);
	return leaf(x.c, 1) + leaf((int)y.d, 2);
}
NOINLINE int choose(int k, int n) {
	switch (k) {
	case 0: return leaf(n, 1);
	case 1: return structures(n);
	case 2: return standard(n, 1, 2) + leaf(n, 3);
	case 3: return variable(n);
	case 4: sink++; return takes(n, 2, 3) + leaf(2, 3);
	case 5: return fast(n, 2, 3, 4) + registers(n, 2, 3);
	case 6: return aligned(n) + wide();
	case 7: sink--; return leaf(leaf(n, 2), 3);
	case 8: return tail(n);
	}
	return 0;
}
static int compare(const void *a, const void *b) { sink++; return *(const int *)a - *(const int *)b; }
NOINLINE int sorts(void) {
	int v[9] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
	qsort(v, 9, sizeof v[0], compare);
	return v[3] + atoi("42");
}
NOINLINE int copies(void) {
	static char a[500], b[500];
	int sum = 0;
	for (int n = 0; n < 400; n = n * 2 + 3) {
		memset(a, 'a', n + 1);
		memcpy(b, a, n);
		memmove(b + 1, b, n);
		sum += memcmp(a, b, n) + (strlen(b) & 1) + (strchr(a, 'b') != 0) + strcmp(a, b) + (memchr(a, 'x', n) != 0);
		strcpy(b, a);
	}
	return sum;
}
NOINLINE int clocks(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (t.tv_nsec & 1) + (time(0) & 1);
}
int main(int argc, char **argv) {
	(void)argv;
	long s = argc;
	for (int i = 0; i < 10; i++) s += choose(i, i + 2);
	s += sorts() + copies() + clocks();
	char text[200];
	snprintf(text, sizeof text, "%ld %s %g", s, "x", 1.5);
	sink += strlen(text);
	return 0;
}
`

// i386Builds are compiled without unwind tables, so that all that is known of the
// program itself is its code. hidden takes away those of libc too, linked in, and all
// symbols; those that are long are left out unless SWBPF_LONG is set.
var i386Builds = []struct {
	name   string
	cc     []string
	hidden bool
	long   bool
}{
	{"gcc O0", []string{"gcc", "-O0"}, false, true},
	{"gcc O1", []string{"gcc", "-O1"}, false, true},
	{"gcc O2", []string{"gcc", "-O2"}, false, true},
	{"gcc O3 frame pointers", []string{"gcc", "-O3", "-fno-omit-frame-pointer"}, false, true},
	{"gcc Os", []string{"gcc", "-Os"}, false, true},
	{"gcc O2 no PIE", []string{"gcc", "-O2", "-no-pie", "-fno-pie", "-s"}, false, true},
	{"clang O0", []string{"clang-19", "-O0"}, false, true},
	{"clang O2", []string{"clang-19", "-O2", "-s"}, false, false},
	{"gcc O2 static", []string{"gcc", "-O2", "-static"}, true, false},
	{"gcc Os static", []string{"gcc", "-Os", "-static"}, true, true},
	{"clang O2 static", []string{"clang-19", "-O2", "-static"}, true, true},
}

// 32-bit programs without unwind tables are walked at every instruction.
func TestI386EveryInstruction(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.Needs32Bit(t)
	for _, b := range i386Builds {
		if b.long && !testenv.Long() {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			path := steptest.Compile(t, append(slices.Clone(b.cc), "-m32", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-w"), "program.c", i386Program)
			if b.hidden {
				hideTables32(t, path)
			}
			p := steptest.Start(t, path)
			n := stepI386(t, p, unwind.NewWalker(p, Default(nil), nil))
			total := n[steptest.Exact] + n[steptest.Short] + n[steptest.Wrong]
			t.Logf("%d instructions: %d exact, %d short, %d wrong", total, n[steptest.Exact], n[steptest.Short], n[steptest.Wrong])
			// What a function takes off the stack that is called by a pointer, by the
			// conventions of Windows, is not known, nor what CFI says of the first two calls.
			if least := total * 998 / 1000; n[steptest.Wrong] > 0 || n[steptest.Exact] < least || total < 10_000 {
				t.Errorf("want at least %d exact and none wrong", least)
			}
		})
	}
}

// stepI386 is stepAll for a program with libraries that are mapped as it goes.
func stepI386(t *testing.T, p *steptest.Process, w *unwind.Walker) (n [steptest.NumResults]int) {
	t.Helper()
	s := steptest.NewShadow(p)
	var regs procstate.Regs
	if err := p.Registers(procstate.DefaultThread, &regs); err != nil {
		t.Fatal(err)
	}
	var frames []unwind.Frame
	shown := map[uint64]bool{} // where walks are not exact
	inClock := map[uint64]int{}
	linking := 0
	for !p.Exited() {
		pc := regs.Raw(p.Arch().PC)
		m := p.Libraries().MappingAt(pc)
		if m == nil {
			if err := p.UpdateMappings(); err != nil {
				t.Fatal(err)
			}
		}
		// The vDSO reads a clock anew for as long as the kernel sets it meanwhile, which
		// it does between any two walks.
		if m != nil && m.Path == "[vdso]" {
			if inClock[pc]++; inClock[pc] > 3 {
				if err := s.Step(p, &regs); err != nil {
					t.Fatal(err)
				}
				continue
			}
		}
		// The dynamic linker does much the same again and again.
		if m != nil && strings.Contains(m.Path, "/ld-linux") && !testenv.Long() {
			if linking++; linking%4 != 0 {
				if err := s.Step(p, &regs); err != nil {
					t.Fatal(err)
				}
				continue
			}
		}
		var top unwind.Frame
		top.Load(p.Arch(), &regs)
		var err error
		frames, err = w.WalkFrom(frames[:0], &top)
		r := s.Compare(frames, err)
		n[r]++
		if r != steptest.Exact && !shown[top.PC()] && len(shown) < 20 {
			shown[top.PC()] = true
			t.Logf("%s\n%s", r, s.Describe(w, frames, err))
		}
		if err := s.Step(p, &regs); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// hideTables32 takes unwind tables and symbols away from a 32-bit program.
func hideTables32(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range [...]string{".eh_frame_hdr", ".eh_frame", ".symtab"} {
		b = bytes.ReplaceAll(b, []byte("\x00"+name+"\x00"), append([]byte("\x00-"), name[1:]+"\x00"...))
	}
	const ehFrame = 0x6474e550 // PT_GNU_EH_FRAME
	phoff, phnum := binary.LittleEndian.Uint32(b[28:]), int(binary.LittleEndian.Uint16(b[44:]))
	for i := range phnum {
		if ph := b[int(phoff)+32*i:]; binary.LittleEndian.Uint32(ph) == ehFrame {
			clear(ph[:4])
		}
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
}
