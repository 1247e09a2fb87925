package symbols

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

func (t *jitTable) nameAt(addr, when uint64) string {
	if e := t.find(addr, when); e != nil {
		return t.str(e.name)
	}
	return ""
}

// unlimited is so much left to be read that it is no limit.
func unlimited() *int64 {
	left := int64(1 << 40)
	return &left
}

func TestPerfMap(t *testing.T) {
	text := "1000 100 first\n" +
		"0x2000 0x10 with blanks in its name\n" +
		"not a line\n2000\n 3000 10 x\n3000 0 empty\n3000 10 \nfffffffffffffff0 20 wraps\n" +
		"1040 10 inside\r\n" +
		"5000 10 incompl"
	var tab jitTable
	var p perfMap
	if err := p.read(strings.NewReader(text), int64(len(text)), &tab, 0, unlimited()); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[uint64]string{
		0xfff: "", 0x1000: "first", 0x10ff: "first", 0x1100: "",
		0x103f: "first", 0x1040: "inside", 0x104f: "inside", 0x1050: "first",
		0x2000: "with blanks in its name", 0x2010: "", 0x3000: "", 0x5000: "", ^uint64(0): "",
	} {
		if got := tab.nameAt(addr, 0); got != want {
			t.Errorf("%#x: %q, want %q", addr, got, want)
		}
	}
	// The file grows: the incomplete line goes on, and code is replaced.
	text += "ete\n1000 100 second\n"
	if err := p.read(strings.NewReader(text), int64(len(text)), &tab, 500, unlimited()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		addr, when uint64
		want       string
	}{
		{0x5000, 0, "incomplete"}, {0x1000, 0, "second"}, {0x1040, 0, "second"},
		{0x1000, 499, "first"}, {0x1000, 500, "second"}, {0x1040, 499, "inside"},
		{0x5000, 10, "incomplete"}, // told of after the sample: the only one there is
	} {
		if got := tab.nameAt(tc.addr, tc.when); got != tc.want {
			t.Errorf("%#x at %d: %q, want %q", tc.addr, tc.when, got, tc.want)
		}
	}
	// A shorter file was written anew.
	text = "1000 100 third\n"
	if err := p.read(strings.NewReader(text), int64(len(text)), &tab, 900, unlimited()); err != nil {
		t.Fatal(err)
	}
	if got := tab.nameAt(0x1000, 0); got != "third" {
		t.Errorf("written anew: %q", got)
	}
}

// A perf map is read a part at a time, and what takes the look's share is told.
func TestPerfMapParts(t *testing.T) {
	text := strings.Repeat("1000 100 first\n", 1000) + "2000 100 last\n"
	var tab jitTable
	var p perfMap
	for looks := 1; ; looks++ {
		left := int64(1000)
		if err := p.read(strings.NewReader(text), int64(len(text)), &tab, 0, &left); err != nil || left < 0 {
			t.Fatal(left, err)
		}
		if !p.more {
			if want := (len(text) + 999) / 1000; looks != want {
				t.Errorf("it took %d looks, want %d", looks, want)
			}
			break
		}
	}
	if got := tab.nameAt(0x2000, 0); got != "last" || len(tab.entries) != 1001 {
		t.Errorf("%d entries, the last is %q", len(tab.entries), got)
	}
}

// repeating is a file that repeats its bytes without end, and counts what is read of it.
type repeating struct {
	of   string
	read int64
}

func (r *repeating) ReadAt(b []byte, off int64) (int, error) {
	for i := range b {
		b[i] = r.of[(off+int64(i))%int64(len(r.of))]
	}
	r.read += int64(len(b))
	return len(b), nil
}

// Of a file of any size that is no perf map, or of none that a program would write, no
// more is read than it takes to see that.
func TestPerfMapGivenUp(t *testing.T) {
	const size = 100 << 30
	line := "1000 10 " + strings.Repeat("x", 1<<12) + "\n"
	for _, test := range []struct {
		name, of string
		want     error
		most     int64
	}{
		{"zeros", "\x00", errPerfMapJunk, 2 * maxPerfMapJunk},
		{"other lines", "text\n", errPerfMapJunk, 2 * maxPerfMapJunk},
		{"no lines", "1000 10 x", errPerfMapJunk, 2 * maxPerfMapJunk},
		{"too many entries", line, errPerfMapSize, maxPerfMap + maxPerfMapJunk},
	} {
		r := &repeating{of: test.of}
		var tab jitTable
		var p perfMap
		if err := p.read(r, size, &tab, 0, unlimited()); err != test.want || r.read > test.most {
			t.Errorf("%s: %v after %d bytes", test.name, err, r.read)
		}
	}
	// Junk between entries does no harm.
	r := &repeating{of: strings.Repeat("#\n", maxPerfMapJunk/4) + "1000 10 x\n"}
	if err := new(perfMap).read(r, 16*maxPerfMapJunk, new(jitTable), 0, unlimited()); err != nil {
		t.Error(err)
	}
}

