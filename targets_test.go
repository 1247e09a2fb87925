package swbpf_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

var built struct {
	sync.Mutex
	dir  string
	path map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// build compiles a source file, or a Go package, of testdata/walk with a command
// such as "gcc -O2" and returns the program. Equal builds are made once.
func build(t testing.TB, source, command string) string {
	t.Helper()
	args := strings.Fields(command)
	testenv.Needs(t, args[0])
	built.Lock()
	defer built.Unlock()
	key := source + " " + command
	if p := built.path[key]; p != "" {
		return p
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "swbpf-walk")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.path = dir, make(map[string]string)
	}
	name := strings.ReplaceAll(strings.TrimSuffix(source, filepath.Ext(source)), "/", "-")
	out := filepath.Join(built.dir, fmt.Sprintf("%s%d", name, len(built.path)))
	src := "./" + filepath.Join("testdata", "walk", source)
	if filepath.Ext(source) == ".txt" { // Go that needs cgo: no package here, since not all builds have that
		text, err := os.ReadFile(src)
		if err != nil {
			t.Fatal(err)
		}
		src = filepath.Join(built.dir, name+".go")
		if err := os.WriteFile(src, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(args[0], append(args[1:], "-o", out, src)...)
	if args[0] == "go" {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	testenv.Run(t, cmd)
	built.path[key] = out
	return out
}

// target is a running program.
type target struct {
	cmd *exec.Cmd
	pid int
	in  *bufio.Writer
	out *bufio.Reader
}

// start runs a program until it says that it is ready. It is killed when the
// test ends.
func start(t testing.TB, path string, args ...string) *target {
	t.Helper()
	return startWith(t, path, os.Stderr, args...)
}

// startWith is start for a program whose errors go to a file.
func startWith(t testing.TB, path string, stderr *os.File, args ...string) *target {
	t.Helper()
	cmd := exec.Command(path, args...)
	cmd.Stderr = stderr
	t.Cleanup(func() { // when it has ended
		if t.Failed() {
			t.Logf("%s: %v", path, cmd.ProcessState)
		}
	})
	in, out := testenv.Start(t, cmd)
	tg := &target{cmd: cmd, pid: cmd.Process.Pid, in: bufio.NewWriter(in), out: bufio.NewReader(out)}
	if line := tg.line(t); line != "ready" {
		t.Fatalf("%s says %q", path, line)
	}
	return tg
}

// patience is how long a test waits for what must come, on however busy a
// machine.
const patience = 2 * time.Minute

// eventually waits until something is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// line reads a line of the program's output.
func (tg *target) line(t testing.TB) string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		s, _ := tg.out.ReadString('\n')
		got <- s
	}()
	select {
	case s := <-got:
		return strings.TrimSuffix(s, "\n")
	case <-time.After(patience):
		t.Fatalf("the program says nothing:%s", tasks(tg.pid))
		return ""
	}
}

// ask sends the program a line and returns its answer.
func (tg *target) ask(t testing.TB, line string) string {
	t.Helper()
	fmt.Fprintln(tg.in, line)
	tg.in.Flush()
	return tg.line(t)
}

// settle waits until all threads of the program sleep, so that other tools
// see the same stacks.
func (tg *target) settle(t testing.TB) { t.Helper(); settle(t, tg.pid) }

func settle(t testing.TB, pid int) {
	t.Helper()
	eventually(t, "all threads sleep", func() bool { return !strings.ContainsAny(threadStates(pid), "RD") })
}

// threadStates returns the state letters of a process's threads.
func threadStates(pid int) string {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	var s strings.Builder
	for _, name := range stats {
		if b, err := os.ReadFile(name); err == nil {
			if i := bytes.LastIndexByte(b, ')'); i >= 0 && i+2 < len(b) {
				s.WriteByte(b[i+2])
			}
		}
	}
	return s.String()
}

// tasks describes the threads of a process that does not do what it should.
func tasks(pid int) string {
	var s strings.Builder
	dirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range dirs {
		children, _ := os.ReadFile(dir + "/children")
		for c := range strings.FieldsSeq(string(children)) {
			dirs = append(dirs, "/proc/"+c)
		}
	}
	for _, dir := range dirs {
		stat, _ := os.ReadFile(dir + "/stat")
		call, _ := os.ReadFile(dir + "/syscall")
		wchan, _ := os.ReadFile(dir + "/wchan")
		tid, _ := strconv.Atoi(filepath.Base(dir))
		fmt.Fprintf(&s, "\n%.60s tracer %s in %s at %s", stat, statusValue(tid, "TracerPid"), wchan, bytes.TrimSpace(call))
	}
	return s.String()
}

// goesOn fails when a process stays stopped, or traced.
func goesOn(t testing.TB, pid int) {
	t.Helper()
	eventually(t, "process "+itoa(pid)+" goes on", func() bool {
		return !strings.ContainsAny(threadStates(pid), "tT") && statusValue(pid, "TracerPid") == "0"
	})
}

func statusValue(pid int, field string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// refFrame is a frame as another tool has it.
type refFrame struct {
	pc, sp uint64
	name   string
}

// gdbStacks has gdb walk all threads of a process. Inlined calls are left
// out.
func gdbStacks(t testing.TB, args ...string) map[int][]refFrame {
	t.Helper()
	testenv.Needs(t, "gdb")
	script := filepath.Join(t.TempDir(), "walk.py")
	err := os.WriteFile(script, []byte(`
import gdb
sp = "sp" if "aarch64" in gdb.selected_inferior().architecture().name() else ("esp" if gdb.lookup_type("long").sizeof == 4 else "rsp")
for th in gdb.selected_inferior().threads():
    th.switch()
    print("T %d" % th.ptid[1])
    f = gdb.newest_frame()
    while f is not None and f.is_valid():
        if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("F %x %x %s" % (f.pc(), int(f.read_register(sp).cast(gdb.lookup_type("unsigned long"))), f.name()))
        f = f.older()
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gdb", append([]string{"-nx", "-batch", "-iex", "set debuginfod enabled off",
		"-iex", "set auto-load off", "-iex", "set index-cache directory " + filepath.Join(built.dir, "index"), "-iex", "set index-cache enabled on",
		"-iex", "set backtrace past-main on", "-iex", "set backtrace past-entry on"}, append(args, "-x", script)...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gdb: %v", err)
	}
	stacks := make(map[int][]refFrame)
	tid := 0
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case len(f) == 2 && f[0] == "T":
			tid, _ = strconv.Atoi(f[1])
		case len(f) == 4 && f[0] == "F":
			var r refFrame
			r.pc, _ = strconv.ParseUint(f[1], 16, 64)
			r.sp, _ = strconv.ParseUint(f[2], 16, 64)
			r.name = f[3]
			stacks[tid] = append(stacks[tid], r)
		}
	}
	if len(stacks) == 0 {
		t.Fatalf("gdb has no stacks:\n%s", out)
	}
	return stacks
}

var (
	euThread = regexp.MustCompile(`^TID (\d+):`)
	euFrame  = regexp.MustCompile(`^#\d+\s+0x([0-9a-f]+)( - 1)?(?:\s+(.*))?$`)
)

// euStacks has eu-stack walk all threads of a process.
func euStacks(t testing.TB, args ...string) map[int][]refFrame {
	t.Helper()
	testenv.Needs(t, "eu-stack")
	out, err := exec.Command("eu-stack", append([]string{"-n", "0"}, args...)...).Output()
	if err != nil && len(out) == 0 {
		t.Fatalf("eu-stack: %v", err)
	}
	stacks := make(map[int][]refFrame)
	tid := 0
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if m := euThread.FindStringSubmatch(line); m != nil {
			tid, _ = strconv.Atoi(m[1])
		} else if m := euFrame.FindStringSubmatch(line); m != nil {
			pc, _ := strconv.ParseUint(m[1], 16, 64)
			stacks[tid] = append(stacks[tid], refFrame{pc: pc, name: m[3]})
		}
	}
	return stacks
}

// plainName cuts template arguments, parameters, versions and the affixes of
// aliases off a name, which tools write and choose in different ways.
func plainName(s string) string {
	s, _, _ = strings.Cut(s, "@")
	var out []byte
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '<' || c == '(' || c == '[':
			depth++
		case c == '>' || c == ')' || c == ']':
			depth--
		case c == ' ' && depth == 0:
			out = out[:0] // what was before is a return type
		case depth == 0:
			out = append(out, c)
		}
	}
	s = string(out[bytes.LastIndexByte(out, ':')+1:])
	return strings.TrimSuffix(aliasAffix.ReplaceAllString(s, ""), "_impl")
}

// aliasAffix is what the aliases of functions in libc begin with.
var aliasAffix = regexp.MustCompile(`^_*(GI_|libc_|IO_new_|IO_|new_|_)*`)

func amd64Only(t testing.TB) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("a program of amd64")
	}
}

// canTrace ends a test where ptrace does not work.
func canTrace(t testing.TB) {
	t.Helper()
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(cmd.Process.Pid); err != nil {
		testenv.Lacks(t, "processes cannot be traced here: %v", err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
