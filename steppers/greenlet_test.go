package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/unwind"
)

// What a greenlet's stack looks like when others have run in the meantime: what has called the function that
// runs it is no more.
const greenletProgram = `
#include <string.h>
namespace greenlet {
struct UserGreenlet {
	int inner_bootstrap(char *caller);
};
__attribute__((noinline)) void stop(void) { __asm__ volatile("int3"); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void deep(int n) { volatile char pad[48]; pad[n] = 0; if (n) deep(n - 1); else stop(); pad[1] = 1; }
__attribute__((noinline)) int UserGreenlet::inner_bootstrap(char *caller) {
	memset(caller, 0x41, 64);
	deep(3);
	__builtin_trap();
}
}
__attribute__((noinline)) int initialstub(greenlet::UserGreenlet *g) {
	return g->inner_bootstrap((char *)__builtin_frame_address(0)) + 1;
}
int main(void) {
	greenlet::UserGreenlet g;
	return initialstub(&g);
}
`

// A greenlet's stack ends with the function that runs it, in a module of that name alone.
func TestGreenlet(t *testing.T) {
	steptest.NeedPtrace(t)
	for _, c := range []struct {
		name       string
		isGreenlet bool
	}{{"greenlet", true}, {"other", false}} {
		path := steptest.Compile(t, []string{"g++", "-O1", "-fno-optimize-sibling-calls"}, c.name+".cc", greenletProgram)
		p, tid := steptest.StartToTrap(t, path)
		w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
		frames, err := w.WalkStack(nil, tid)
		const want = 6 // stop, deep four times, inner_bootstrap
		if isWhole := err == nil && len(frames) == want && frames[want-1].IsBottom(); isWhole != c.isGreenlet {
			t.Errorf("%s: %v, %d frames\n%s", c.name, err, len(frames), describe(p, frames))
		}
		pcs, err := w.WalkPCs(nil, &frames[0].Regs)
		if isWhole := err == nil && len(pcs) == want; isWhole != c.isGreenlet {
			t.Errorf("%s by rules: %v, %d frames", c.name, err, len(pcs))
		}
	}
}
