//go:build linux && amd64

package steppers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// gdbFrames prints, for each frame, the registers that a call preserves.
const gdbFrames = `
f = gdb.selected_thread() and gdb.newest_frame()
while f is not None and f.is_valid():
    if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME): # no frames on the stack
        print("frame", f.name(), *[int(f.read_register(r)) & (2**64-1)
            for r in ("rip", "rsp", "rbx", "rbp", "r12", "r13", "r14", "r15")])
    f = f.older()
`

// gdbRegs are the registers of gdbFrames, in its order.
var gdbRegs = []string{"rip", "rsp", "rbx", "rbp", "r12", "r13", "r14", "r15"}

// debugBuild compiles testdata/debug/deep.cc.
func debugBuild(t testing.TB, compiler string, args ...string) string {
	t.Helper()
	testenv.Needs(t, compiler)
	out := filepath.Join(t.TempDir(), "deep")
	testenv.Run(t, exec.Command(compiler, append(args, "-pthread", "testdata/debug/deep.cc", "-o", out, "-lstdc++")...))
	return out
}

// askGDB lets gdb walk the stack of a stopped thread, of which the process is let go of.
func askGDB(t *testing.T, p *steptest.Process, tid int) (frames []procstate.Regs, names []string) {
	t.Helper()
	testenv.Needs(t, "gdb")
	if _, _, e := syscall.Syscall6(syscall.SYS_PTRACE, syscall.PTRACE_DETACH, uintptr(tid), 0, uintptr(syscall.SIGSTOP), 0, 0); e != 0 {
		t.Fatal(e)
	}
	if pid := p.PID(); tid != pid {
		syscall.Kill(pid, syscall.SIGSTOP)
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, syscall.WALL, nil); err != nil {
			t.Fatal(err)
		}
		if err := syscall.PtraceDetach(pid); err != nil {
			t.Fatal(err)
		}
	}
	script := filepath.Join(t.TempDir(), "frames.py")
	if err := os.WriteFile(script, []byte(gdbFrames), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("gdb", "-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off",
		"-p", strconv.Itoa(tid), "-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on",
		"-ex", "source "+script).CombinedOutput()
	if err != nil {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 2+len(gdbRegs) || words[0] != "frame" {
			continue
		}
		values := words[len(words)-len(gdbRegs):]
		var regs procstate.Regs
		for i, name := range gdbRegs {
			v, err := strconv.ParseUint(values[i], 10, 64)
			if err != nil {
				t.Fatalf("gdb: %q", line)
			}
			regs.Set(procstate.AMD64.RegByName(name), v)
		}
		frames = append(frames, regs)
		names = append(names, strings.Join(words[1:len(words)-len(gdbRegs)], " "))
	}
	if len(frames) == 0 {
		t.Fatalf("gdb sees no frames:\n%s", out)
	}
	return frames, names
}

// TestDebugAgainstGDB walks real stacks of 30 and more C++ frames without
// frame pointers and compares every preserved register of every frame.
func TestDebugAgainstGDB(t *testing.T) {
	t.Parallel()
	type build struct {
		name, compiler string
		args           []string
		modes          []string
	}
	builds := []build{
		{"O2", "g++", []string{"-O2", "-fomit-frame-pointer"}, []string{"plain", "signal", "segv", "altstack thread"}},
		{"static", "g++", []string{"-O2", "-fomit-frame-pointer", "-static"}, []string{"signal", "segv thread"}},
		{"clang", "clang-19", []string{"-O2", "-fomit-frame-pointer", "-mavx2"}, []string{"altstack"}},
	}
	if testenv.Long() {
		builds[0].modes = append(builds[0].modes, "altstack", "plain thread")
		builds = append(builds, build{"O0", "g++", []string{"-O0"}, []string{"plain"}},
			build{"static-pie", "g++", []string{"-O2", "-fomit-frame-pointer", "-static-pie"}, []string{"plain"}})
	}
	for _, b := range builds {
		t.Run(b.name, func(t *testing.T) {
			path := debugBuild(t, b.compiler, b.args...)
			for _, mode := range b.modes {
				t.Run(mode, func(t *testing.T) {
					p, tid := steptest.StartToTrap(t, path, strings.Fields(mode)...)
					w := unwind.NewWalker(p, unwind.NewGroup(NewDebug(unwind.NewTables())), nil)
					frames, err := w.WalkStack(nil, tid)
					if err != nil {
						t.Errorf("after %d frames: %v", len(frames), err)
					}
					if len(frames) < 60 {
						t.Errorf("only %d frames", len(frames))
					}
					want, names := askGDB(t, p, int(tid))
					compareFrames(t, frames, want, names)
				})
			}
		})
	}
}

// compareFrames compares what is known of each frame with gdb's. PC, SP and
// what was in a register all along must be known.
func compareFrames(t *testing.T, frames []unwind.Frame, want []procstate.Regs, names []string) {
	t.Helper()
	for i := range min(len(frames), len(want)) {
		for _, name := range gdbRegs {
			reg := procstate.AMD64.RegByName(name)
			v, known := frames[i].Regs.Value(reg)
			truth, _ := want[i].Value(reg)
			if !known || v != truth {
				t.Errorf("frame %d, %s: %s is %#x (known: %v), gdb has %#x", i, names[i], name, v, known, truth)
			}
		}
	}
	if len(frames) != len(want) {
		t.Errorf("%d frames, gdb has %d", len(frames), len(want))
	}
}
