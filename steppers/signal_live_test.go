package steppers

import (
	"runtime"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/unwind"
)

// alternateProgram makes a system call in handlers of signals, one within the
// other, on an alternate stack in the heap, in two threads.
const alternateProgram = `
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) void second(int sig) { (void)sig; getppid(); getppid(); }
__attribute__((noinline)) void first(int sig) { (void)sig; raise(SIGUSR2); getppid(); }
__attribute__((noinline)) void victim(int n) {
	volatile char pad[3000];
	pad[n] = 1;
	if (n > 0) victim(n - 1);
	else { raise(SIGUSR1); getppid(); }
	pad[n]++;
}
__attribute__((noinline)) void *thread(void *p) {
	stack_t ss = { .ss_sp = malloc(65536 + 24), .ss_size = 65536 + 24 };
	sigaltstack(&ss, 0);
	victim(5);
	getppid();
	return p;
}
int main(void) {
#ifndef FLAGS
#define FLAGS 0
#endif
	struct sigaction a = { .sa_handler = first, .sa_flags = SA_ONSTACK | FLAGS };
	sigaction(SIGUSR1, &a, 0);
	a.sa_handler = second;
	sigaction(SIGUSR2, &a, 0);
	pthread_t t;
	pthread_create(&t, 0, thread, 0);
	pthread_join(t, 0);
	thread(0);
	getppid();
	return 0;
}
`

// alternateFunctions are those of the program in a stack, without main.
var alternateFunctions = []string{"thread", "victim", "first", "second"}

// The stack of a thread that handles a signal on an alternate stack is whole in
// a recording, the frames that were interrupted included; also where the thread
// is in the system call that ends a handler, which has the PC behind it.
func TestAlternateStacksRecorded(t *testing.T) {
	steptest.NeedPtrace(t)
	event, err := loader.ParseEvent("raw_syscalls:sys_enter")
	if err != nil {
		t.Fatal(err)
	}
	compilers := [][]string{{"gcc", "-O2", "-pthread"}, {"musl-gcc", "-O2", "-static"}}
	if runtime.GOARCH == "amd64" && testenv.Runs32Bit(t) {
		// The kernel makes another frame for a handler that asks for siginfo.
		compilers = append(compilers, []string{"gcc", "-m32", "-O2", "-pthread"},
			[]string{"gcc", "-m32", "-O2", "-pthread", "-DFLAGS=SA_SIGINFO"})
	}
	for _, cc := range compilers {
		path := steptest.Compile(t, append(cc, "-fno-optimize-sibling-calls"), "alternate.c", alternateProgram)
		victims := []string{"thread", "victim", "victim", "victim", "victim", "victim", "victim"}
		seen := map[string]int{}
		recordNested(t, Default(unwind.NewTables()), path, loader.Config{Event: event}, nil, nil, func(s *walkedSample) {
			if !slices.Contains(s.names, "victim") {
				return
			}
			names := slices.DeleteFunc(slices.Clone(s.names), func(n string) bool {
				return !slices.Contains(alternateFunctions, n)
			})
			handlers := names[min(len(victims), len(names)):]
			if s.err != nil || !slices.Equal(names[:len(names)-len(handlers)], victims) {
				t.Errorf("%v: walk ends with %v after %v", cc, s.err, s.names)
				return
			}
			switch {
			case slices.Equal(handlers, []string{"first", "second"}):
				seen["second"]++
			case slices.Equal(handlers, []string{"first"}):
				seen["first"]++
			case len(handlers) == 0:
				seen["none"]++
			default:
				t.Errorf("%v: handlers %v", cc, handlers)
			}
		})
		// In each thread second calls getppid twice; while it returns, and first
		// returns, the handler is gone.
		if seen["second"] != 4 || seen["first"] < 4 || seen["none"] < 4 {
			t.Errorf("%v: stacks in handlers: %v", cc, seen)
		}
	}
}
