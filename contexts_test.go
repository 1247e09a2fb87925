package swbpf_test

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// What a thread works on is where its loader has said, on AArch64 too.
func TestContextsAArch64(t *testing.T) {
	testenv.Needs(t, "aarch64-linux-gnu-gcc", "qemu-aarch64")
	const sources = "cmd/swbpf/testdata/targets/"
	for _, c := range []struct {
		name, flag string // of the library; none
	}{{"program", ""}, {"descriptors", "-mtls-dialect=desc"}, {"vector", "-mtls-dialect=trad"}, {"static", "-ftls-model=initial-exec"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program, library := filepath.Join(dir, "contexts"), filepath.Join(dir, "contextlib.so")
			compile := []string{"-O1", "-g", "-pthread", "-o", program, sources + "contexts.c", "-ldl"}
			args := []string{"60", "-", "alone"} // other threads would go on where one has stopped
			if c.flag == "" {
				compile = append(compile, "-DOWN", "-rdynamic")
			} else {
				testenv.Run(t, exec.Command("aarch64-linux-gnu-gcc", "-O1", "-fPIC", "-shared", c.flag, "-o", library, sources+"contextlib.c"))
				args[1] = library
			}
			testenv.Run(t, exec.Command("aarch64-linux-gnu-gcc", compile...))
			p, _ := runEmulated(t, "/usr/aarch64-linux-gnu", program, args...)
			seen := map[string]int{}
			for n := 0; n < 200 && (seen["01"] < 2 || seen["02"] < 2 || seen[""] < 2); n++ {
				time.Sleep(rand.N(16 * time.Millisecond)) // not in step with what it does
				w := stopEmulated(t, p, program)
				contexts := procstate.ContextsOf(w.ProcessState())
				tids, err := w.Threads()
				if err != nil {
					t.Fatal(err)
				}
				for _, tid := range tids {
					frames, _ := w.WalkStack(nil, tid)
					digits, ok := "", false
					for i := range frames {
						name, _ := w.Name(&frames[i])
						switch name.Name {
						case "checkout":
							digits, ok = "01", true
						case "login":
							digits, ok = "02", true
						case "unpublished":
							ok = true
						}
					}
					var regs procstate.Regs
					if !ok || w.ProcessState().Registers(tid, &regs) != nil {
						continue
					}
					work := contexts.Of(w.ProcessState(), &regs)
					switch {
					case digits == "" && work != nil:
						t.Errorf("%+v, want nothing", work)
					case digits != "" && (work == nil || work.Trace != strings.Repeat(digits, 16) || len(work.Attributes) != 2 || work.Attributes[1].Value != "acme"):
						t.Errorf("%+v, want a trace of %s", work, digits)
					}
					seen[digits]++
				}
				p.Run()
			}
			if seen["01"] < 2 || seen["02"] < 2 || seen[""] < 2 {
				t.Errorf("threads in %v", seen)
			}
		})
	}
}