// A process that has a file of any size for its perf map costs little, once, and is told of
// by name. Another file in its place is read.
func TestPerfMapOfAnySize(t *testing.T) {
	pid := os.Getpid()
	path := fmt.Sprintf("/tmp/perf-%d.map", pid)
	sparse := filepath.Join(t.TempDir(), "sparse")
	write(t, filepath.Dir(sparse), "sparse", "")
	if err := os.Truncate(sparse, 100<<30); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sparse, path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
	s := newSymbolizer(t, Options{})
	l := s.Lookup(&procstate.AddressSpace{}, pid)
	defer l.Close()
	for range 3 {
		l.Update()
	}
	if n := s.jitCharged.Load(); n == 0 || n > 2*maxPerfMapJunk {
		t.Errorf("%d bytes were read", n)
	}
	if errs := s.Errors(); len(errs) != 1 || !errors.Is(errs[0], errPerfMapJunk) || !strings.Contains(errs[0].Error(), path) {
		t.Errorf("errors %v", errs)
	}
	os.Remove(path)
	write(t, "/tmp", filepath.Base(path), "1000 100 real\n")
	l.Update()
	if sym, ok := l.SymbolAt(0x1000); !ok || sym.Name != "real" {
		t.Errorf("a map in its place: %+v", sym)
	}
	if l.Close(); s.jitCharged.Load() != 0 {
		t.Errorf("%d bytes are charged for processes that are gone", s.jitCharged.Load())
	}
}

// A map that a process with the same ID has left says nothing, until it is written anew.
func TestPerfMapLeft(t *testing.T) {
	cmd := startProgram(t, t.TempDir(), "sh", "-c", "echo; exec sleep 60")
	pid := cmd.Process.Pid
	name := fmt.Sprintf("perf-%d.map", pid)
	path := filepath.Join("/tmp", name)
	write(t, "/tmp", name, "1000 100 of another\n2000 100 of another\n")
	t.Cleanup(func() { os.Remove(path) })
	before := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, before, before); err != nil {
		t.Fatal(err)
	}
	l := newSymbolizer(t, Options{}).Lookup(&procstate.AddressSpace{}, pid)
	defer l.Close()
	if sym, ok := l.SymbolAt(0x1000); ok {
		t.Errorf("left by another: %+v", sym)
	}
	write(t, "/tmp", name, "1000 100 its own\n2000 100 the next of its own\n")
	l.Update()
	if sym, ok := l.SymbolAt(0x1000); !ok || sym.Name != "its own" {
		t.Errorf("written anew: %+v", sym)
	}
}

// Of a Lookup that was not closed, as nobody closes that of a Walker, nothing is charged
// when it is garbage.
func TestLookupIsGarbage(t *testing.T) {
	pid := os.Getpid()
	name := fmt.Sprintf("perf-%d.map", pid)
	write(t, "/tmp", name, strings.Repeat("1000 100 some name\n", 1000))
	t.Cleanup(func() { os.Remove(filepath.Join("/tmp", name)) })
	s := newSymbolizer(t, Options{})
	for range 10 {
		if sym, _ := s.Lookup(&procstate.AddressSpace{}, pid).SymbolAt(0x1000); sym.Name != "some name" {
			t.Fatalf("symbol %+v", sym)
		}
	}
	for end := time.Now().Add(time.Minute); s.jitCharged.Load() != 0; time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatalf("%d bytes are charged for Lookups that are gone", s.jitCharged.Load())
		}
	}
}

