package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

const bottomsProgram = `
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <stdlib.h>
#include <sched.h>
#include <signal.h>
#ifdef COROUTINE
#include <ucontext.h>
static ucontext_t back, there;
#endif
__attribute__((noinline)) void stop(void) { __asm__ volatile("int3"); __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void deep(int n) { volatile char pad[48]; pad[n] = 0; if (n) deep(n - 1); else stop(); pad[1] = 1; }
static void *thread(void *p) { deep(3); return p; }
static int child(void *p) { (void)p; deep(3); return 0; }
static void routine(int a, int b) { (void)a; (void)b; deep(3); }
int main(int argc, char **argv) {
	(void)argc;
	switch (argv[1][0]) {
	case 'm': deep(3); break;
	case 't': { pthread_t t; pthread_create(&t, 0, thread, 0); pthread_join(t, 0); break; }
	case 'c': { char *s = malloc(65536); clone(child, s + 65536, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, 0); for (;;) sched_yield(); }
	case 'r':
#ifdef COROUTINE
		getcontext(&there);
		there.uc_stack.ss_sp = malloc(65536);
		there.uc_stack.ss_size = 65536;
		there.uc_link = &back;
		makecontext(&there, (void (*)(void))routine, 2, 1, 2);
		swapcontext(&back, &there);
#else
		(void)routine;
#endif
		break;
	}
	return 0;
}
`

// The first frame of a stack is recognised, whoever made the stack: the
// kernel for a process, the C library for a thread, clone, makecontext.
func TestBottoms(t *testing.T) {
	steptest.NeedPtrace(t)
	for _, cc := range [][]string{
		{"gcc", "-O2", "-DCOROUTINE"}, {"gcc", "-O0", "-static", "-DCOROUTINE"}, {"gcc", "-O1", "-static-pie", "-DCOROUTINE"},
		{"musl-gcc", "-O2"}, {"musl-gcc", "-O0", "-static"},
	} {
		path := steptest.Compile(t, append(cc, "-fno-optimize-sibling-calls"), "bottoms.c", bottomsProgram)
		for _, how := range []string{"main", "thread", "clone", "routine"} {
			if how == "routine" && cc[0] == "musl-gcc" {
				continue // musl has no makecontext
			}
			t.Run(cc[0]+cc[1]+cc[len(cc)-1]+" "+how, func(t *testing.T) {
				p, tid := steptest.StartToTrap(t, path, how)
				w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
				frames, err := w.WalkStack(nil, tid)
				if err != nil {
					t.Fatalf("%v\n%s", err, describe(p, frames))
				}
				again := 0
				for i := 2; i < len(frames); i++ {
					if frames[i].PC() == frames[i-1].PC() {
						again++
					}
				}
				if again < 2 || !frames[len(frames)-1].IsBottom() {
					t.Errorf("%d repeated frames\n%s", again, describe(p, frames))
				}
				if how != "main" && len(frames) > 10 {
					t.Errorf("%d frames: the stack goes on past its bottom\n%s", len(frames), describe(p, frames))
				}
			})
		}
	}
}

// What a stepper costs a frame that is none of its own.
func benchmarkNotMe(b *testing.B, s unwind.FrameStepper) {
	h := newHostileWorld(b, procstate.AMD64, "/bin/true")
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", h.libs)
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	f := unwind.NewFrame(procstate.AMD64, h.codes[10], 0x7ff000000000, 0x7ff000000100)
	var out unwind.Frame
	for b.Loop() {
		if v, _ := s.CallerFrame(w, &f, &out); v != unwind.NotMe {
			b.Fatal(v)
		}
	}
}

func BenchmarkBottom(b *testing.B)  { benchmarkNotMe(b, NewBottom()) }
func BenchmarkGoNotMe(b *testing.B) { benchmarkNotMe(b, NewGo()) }
