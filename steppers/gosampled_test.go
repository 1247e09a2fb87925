package steppers

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/unwind"
)

// Samples of Go programs on AArch64 hold all of a thread's stacks that a walk
// comes to: where C is called and calls back, on the scheduler's stack, in the
// vdso. The files of testdata/stacks were made by internal/recorded/record
// -samples under Linux 6.1:
//
//	goarm64     cmd/swbpf/testdata/targets/gogc
//	gocgoarm64  cmd/swbpf/testdata/targets/gocallbacks
func TestGoSamplesARM64(t *testing.T) {
	for _, name := range []string{"goarm64", "gocgoarm64"} {
		t.Run(name, func(t *testing.T) {
			f, snap := loadStacks(t, name)
			w := unwind.NewWalker(snap, Default(unwind.NewTables()), nil)
			callbacks, switches := 0, 0
			for i := range f.Stacks {
				regs := f.Stacks[i].Registers()
				snap.Reset(1, &regs, f.Stacks[i].Regions)
				frames, err := w.WalkStack(nil, 1)
				if err == nil {
					err = checkLinks(snap, frames)
				}
				var names []string
				for k := range frames {
					name, _ := goName(snap, frames[k].LookupPC())
					names = append(names, name)
					if frames[k].Flags&unwind.StackSwitched != 0 {
						switches++
					}
				}
				if err == nil {
					err = callbackChain(slices.Compact(names), &callbacks)
				}
				if err != nil {
					t.Errorf("stack %d: %v\n%s", i, err, describe(snap, frames))
				}
			}
			if switches == 0 || strings.Contains(name, "cgo") != (callbacks > 0) {
				t.Errorf("%d switches of the stack, %d callbacks", switches, callbacks)
			}
			t.Logf("%d stacks, %d switches, %d callbacks", len(f.Stacks), switches, callbacks)
		})
	}
}

// callbackChain checks the functions of gocallbacks, leaf first, where each is
// named once in a row: what its source dictates from each goBurn on. "C" is code
// that is not Go's.
func callbackChain(names []string, callbacks *int) error {
	expect := func(want ...string) error {
		for _, name := range want {
			if len(names) == 0 || !strings.HasPrefix(names[0], name) {
				return fmt.Errorf("not %s: %v", name, names)
			}
			names = names[1:]
		}
		return nil
	}
	for i := slices.Index(names, "main.goBurn"); i >= 0; i = slices.Index(names, "main.goBurn") {
		*callbacks++
		names = names[i+1:]
		if err := expect("_cgoexp_", "runtime.cgocallbackg1", "runtime.cgocallbackg", "runtime.cgocallback", "crosscall2", "C"); err != nil {
			return err
		}
		if len(names) == 0 { // of the thread that C has made
			return nil
		}
		if err := expect("runtime.asmcgocall", "runtime.cgocall", "main._Cfunc_level"); err != nil {
			return err
		}
		if len(names) == 0 || names[0] != "main.goBurn" {
			return expect("main.main", "runtime.main", "runtime.goexit")
		}
	}
	return nil
}