// Processes share what may be read of them all, and a look reads no more than its part.
func TestPerfMapsShare(t *testing.T) {
	pid := os.Getpid()
	name := fmt.Sprintf("perf-%d.map", pid)
	write(t, "/tmp", name, strings.Repeat("1000 100 some name\n", maxJITLook/8)+"2000 100 last\n")
	t.Cleanup(func() { os.Remove(filepath.Join("/tmp", name)) })
	s := newSymbolizer(t, Options{})
	some := s.Lookup(&procstate.AddressSpace{}, pid)
	defer some.Close()
	if !some.UpdateSome() || some.jit.perfMap.off != maxJITFirst {
		t.Errorf("the first look reads %d bytes", some.jit.perfMap.off)
	}
	if !some.UpdateSome() || some.jit.perfMap.off != maxJITFirst+maxJITLook {
		t.Errorf("two looks read %d bytes", some.jit.perfMap.off)
	}
	if sym, ok := some.SymbolAt(0x2000); !ok || sym.Name != "last" {
		t.Errorf("whoever asks has all read: %+v", sym)
	}
	s.jitCharged.Store(maxJITAll)
	other := s.Lookup(&procstate.AddressSpace{}, pid)
	defer other.Close()
	if other.Update(); other.jit.perfMap.off != 0 {
		t.Errorf("%d bytes were read where none were left", other.jit.perfMap.off)
	}
	if errs := s.Errors(); len(errs) != 1 || !errors.Is(errs[0], errJITAll) {
		t.Errorf("errors %v", errs)
	}
}

// TestPerfMapChunks reads a file that is longer than the buffer, in steps of
// all kinds.
func TestPerfMapChunks(t *testing.T) {
	var b bytes.Buffer
	const n = 30000
	for i := range n {
		fmt.Fprintf(&b, "%x 10 function number %d\n", 0x10000+16*i, i)
	}
	for _, step := range []int{1 << 30, perfMapChunk + 1, 77777} {
		var tab jitTable
		var p perfMap
		for size := 0; size < b.Len(); {
			size = min(size+step, b.Len())
			if err := p.read(bytes.NewReader(b.Bytes()), int64(size), &tab, 0, unlimited()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			if got, want := tab.nameAt(uint64(0x10000+16*i+15), 0), fmt.Sprintf("function number %d", i); got != want {
				t.Fatalf("step %d: %q, want %q", step, got, want)
			}
		}
	}
}

// dumpRecord is a jitdump record with the given numbers and bytes.
func dumpRecord(id uint32, when uint64, parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b.WriteString(p + "\x00")
		default:
			if err := binary.Write(&b, binary.LittleEndian, p); err != nil {
				panic(err)
			}
		}
	}
	head := binary.LittleEndian.AppendUint32(nil, id)
	head = binary.LittleEndian.AppendUint32(head, uint32(16+b.Len()))
	return append(binary.LittleEndian.AppendUint64(head, when), b.Bytes()...)
}

func dumpHeader(flags uint64) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, jitDumpMagic)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint32(b, 40)
	b = append(b, make([]byte, 20)...)
	return le.AppendUint64(b, flags)
}

func testDump() []byte {
	b := dumpHeader(0)
	b = append(b, dumpRecord(jitCodeDebugInfo, 90, uint64(0x1000), uint64(3),
		uint64(0x1000), uint32(7), uint32(0), "a.js", uint64(0x1020), uint32(8), uint32(0), "\xff",
		uint64(0x1040), uint32(1), uint32(0), "b.js")...)
	b = append(b, dumpRecord(jitCodeLoad, 100, uint32(1), uint32(1), uint64(0x1000), uint64(0x1000), uint64(0x100), uint64(1), "one", [16]byte{})...)
	b = append(b, dumpRecord(3, 150)...)
	b = append(b, dumpRecord(jitCodeMove, 200, uint32(1), uint32(1), uint64(0x2000), uint64(0x1000), uint64(0x2000), uint64(0x100), uint64(1))...)
	return append(b, dumpRecord(jitCodeLoad, 300, uint32(1), uint32(1), uint64(0x1000), uint64(0x1000), uint64(0x80), uint64(2), "two")...)
}

