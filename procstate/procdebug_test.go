package procstate

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/swbpf/swbpf/internal/testenv"
)

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		line  string
		name  string
		state ThreadState
		flags uint64
		ok    bool
	}{
		{"42 (cat) R 1 42 42 0 -1 4194304 91 0", "cat", StateRunning, 4194304, true},
		{"42 (a b) ) S 1 42 42 0 -1 2129984 91 0", "a b) ", StateSleeping, 2129984, true},
		{"42 (()) D 1 42 42 0 -1 0 91 0", "()", StateDiskWait, 0, true},
		{"42 () Z 1 42 42 0 -1 0", "", StateZombie, 0, true},
		{"42 (cat) R 1 42 42 0 -1", "", 0, 0, false},
		{"42 (cat)", "", 0, 0, false},
		{"42 cat R", "", 0, 0, false},
		{")(", "", 0, 0, false},
		{"", "", 0, 0, false},
		{"42 (cat) R 1 42 42 0 -1 x 0", "", 0, 0, false},
	} {
		s, err := parseStat([]byte(c.line))
		if (err == nil) != c.ok || (c.ok && s != taskStat{c.name, c.state, c.flags}) {
			t.Errorf("%q: %+v, %v", c.line, s, err)
		}
	}
}

func TestParseSyscall(t *testing.T) {
	for _, c := range []struct {
		line string
		want []uint64
	}{
		{"61 0x29c3 0x7fd9c2edfebc 0x0 0x0 0x0 0x7ffd84a996b7 0x7fd9c2edfe80 0x7fd9c3fb9c17\n",
			[]uint64{61, 0x29c3, 0x7fd9c2edfebc, 0, 0, 0, 0x7ffd84a996b7, 0x7fd9c2edfe80, 0x7fd9c3fb9c17}},
		{"-1 0x10 0xffffffffff600000\n", []uint64{^uint64(0), 0x10, 0xffffffffff600000}},
		{"running\n", nil},
		{"", nil},
		{"1 2", nil},
		{"1 2 x", nil},
	} {
		if got, err := parseSyscall([]byte(c.line)); !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%q: %x, %v", c.line, got, err)
		}
	}
}

// Of a thread that wants to run and is late to stop it is said that it lacks a CPU, and not
// what /proc has in place of a system call.
func TestLateWithoutCPU(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo; while :; do :; done")
	_, out := testenv.Start(t, cmd)
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	var regs Regs
	err := blockedRegs(cmd.Process.Pid, ThreadID(cmd.Process.Pid), AMD64, &regs)
	if err == nil || !strings.Contains(err.Error(), "waits for a CPU") || errors.Is(err, ErrNotSupported) {
		t.Errorf("registers %v, %v", regs, err)
	}
}

func TestScanAreas(t *testing.T) {
	text := "1000-3000 r-xp 00000000 00:00 0 [x]\n3000-4000 ---p 0 00:00 0\n4000-9000 rw-p 0 00:00 0\nffffffffff600000-ffffffffff601000 r-xp 0 0:0 0"
	areas := scanAreas([]byte(text))
	if want := []area{{0x1000, 0x3000}, {0x4000, 0x9000}, {0xffffffffff600000, 0xffffffffff601000}}; !slices.Equal(areas, want) {
		t.Fatalf("%x", areas)
	}
	for _, c := range []struct {
		addr uint64
		ok   bool
	}{{0xfff, false}, {0x1000, true}, {0x2fff, true}, {0x3000, false}, {0x3fff, false}, {0x4000, true}, {0x8fff, true}, {0x9000, false}, {0, false}, {^uint64(0), false}} {
		if a, ok := areaAt(areas, c.addr); ok != c.ok || (ok && (c.addr < a.start || c.addr >= a.end)) {
			t.Errorf("%#x: %v, %v", c.addr, a, ok)
		}
	}
	if got := scanAreas([]byte("nonsense\n\n-\n1-\n")); len(got) != 0 {
		t.Errorf("areas %x of nonsense", got)
	}
}

// TestMapsText compares what a capture sees of a process's memory areas with
// the parser of maps files.
func TestMapsText(t *testing.T) {
	pid := os.Getpid()
	areas := scanAreas(readMapsText(pid, ThreadID(pid)))
	entries, err := ReadMaps("/proc/self/maps", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Prot&ProtRead == 0 || e.Path != "" { // others may have changed since
			continue
		}
		if a, ok := areaAt(areas, e.Start); ok && a.start > e.Start {
			t.Errorf("%x holds %x", a, e.Start)
		}
	}
	if len(areas) < 5 {
		t.Errorf("%d areas", len(areas))
	}
}

// TestRegsetSizes: the kernel's block is recognised by its length.
func TestRegsetSizes(t *testing.T) {
	for n, want := range map[int]*Arch{216: AMD64, 68: I386, 272: ARM64} {
		if r := regsetOfTask(n); r == nil || r.arch != want {
			t.Errorf("%d bytes are not the registers of %s", n, want.Name)
		}
		r := regsetFor(want)
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i / want.AddressWidth)
		}
		var regs Regs
		r.decode(b, &regs)
		known := 0
		for reg := range Reg(want.NumRegs) {
			if _, ok := regs.Value(reg); ok {
				known++
			}
		}
		if known != want.NumRegs {
			t.Errorf("%s: %d of %d registers", want.Name, known, want.NumRegs)
		}
	}
	if regsetOfTask(100) != nil {
		t.Error("100 bytes are registers")
	}
}

// TestLiveReads: reads of this process's own memory by the system call.
func TestLiveReads(t *testing.T) {
	want := []byte("what is there, is read; what is not, is not")
	buf := make([]byte, len(want))
	src := append([]byte(nil), want...)
	if n := ReadProcess(os.Getpid(), uint64(uintptr(unsafe.Pointer(&src[0]))), buf); n != len(want) || string(buf) != string(want) {
		t.Errorf("%d bytes: %q", n, buf)
	}
	if n := ReadProcess(os.Getpid(), 8, buf); n != 0 {
		t.Errorf("%d bytes at address 8", n)
	}
}
