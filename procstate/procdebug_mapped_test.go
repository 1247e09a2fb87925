package procstate

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// newCode maps a page of code, and returns its address and what takes it away.
func newCode(t *testing.T) (addr uint64, unmap func()) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	return uint64(uintptr(unsafe.Pointer(&b[0]))), func() { unix.Munmap(b) }
}

// TestMappedBefore: what comes and goes of the code of a process is noticed.
func TestMappedBefore(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), ThreadID(unix.Gettid())
	before := newMappedBefore(readMapsText(pid, tid))
	if !before.isMapped(pid, tid) {
		testenv.Lacks(t, "PROCMAP_QUERY needs Linux 6.11")
	}
	if !before.isAll(pid, tid) {
		t.Error("nothing has changed, and yet there is more code")
	}
	space := spaceFromMaps(pid, tid, before.text)
	if before.withNew(space, pid, tid) != space {
		t.Error("nothing has changed, and yet the mappings are others")
	}

	addr, unmap := newCode(t)
	with := newMappedBefore(readMapsText(pid, tid))
	if !before.isMapped(pid, tid) || before.isAll(pid, tid) {
		t.Error("code that is new is not noticed")
	}
	if !with.isMapped(pid, tid) || !with.isAll(pid, tid) {
		t.Error("nothing has changed since there is more code")
	}
	all := before.withNew(space, pid, tid)
	if all.MappingAt(addr) == nil || all.Len() != space.Len()+1 || space.MappingAt(addr) != nil {
		t.Errorf("%d mappings, before %d", all.Len(), space.Len())
	}

	unmap()
	if with.isMapped(pid, tid) || with.isAll(pid, tid) {
		t.Error("code that is gone is not noticed")
	}
	for i := range before.code { // another file at the same place
		other := newMappedBefore(before.text)
		other.code[i].inode++
		if other.isMapped(pid, tid) || other.isAll(pid, tid) {
			t.Errorf("another file at %#x is not noticed", other.code[i].start)
		}
	}
}

// TestCaptureSpace: a capture has the mappings that it was given for as long as they hold.
func TestCaptureSpace(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo; read line; exec cat")
	in, out := testenv.Start(t, cmd)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	exe := func() string {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return filepath.Base(path)
	}
	program := func(c *Capture) string {
		for _, l := range c.Libraries().Libraries() {
			if l.Path == c.ExecutablePath() {
				return filepath.Base(l.Path)
			}
		}
		return "none"
	}
	space, shell := SpaceOfProcess(pid), exe()
	c, err := CaptureProcess(pid, CaptureOptions{Space: space})
	if err != nil {
		t.Fatal(err)
	}
	if c.Libraries() != LibraryState(space) || program(c) != shell {
		t.Errorf("the mappings of %s were not used", shell)
	}
	io.WriteString(in, "\n")
	for exe() == shell {
		runtime.Gosched()
	}
	cat := exe()
	if c, err = CaptureProcess(pid, CaptureOptions{Space: space}); err != nil {
		t.Fatal(err)
	}
	if got := program(c); got != cat {
		t.Errorf("the program is %s, that of the mappings %s", cat, got)
	}
	if stack, err := readWordOfStack(c); err != nil {
		t.Errorf("stack at %#x: %v", stack, err)
	}
}

// readWordOfStack reads a word of the first thread's stack.
func readWordOfStack(c *Capture) (sp uint64, err error) {
	var regs Regs
	if err = c.Registers(DefaultThread, &regs); err != nil {
		return 0, err
	}
	sp = regs.Raw(c.Arch().SP)
	if err = c.BeforeWalk(DefaultThread); err != nil {
		return sp, err
	}
	if _, ok := c.ReadWord(sp); !ok {
		err = ErrUnreadable
	}
	return sp, err
}

// TestHadMemory: memory that came after the mappings were read is some that is missing.
func TestHadMemory(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, tid := os.Getpid(), ThreadID(unix.Gettid())
	areas := scanAreas(readMapsText(pid, tid))
	addr, unmap := newCode(t)
	defer unmap()
	if (&Capture{pid: pid, task: tid, areas: areas}).hadMemory(addr) {
		t.Fatal("the memory was there before")
	}
	c := &Capture{pid: pid, task: tid, areas: areas, earlier: true}
	if c.hadMemory(16) || !c.hadMemory(addr) {
		t.Errorf("memory at %#x is not known", addr)
	}
}

// TestExportedSymbol compares symbols that are looked up by name with the table.
func TestExportedSymbol(t *testing.T) {
	found := 0
	for _, l := range SpaceOfProcess(libcUser(t)).Libraries() {
		if l.Image == nil || l.Path == "[vdso]" {
			continue
		}
		s, ok := l.Image.Section(".dynsym")
		if !ok {
			continue
		}
		values := map[string][]uint64{}
		l.Image.eachSymbolOf(s, func(sym *ELFSymbol) bool {
			values[string(sym.Name)] = append(values[string(sym.Name)], sym.Value)
			return true
		})
		for name, want := range values {
			sym, ok := l.Image.ExportedSymbol(name)
			is := false
			for _, v := range want {
				is = is || v == sym.Value
			}
			if !ok || !is || string(sym.Name) != name {
				t.Fatalf("%s: %s is %+v, %v; want one of %#x", l.Path, name, sym, ok, want)
			}
			found++
			others := []string{name + "x", "x" + name, strings.ToUpper(name) + "!"}
			if n := len(name); n > 1 && name[n-1] > 'a' { // of the same hash
				others = append(others, name[:n-2]+string([]byte{name[n-2] + 1, name[n-1] - 33}))
			}
			for _, no := range others {
				if sym, ok := l.Image.ExportedSymbol(no); ok && values[no] == nil {
					t.Fatalf("%s: %s is %+v", l.Path, no, sym)
				}
			}
		}
	}
	if found < 1000 {
		t.Errorf("%d symbols; libc alone has more", found)
	}
}

// libcUser starts a program that has libc, and returns its PID.
func libcUser(t *testing.T) int {
	cmd := exec.Command("cat")
	startCat(t, cmd)
	return cmd.Process.Pid
}

// A file that could not be reached is looked for again after a time, though nothing was mapped since.
func TestUnreachedFileAgain(t *testing.T) {
	cmd := exec.Command("cat") // waits for what it is to read, and maps nothing more
	in, out := testenv.Start(t, cmd)
	fmt.Fprintln(in, "ready")
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	l := liveLibraries{pid: cmd.Process.Pid}
	if err := l.Update(); err != nil || !l.retry.IsZero() || len(l.Mappings()) == 0 {
		t.Fatalf("%v, %d mappings, some of files out of reach: %v", err, len(l.Mappings()), !l.retry.IsZero())
	}
	own := l.Mappings()[0]
	space, unreached := l.published().Clone(), *own
	unreached.Image, unreached.ImageErr = nil, ErrFileGone
	space.Insert(&unreached)
	for _, c := range []struct {
		retry  time.Duration // from now on
		isOpen bool
	}{{time.Hour, false}, {-time.Second, true}} {
		l.space.Store(space)
		l.retry = time.Now().Add(c.retry)
		if err := l.Update(); err != nil {
			t.Fatal(err)
		}
		if isOpen := l.MappingAt(own.Start).Image != nil; isOpen != c.isOpen {
			t.Errorf("open %v when it is to be looked for in %v", isOpen, c.retry)
		}
	}
	if !l.retry.IsZero() {
		t.Error("it is looked for again and again")
	}
}