func TestJITDump(t *testing.T) {
	whole := testDump()
	for _, step := range []int{len(whole), 1, 41} {
		var tab jitTable
		var d jitDump
		for size := 0; size < len(whole); {
			size = min(size+step, len(whole))
			if err := d.read(bytes.NewReader(whole[:size]), int64(size), &tab, unlimited()); err != nil {
				t.Fatal(err)
			}
		}
		for _, tc := range []struct {
			addr, when uint64
			want       string
		}{
			{0x1000, 0, "two :0"}, {0x1000, 299, "one a.js:7"}, {0x1000, 300, "two :0"},
			{0x10ff, 0, "one b.js:1"}, {0x1100, 0, ""},
			{0x101f, 150, "one a.js:7"}, {0x1020, 150, "one a.js:8"}, {0x1040, 150, "one b.js:1"},
			{0x2000, 0, "one a.js:7"}, {0x2030, 0, "one a.js:8"}, {0x20ff, 0, "one b.js:1"}, {0x2100, 0, ""},
		} {
			got := ""
			if e := tab.find(tc.addr, tc.when); e != nil {
				l := tab.line(e, tc.addr, DemangleSimple)
				got = fmt.Sprintf("%s %s:%d", l.Function, l.File, l.Line)
			}
			if got != tc.want {
				t.Errorf("step %d: %#x at %d: %q, want %q", step, tc.addr, tc.when, got, tc.want)
			}
		}
	}
	var tab jitTable
	if err := new(jitDump).read(bytes.NewReader(make([]byte, 64)), 64, &tab, unlimited()); !errors.Is(err, errJITDump) {
		t.Errorf("no magic: %v", err)
	}
}

// A dump of very many records is read a part at a time.
func TestJITDumpParts(t *testing.T) {
	const n = 10000
	b := dumpHeader(0)
	for range n {
		b = append(b, dumpRecord(9, 1)...)
	}
	b = append(b, dumpRecord(jitCodeLoad, 1, uint32(1), uint32(1), uint64(0x1000), uint64(0x1000), uint64(16), uint64(0), "last", [16]byte{})...)
	var tab jitTable
	var d jitDump
	looks := 1
	for ; ; looks++ {
		left := int64(100 * jitRecordCost)
		if err := d.read(bytes.NewReader(b), int64(len(b)), &tab, &left); err != nil {
			t.Fatal(err)
		}
		if !d.more {
			break
		}
	}
	if got := tab.nameAt(0x1000, 0); got != "last" || looks != n/100+1 {
		t.Errorf("%q after %d looks", got, looks)
	}
}

// TestJITDumpMoves reads a file in which code is moved twice as often as it is loaded: it
// takes no longer than others of its size.
func TestJITDumpMoves(t *testing.T) {
	const n = 1 << 17
	var lines bytes.Buffer
	for i := range 8 {
		_ = binary.Write(&lines, binary.LittleEndian, [2]uint64{uint64(0x1000 + i), 1})
		lines.WriteString("\xff\x00")
	}
	b := append(dumpHeader(0), dumpRecord(jitCodeDebugInfo, 1, uint64(0x1000), uint64(8), lines.Bytes())...)
	for i := range uint64(n) {
		at := 0x1000 + i<<20
		b = append(b, dumpRecord(jitCodeLoad, 2*i, uint32(1), uint32(1), at, at, uint64(16), i, fmt.Sprint("f", i), [16]byte{})...)
		b = append(b, dumpRecord(jitCodeMove, 2*i+1, uint32(1), uint32(1), at+32, at, at+32, uint64(16), i)...)
		b = append(b, dumpRecord(jitCodeMove, 2*i+1, uint32(1), uint32(1), at+64, uint64(0x1000), at+64, uint64(16), uint64(0))...)
	}
	var tab jitTable
	began := testenv.CPUTime(t)
	if err := new(jitDump).read(bytes.NewReader(b), int64(len(b)), &tab, unlimited()); err != nil {
		t.Fatal(err)
	}
	if took := testenv.CPUTime(t) - began; took > 20*time.Second {
		t.Errorf("%d moves take %v", 2*n, took)
	}
	for _, i := range []uint64{1, n / 2, n - 1} {
		at := 0x1000 + i<<20
		if own, first := tab.nameAt(at+32, 0), tab.nameAt(at+64, 0); own != fmt.Sprint("f", i) || first != "f0" {
			t.Errorf("moved to %#x: %q, %q", at, own, first)
		}
	}
	if want := 8 * (n + 2); len(tab.lines) != want { // of f0, as loaded and each time that it is moved
		t.Errorf("%d lines, want %d", len(tab.lines), want)
	}
}

