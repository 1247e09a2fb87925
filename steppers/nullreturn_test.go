package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/unwind"
)

// A stack as valgrind makes them: a null, above it other data, and the frame pointer as
// asked for; or as libgo does, which ends with a page.
const nullReturnProgram = `
#include <string.h>
static char stack[65536] __attribute__((aligned(4096)));
__attribute__((noinline)) void stop(void) { __asm__ volatile("int3"); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void deep(int n) { volatile char pad[48]; pad[n] = 0; if (n) deep(n - 1); else stop(); pad[1] = 1; }
__attribute__((noinline)) void first(void) { deep(3); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void leaf(void) { __asm__ volatile("int3"); }
int main(int argc, char **argv) {
	(void)argc;
	memset(stack, 0x41, sizeof stack);
	void (*f)(void) = argv[1][0] == 'l' ? leaf : first;
	long fp = argv[1][0] == 'f' || argv[1][0] == 'p' ? (long)stack : 0;
	char *end = stack + (argv[1][0] == 'p' ? 10 * 4096 : 40000);
	__asm__ volatile("mov %0,%%rsp; mov %1,%%rbp; push $0; jmp *%2" : : "r"(end), "r"(fp), "r"(f));
	__builtin_unreachable();
}
`

// guessStepper is Debug for the top frame, and says that it has guessed.
type guessStepper struct{ *Debug }

func (s guessStepper) Priority() unwind.Priority { return unwind.PriorityBottom }

func (s guessStepper) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if !in.IsTop() {
		return unwind.NotMe, nil
	}
	v, err := s.Debug.CallerFrame(w, in, out)
	out.Flags |= unwind.Heuristic
	return v, err
}

// A null return address ends a stack where CFI tells of it, with the frame pointer cleared
// or at the end of a page, and in a call: not where neither is so, the frame was interrupted, or a
// frame on the way was guessed.
func TestNullReturnAddress(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O2", "-fno-optimize-sibling-calls", "-fcf-protection=none"}, "null.c", nullReturnProgram)
	for _, c := range []struct {
		how    string
		frames int
		guess  bool
		want   error
	}{
		{"call", 6, false, nil},
		{"frame pointer", 6, false, unwind.BadPC},
		{"page", 6, false, nil},
		{"leaf", 1, false, unwind.BadPC},
		{"call", 6, true, unwind.BadPC},
		{"page", 6, true, unwind.BadPC},
	} {
		p, tid := steptest.StartToTrap(t, path, c.how)
		group := Default(unwind.NewTables())
		if c.guess {
			if err := group.AddStepper(guessStepper{NewDebug(nil)}); err != nil {
				t.Fatal(err)
			}
		}
		w := unwind.NewWalker(p, group, nil)
		frames, err := w.WalkStack(nil, tid)
		if err != c.want || len(frames) != c.frames || frames[len(frames)-1].IsBottom() != (c.want == nil) {
			t.Errorf("%s, guess %v: %v, want %v and %d frames\n%s", c.how, c.guess, err, c.want, c.frames, describe(p, frames))
		}
		if c.guess {
			continue
		}
		pcs, err := w.WalkPCs(nil, &frames[0].Regs)
		if err != c.want || len(pcs) != c.frames {
			t.Errorf("%s by rules: %v, want %v and %d frames: %v", c.how, err, c.want, c.frames, pcs)
		}
	}
}
