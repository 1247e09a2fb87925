package steppers

import (
	"debug/elf"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// damagedSource is a library with what steppers look for in files: a table of jumps,
// relocations, a part of a function that is unlikely, calls that do not return, and
// symbols that Dyninst writes.
const damagedSource = `
void abort(void); int out(int); void *volatile place;
extern int weak(int) __attribute__((weak));
int (*const table[])(int) = { out, weak };
int choose(int n) {
	switch (n) {
	case 0: return out(1); case 1: return out(7) + 1; case 2: return out(n + 3); case 3: return out(2) * 3;
	case 4: return table[n & 1](n); case 5: place = __builtin_alloca(n * 16); return out(5); case 6: abort();
	}
	if (__builtin_expect(n > 1000, 0)) abort();
	return out(n) + choose(n - 1);
}
asm(".section .dyninstInst,\"ax\"\n.globl dyninstBT_1000_32_10\ndyninstBT_1000_32_10: push %rbp; mov %rsp,%rbp; nop; leave; ret; .skip 26; .text");
`

// FuzzDamagedFile walks from the code of a file that is damaged.
func FuzzDamagedFile(f *testing.F) {
	for _, cc := range [][]string{
		{"gcc", "-shared", "-fPIC", "-nostdlib", "-O2"}, {"gcc", "-shared", "-fPIC", "-nostdlib", "-O1", "-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"},
		{"clang-19", "-shared", "-fPIC", "-nostdlib", "-O2", "-gdwarf-5", "-fno-asynchronous-unwind-tables"},
	} {
		b, err := os.ReadFile(steptest.Compile(f, cc, "a.c", damagedSource))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint64(1))
		f.Add(b, uint64(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		im, err := procstate.NewImageBytes(b, "damaged")
		if err != nil {
			return
		}
		h := &hostileWorld{libs: &procstate.AddressSpace{}}
		const base = 0x10000000
		rng := rand.New(rand.NewPCG(seed, 4))
		for i, s := range im.Segments() {
			if s.Flags&elf.PF_X == 0 || i > 8 {
				continue
			}
			size := min(s.Memsz, 1<<24)
			h.libs.Insert(&procstate.Mapping{Start: base + s.Vaddr&^4095, End: base + (s.Vaddr+size+4095)&^4095, Offset: s.Off &^ 4095, Path: "damaged", Image: im})
			for range 8 {
				h.codes = append(h.codes, base+s.Vaddr+rng.Uint64N(max(size, 1)))
			}
		}
		if len(h.codes) == 0 {
			return
		}
		group := allSteppers()
		if err := group.AddStepper(NewDyninstInstr()); err != nil {
			t.Fatal(err)
		}
		stack := make([]byte, 1024)
		for range 4 {
			snap, regs := h.snapshot(rng, im.Arch(), stack)
			w := unwind.NewWalker(snap, group, nil)
			w.MaxFrames = 16
			if _, err := w.WalkPCs(nil, regs); err != nil && unwind.ReasonOf(err) == unwind.StepperFailed {
				t.Fatal(err)
			}
		}
	})
}