func FuzzPerfMap(f *testing.F) {
	f.Add([]byte("1000 100 a b\n0x1040 10 c\n2000 8 d"), uint64(0x1040))
	f.Fuzz(func(t *testing.T, b []byte, addr uint64) {
		var tab jitTable
		var p perfMap
		for _, size := range []int{len(b) / 2, len(b)} {
			if err := p.read(bytes.NewReader(b), int64(size), &tab, 1, unlimited()); err != nil {
				t.Fatal(err)
			}
		}
		if e := tab.find(addr, 0); e != nil && (addr < e.start || addr >= e.end || tab.str(e.name) == "") {
			t.Errorf("%#x: %+v", addr, e)
		}
	})
}

func FuzzJITDump(f *testing.F) {
	f.Add(testDump(), uint64(0x1020), uint64(150))
	f.Fuzz(func(t *testing.T, b []byte, addr, when uint64) {
		var tab jitTable
		var d jitDump
		_ = d.read(bytes.NewReader(b), int64(len(b)), &tab, unlimited())
		if e := tab.find(addr, when); e != nil {
			if l := tab.line(e, addr, DemangleNone); addr < e.start || addr >= e.end || l.Function == "" {
				t.Errorf("%#x: %+v", addr, l)
			}
		}
	})
}

// startProgram starts a program and waits for it to write a first line.
func startProgram(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	_, out := testenv.Start(t, cmd)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// checkPerfMap compares a Lookup with the lines of a perf map: the last line
// that covers an address names it.
func checkPerfMap(t *testing.T, l *Lookup, path string, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type mapEntry struct {
		start, end uint64
		name       string
	}
	var all []mapEntry
	for _, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		w := strings.SplitN(line, " ", 3)
		if len(w) < 3 {
			continue
		}
		start, err := strconv.ParseUint(strings.TrimPrefix(w[0], "0x"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		size, err := strconv.ParseUint(strings.TrimPrefix(w[1], "0x"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, mapEntry{start, start + size, w[2]})
	}
	found := false
	for i, e := range all {
		if e.start == e.end || i%7 != 0 && !strings.Contains(e.name, want) {
			continue
		}
		a := e.start + (e.end-e.start)/2
		name := ""
		for _, f := range all {
			if a >= f.start && a < f.end {
				name = f.name
			}
		}
		sym, ok := l.SymbolAt(a)
		if !ok || sym.Name != Demangle(name, DemangleSimple) || sym.Object != nil {
			t.Fatalf("%#x: %q, want %q; %d entries of %d bytes, %v, read %v ago", a, sym.Name, name,
				len(l.jit.table.entries), l.jit.perfMap.off, l.jit.perfMap.err, time.Duration(procstate.Monotonic()-l.updated))
		}
		found = found || strings.Contains(name, want)
	}
	if !found || len(all) < 100 {
		t.Errorf("%s: %d entries, none of %s", path, len(all), want)
	}
}

// needs skips a test of a program that is not installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
}

func TestNode(t *testing.T) {
	needs(t, "node")
	dir := t.TempDir()
	write(t, dir, "a.js", `function fibonacci(n) { return n < 2 ? n : fibonacci(n-1) + fibonacci(n-2); }
let s = 0; while (process.cpuUsage().user < 400e3) s += fibonacci(18);
for (let i = 0; i < 200; i++) for (let n = 0; n < 3; n++) new RegExp("a{" + i + "}b").test("b");
console.log(s); setTimeout(() => {}, 60000);`) // the dump is written behind, as more code is made
	cmd := startProgram(t, dir, "node", "--perf-basic-prof", "--perf-prof", "a.js")
	pid := cmd.Process.Pid
	path := fmt.Sprintf("/tmp/perf-%d.map", pid)
	t.Cleanup(func() { os.Remove(path) })
	s := newSymbolizer(t, Options{})
	l := s.Lookup(&procstate.AddressSpace{}, pid)
	defer l.Close()
	checkPerfMap(t, l, path, "fibonacci")

	// The same functions, as the jitdump file tells of them.
	dump := filepath.Join(dir, fmt.Sprintf("jit-%d.dump", pid))
	space := &procstate.AddressSpace{}
	space.Insert(&procstate.Mapping{Start: 0x1000, End: 0x2000, Path: dump})
	j := openJITFiles(pid)
	defer j.close()
	if more, err := j.update(space, 1<<30); more || err != nil {
		t.Fatal(more, err)
	}
	var fromDump jitTable
	f, err := os.Open(dump)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := new(jitDump).read(f, st.Size(), &fromDump, unlimited()); err != nil {
		t.Fatal(err)
	}
	same := 0
	for i := range fromDump.entries {
		e := &fromDump.entries[i]
		name := fromDump.str(e.name)
		if sym, ok := l.SymbolAt(e.start); ok && strings.Contains(name, "fibonacci") && sym.Name == name {
			same++
		}
	}
	if same == 0 || len(j.table.entries) < len(fromDump.entries) {
		t.Errorf("%d of %d entries of the dump agree with the map, %d entries in all", same, len(fromDump.entries), len(j.table.entries))
	}
}

func TestJava(t *testing.T) {
	needs(t, "java")
	dir := t.TempDir()
	write(t, dir, "A.java", `public class A { static int fibonacci(int n) { return n < 2 ? n : fibonacci(n-1) + fibonacci(n-2); }
public static void main(String[] a) throws Exception { int s = 0; long t = System.nanoTime();
while (System.nanoTime() - t < 500000000L) s += fibonacci(20); System.out.println(s); System.out.flush(); Thread.sleep(300); } }`)
	cmd := startProgram(t, dir, "java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", "A.java")
	pid := cmd.Process.Pid
	path := fmt.Sprintf("/tmp/perf-%d.map", pid)
	t.Cleanup(func() { os.Remove(path) })
	l := newSymbolizer(t, Options{}).Lookup(&procstate.AddressSpace{}, pid)
	defer l.Close()
	l.Update() // while it runs; the map comes when it ends
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * jitInterval)
	checkPerfMap(t, l, path, "fibonacci")
}

// TestPerfMapInNamespaces reads the map of a process with its own /tmp and its
// own process IDs, and what was read of it stays when it has exited.
func TestPerfMapInNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root to make namespaces")
	}
	testenv.Needs(t, "mount", "unshare")
	cmd := startProgram(t, t.TempDir(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
		`mount -t tmpfs none /tmp && echo "1000 100 in_the_container" > /tmp/perf-$$.map && echo ready && exec sleep 60`)
	out, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSymbolizer(t, Options{})
	before, after := s.Lookup(&procstate.AddressSpace{}, pid), s.Lookup(&procstate.AddressSpace{}, pid)
	defer before.Close()
	defer after.Close()
	if sym, ok := before.SymbolAt(0x10ff); !ok || sym.Name != "in_the_container" || sym.Offset != 0xff {
		t.Errorf("running: %+v", sym)
	}
	after.Update()
	cmd.Process.Kill()
	cmd.Wait()
	if sym, ok := after.SymbolAt(0x1000); !ok || sym.Name != "in_the_container" {
		t.Errorf("exited: %+v", sym)
	}
	if sym, ok := after.SymbolAt(0x1100); ok {
		t.Errorf("outside: %+v", sym)
	}
}

func TestJITFilesRefused(t *testing.T) {
	dir := t.TempDir()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	j := &jitFiles{pid: 1, nspid: 1, uid: uint32(os.Geteuid()), root: root}
	defer j.close()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "file", "x")
	if err := os.Symlink("/file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"file": true, "link": true, "pipe": false, "none": false, ".": false} {
		f := j.open(name)
		if (f != nil) != want {
			t.Errorf("%s: opened %v", name, f != nil)
		}
		if f != nil {
			f.Close()
		}
	}
	j.uid = 12345
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "file"), 999, 999); err != nil {
			t.Fatal(err)
		}
		if f := j.open("file"); f != nil {
			t.Error("another user's file was opened")
		}
	}
}

func TestIsJITDumpName(t *testing.T) {
	for path, want := range map[string]bool{
		"/tmp/jit-12.dump": true, "jit-1.dump": true, "/x/jit-12.dump (deleted)": true,
		"/tmp/jit-.dump": false, "/tmp/jit-12": false, "/tmp/x-12.dump": false, "": false,
	} {
		if got := isJITDumpName(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestVsyscall(t *testing.T) {
	l := newSymbolizer(t, Options{}).Lookup(&procstate.AddressSpace{}, 0)
	for addr, want := range map[uint64]string{
		vsyscallPage - 1: "", vsyscallPage: "vsyscall_gettimeofday", vsyscallPage + 0x3ff: "vsyscall_gettimeofday",
		vsyscallPage + 0x400: "vsyscall_time", vsyscallPage + 0x809: "vsyscall_getcpu", vsyscallPage + 0xc00: "", 0: "",
	} {
		if sym, _ := l.SymbolAt(addr); sym.Name != want {
			t.Errorf("%#x: %q, want %q", addr, sym.Name, want)
		}
	}
}
