package perl

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/emulated"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// memory is a process with an interpreter of a version, whose contexts can be pushed.
type memory struct {
	b    []byte
	vm   *machine
	base uint64
	snap *procstate.Snapshot
	end  int // of what is in use
	si   int // the innermost PERL_SI
	last int // its last context
}

const (
	headAt = 0x1000 // offsets in the memory of the PerlInterpreter,
	heapAt = 0x3000 // and of all else
	size   = 0x10000
)

func newMemory(version uint8) *memory {
	const base = 0x7f0000000000
	m := &memory{b: make([]byte, size), base: base, end: heapAt}
	m.snap = procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: base, Data: m.b}})
	f := versions[version]
	m.vm = &machine{
		imageInfo: &imageInfo{fields: f, isThreaded: true}, Memory: vmread.Memory{Mem: m.snap, Captured: m.snap},
		serial: 1, known: map[uint64]*function{}, files: map[fileBody]*function{}, cops: map[uint64]*statement{},
		kinds: map[uint64]opAction{}, roots: map[uint64]rootOp{}, byRoot: map[uint64]*function{}, codes: map[code]uint32{}, asked: vmread.FramesAsked{},
	}
	m.vm.head = interpreterHead{current: base + headAt + f.current, compiling: base + headAt + f.compiling}
	m.push(siMain)
	return m
}

func (m *memory) put(at int, v uint64)  { binary.LittleEndian.PutUint64(m.b[at:], v) }
func (m *memory) half(at int, v uint32) { binary.LittleEndian.PutUint32(m.b[at:], v) }

func (m *memory) alloc(n int) (at int) {
	at, m.end = m.end, m.end+(n+7)&^7
	return at
}

// push begins a PERL_SI.
func (m *memory) push(kind uint32) {
	f, before := m.vm.fields, uint64(0)
	if m.si != 0 {
		before = m.base + uint64(m.si)
	}
	m.si, m.last = m.alloc(56), -1
	m.put(m.si+siContexts, m.base+uint64(m.alloc(8*int(f.contextBytes))))
	m.put(m.si+siPrevious, before)
	m.half(m.si+siLast, ^uint32(0))
	m.half(m.si+int(f.siType), kind)
	m.put(headAt+int(f.current), m.base+uint64(m.si))
}

// context begins a context of a subroutine, or where that is 0 of a block or eval.
func (m *memory) context(flags byte, sub, cop, next int) {
	m.last++
	at := int(binary.LittleEndian.Uint64(m.b[m.si+siContexts:])-m.base) + m.last*int(m.vm.fields.contextBytes)
	m.half(m.si+siLast, uint32(m.last))
	m.b[at+cxType] = flags
	m.put(at+cxCop, m.base+uint64(cop))
	m.put(at+cxReturn, uint64(next))
	if sub != 0 {
		m.put(at+int(m.vm.fields.sub), m.base+uint64(sub))
	}
}

// text puts a text that ends with a zero, and one that says that the text is UTF-8.
func (m *memory) text(s string) uint64 {
	at := m.alloc(len(s) + 2)
	copy(m.b[at:], s)
	m.b[at+len(s)+1] = 1
	return m.base + uint64(at)
}

func (m *memory) hek(s string) uint64 {
	at := m.alloc(8)
	m.half(at+hekLength, uint32(len(s)))
	m.text(s)
	return m.base + uint64(at)
}

// sub makes a subroutine of a package, whose first statement is in a line, and that statement.
func (m *memory) sub(pkg, name string, line uint32) (sub, cop int) {
	f := m.vm.fields
	sv := func(kind uint32, body int) (at int) {
		at = m.alloc(svBytes)
		m.put(at+svBody, m.base+uint64(body))
		m.half(at+svFlags, kind)
		return at
	}
	const perlArray = 8
	hv := m.alloc(hvBytes + 40)
	stash := sv(kindHV|svHasAux, hv)
	aux := hv + hvBytes
	if !f.nameInBody {
		aux = m.alloc(48) + perlArray
		m.put(stash+svAny, m.base+uint64(aux-perlArray)) // one entry
	}
	m.put(aux, m.hek(pkg))
	gv := m.alloc(gvBytes)
	m.put(gv+gvName, m.hek(name))
	m.put(gv+gvStash, m.base+uint64(stash))
	root := m.alloc(48)
	m.half(root+opType, f.leaveSub)
	cop = m.cop(line, "file.pl")
	m.put(cop+opSibling, m.base+uint64(root))
	body := m.alloc(cvBytes)
	m.put(body+cvRoot, m.base+uint64(root))
	m.put(body+cvStart, m.base+uint64(cop))
	m.put(body+cvName, m.base+uint64(sv(kindGV, gv)))
	m.put(body+cvFile, m.text("file.pl"))
	return sv(kindCV, body), cop
}

func (m *memory) cop(line uint32, file string) (at int) {
	at = m.alloc(copBytes + 32)
	m.half(at+opType, m.vm.fields.nextState)
	m.half(at+copLine, line)
	m.put(at+copFile, m.text(file))
	return at
}

// loops returns what loops run that were called by so, innermost first; "lost" where that is
// not known. Those that go on for others are negative.
func (m *memory) loops(op, cop int, kinds ...int) (all [][]string) {
	f, vm := m.vm.fields, m.vm
	m.put(headAt+perlOp, m.base+uint64(op))
	m.put(headAt+int(f.curcop), m.base+uint64(cop))
	w := unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	vm.codes = map[code]uint32{}
	vm.begin(1)
	vm.lost = !vm.readHead() || !vm.readRuns(false) || !vm.isSettled(false)
	for _, kind := range kinds {
		if vm.lost {
			all = append(all, []string{"lost"})
			continue
		}
		first, end := vm.take(loopKind(max(kind, -kind)), kind < 0)
		var names []string
		for code := vm.number(w.Codes(), vm.subs[first:end]); code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				names = append(names, l.Name)
				if l.Line != 0 && l.StartLine != 0 && l.Line != l.StartLine {
					names = append(names, "in another line")
				}
			}
		}
		all = append(all, names)
	}
	return all
}

// Each loop has the subroutines that it runs, of all versions.
func TestPerlRuns(t *testing.T) {
	const next = 8 // there is an op to go on with
	for version := range versions {
		m := newMemory(version)
		op := m.alloc(48)
		start := m.cop(1, "dir/main.pl")
		outer, inOuter := m.sub("main", "outer", 10)
		callee, inCallee := m.sub("Some::Package", "callee", 20)
		block, inBlock := m.sub("main", "__ANON__", 30)
		compare, inCompare := m.sub("main", "compare", 40)
		check := func(what string, got [][]string, want ...[]string) {
			t.Helper()
			if !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("5.%d, %s: %q, want %q", version, what, got, want)
			}
		}
		main, lost := []string{"main::outer", "<file main.pl>"}, []string{"lost"}
		m.context(cxBlock, 0, 0, next)
		m.context(cxSub, outer, start, next)
		check("alone", m.loops(op, inOuter, int(perlMain)), main)
		check("goes on", m.loops(op, inOuter, -int(perlMain), int(perlMain)), main, nil)
		check("by another function", m.loops(op, inOuter, int(perlCalled)), nil)

		m.context(cxSub, callee, inOuter, 0)
		called := []string{"Some::Package::callee"}
		check("called", m.loops(op, inCallee, int(perlCalled), int(perlMain)), called, main)
		check("begun", m.loops(op, inOuter, int(perlMain)), lost)
		leave := m.alloc(48)
		m.half(leave+opType, m.vm.fields.ret)
		check("returns", m.loops(leave, inCallee, int(perlCalled), int(perlMain)), called, main)
		m.half(m.si+siLast, 1)
		check("has returned", m.loops(leave, inOuter, int(perlCalled), int(perlMain)), lost, lost)
		m.half(m.si+siLast, 2)

		m.push(10)
		m.context(cxSub|cxMulti, block, inCallee, 0)
		check("again and again", m.loops(op, inBlock, int(perlOther), int(perlCalled), int(perlMain)), []string{"main::__ANON__"}, called, main)
		check("between", m.loops(op, inBlock, int(perlCalled), int(perlMain)), called, main)

		m.push(siSort)
		m.context(cxNull, 0, inBlock, 0)
		m.context(cxSub, compare, inBlock, 0)
		check("last op of a block", m.loops(op, inCompare, int(perlOther), int(perlOther), int(perlCalled), int(perlMain)),
			[]string{"main::compare"}, []string{"main::__ANON__"}, called, main)
		m.push(siOverload)
		m.context(cxSub, callee, inCompare, 0)
		check("overloaded", m.loops(op, inCallee, int(perlOverloaded), int(perlOther), int(perlOther), int(perlCalled), int(perlMain)),
			called, []string{"main::compare"}, []string{"main::__ANON__"}, called, main)
		check("overloaded, by another", m.loops(op, inCallee, int(perlCalled), int(perlOther)), nil, lost)

		// What ended is another one's place, and what was not copied is told.
		m = newMemory(version)
		op, start = m.alloc(48), m.cop(1, "main.pl")
		outer, inOuter = m.sub("main", "outer", 10)
		closure, inClosure := m.sub("main", "__ANON__", 30)
		m.context(cxSub, outer, start, next)
		m.context(cxSub, closure, inOuter, next)
		want := []string{"main::__ANON__", "main::outer", "<file main.pl>"}
		check("closure", m.loops(op, inClosure, int(perlMain)), want)
		m.half(closure+svFlags, 0)
		for _, fn := range m.vm.known {
			fn.checked = time.Time{}
		}
		check("closure that has ended", m.loops(op, inClosure, int(perlMain)), want)
		m.put(m.si+siContexts, 16)
		check("not copied", m.loops(op, inOuter, int(perlMain), int(perlMain)), []string{"[not copied]"}, lost)
	}
}

// A context that is being begun may still have the statement and the subroutine of one that was in its place before: it
// belongs to the subroutine around it, whose op begins it.
func TestPerlBegins(t *testing.T) {
	for what, flags := range map[string]byte{"an eval": cxEval, "a subroutine": cxSub} {
		m := newMemory(36)
		start := m.cop(1, "main.pl")
		outer, inOuter := m.sub("main", "outer", 10)
		other, inOther := m.sub("main", "other", 20)
		op := m.alloc(48)
		copy(m.b[op+opSibling:][:8], m.b[inOuter+opSibling:])
		m.context(cxSub, outer, start, 8)
		if flags == cxEval {
			other = 0
		}
		m.context(flags, other, inOther, 8)
		m.put(headAt+perlOp, m.base+uint64(op))
		m.put(headAt+int(m.vm.fields.curcop), m.base+uint64(inOuter))
		m.vm.begin(1)
		if !m.vm.readHead() || !m.vm.readRuns(true) {
			t.Fatalf("%s: nothing is known", what)
		}
		if subs := m.vm.subs; len(subs) != 2 || subs[0].sub != m.base+uint64(outer) || subs[0].cop != m.base+uint64(inOuter) {
			t.Errorf("%s: %+v", what, subs)
		}
	}
}

// What is known already costs no allocation.
func TestPerlAllocates(t *testing.T) {
	m := newMemory(36)
	op, start := m.alloc(48), m.cop(1, "main.pl")
	outer, inOuter := m.sub("main", "outer", 10)
	callee, inCallee := m.sub("Some::Package", "callee", 20)
	m.context(cxSub, outer, start, 8)
	m.push(siSort)
	m.context(cxSub|cxMulti, callee, inOuter, 0)
	want := m.loops(op, inCallee, int(perlOther), int(perlMain))
	if len(want) != 2 || len(want[0]) != 1 || len(want[1]) != 2 {
		t.Fatalf("%q", want)
	}
	vm, codes := m.vm, &unwind.Codes{}
	vm.codes = map[code]uint32{}
	numbers := 0
	if n := testing.AllocsPerRun(100, func() {
		vm.begin(vm.walk + 1)
		if !vm.readHead() || !vm.readRuns(true) || !vm.isSettled(false) {
			t.Fatal("nothing is known")
		}
		for _, kind := range []loopKind{perlOther, perlMain} {
			first, end := vm.take(kind, false)
			if vm.number(codes, vm.subs[first:end]) != 0 {
				numbers++
			}
		}
	}); n != 0 || numbers < 200 {
		t.Errorf("%v allocations, %d numbers", n, numbers)
	}
}

// What is kept of subroutines, files and statements comes to an end, by their names too, and not only how many of
// them there are.
func TestPerlKept(t *testing.T) {
	m := newMemory(36)
	long := strings.Repeat("f", maxName-1)
	sub, cop := m.sub("main", long, 10)
	file := m.cop(1, long)
	vm, first := m.vm, new(function)
	body, _ := vm.WordNow(m.base + uint64(sub) + svBody)
	name, _ := vm.WordNow(body + cvName)
	_, stash, _ := vm.gv(name)
	const index = 1
	stashes := m.alloc(8 * (index + 1))
	m.put(headAt+int(vm.fields.stashes), m.base+uint64(stashes))
	m.put(stashes+8*index, stash)
	m.put(cop+copStash, index)
	for what, keep := range map[string]func(){
		"a subroutine": func() { vm.readFunction(m.base+uint64(sub), nil) },
		"a closure":    func() { vm.closure(m.base+uint64(m.end), m.base+uint64(cop), &statement{file: long}) },
		"a file":       func() { delete(vm.files, fileBody{name: long}); vm.fileFunction(fileBody{name: long}) },
		"a statement":  func() { delete(vm.cops, m.base+uint64(file)); vm.copAt(m.base + uint64(file)) },
	} {
		vm.known[0], vm.byRoot[0], vm.cops[0] = first, first, &statement{}
		vm.Kept = 0
		keep()
		one := vm.Kept
		if one < len(long) {
			t.Fatalf("%s has %d bytes", what, one)
		}
		for n := 0; n < vmread.MaxKept/one+2; n++ {
			keep()
		}
		if vm.Kept > vmread.MaxKept/2 || vm.known[0] != nil || vm.byRoot[0] != nil || vm.cops[0] != nil {
			t.Errorf("%s: %d bytes are kept of %d and %d subroutines and %d statements", what, vm.Kept, len(vm.known), len(vm.byRoot), len(vm.cops))
		}
	}
}

// The interpreter of each thread is found with glibc and with musl.
func TestPerlOfThread(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("of amd64")
	}
	testenv.Needs(t, "gcc", "musl-gcc")
	for _, cc := range []string{"gcc", "musl-gcc"} {
		t.Run(cc, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "perlkey")
			testenv.Run(t, exec.Command(cc, "-pthread", "-o", program, "testdata/perlkey.c"))
			cmd := exec.Command(program)
			_, out := testenv.Start(t, cmd)
			c := collector{imageInfo: &imageInfo{}, values: inPthread}
			if _, err := fmt.Fscan(out, &c.key); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				var pointer, want uint64
				if _, err := fmt.Fscan(out, &pointer, &want); err != nil {
					t.Fatal(err)
				}
				if may := c.ofThread(steptest.Live(cmd.Process.Pid), &procstate.Regs{ThreadPointer: pointer}); !slices.Contains(may[:], want) {
					t.Errorf("%#x, want %#x", may, want)
				}
			}
		})
	}
}

// FuzzPerl has the interpreter's memory say anything.
func FuzzPerl(f *testing.F) {
	versions := []uint8{30, 32, 34, 36, 38, 40, 42}
	for i, v := range versions {
		m := newMemory(v)
		sub, cop := m.sub("main", "sub", 10)
		m.context(cxSub, sub, cop, 0)
		m.push(siSort)
		m.context(cxNull, 0, cop, 0)
		m.context(cxEval|cxTry, 0, cop, 0)
		f.Add(m.b[:m.end], uint8(i))
	}
	f.Fuzz(func(t *testing.T, memory []byte, version uint8) {
		m := newMemory(versions[int(version)%len(versions)])
		clear(m.b[copy(m.b, memory):])
		at := func(off int) int { return int(binary.LittleEndian.Uint16(m.b[off:])) &^ 7 }
		m.loops(at(0), at(2), int(perlOther), -int(perlCalled), int(perlCalled), int(perlOverloaded), int(perlMain))
		m.vm.readRuns(true)
		c := collector{imageInfo: m.vm.imageInfo, seen: map[uint64]bool{}, left: maxCopied}
		total := 0
		c.contexts(m.snap, m.vm.head.current, func(_ uint64, n int) { total += n })
		if total > maxCopied+maxContexts*maxContextBytes+4096 {
			t.Errorf("%d bytes are collected", total)
		}
	})
}

// What is known of a file that is not kept goes, and nothing else does.
func TestForgetImages(t *testing.T) {
	var s Stepper
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	s.images.Put(gone, &imageInfo{})
	s.images.Put(stays, &imageInfo{})
	s.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if s.images.Get(gone) != nil || s.images.Get(stays) == nil {
		t.Error("the wrong file was forgotten")
	}
	(&Stepper{}).ForgetImages(func(uint32) bool { return false }) // and nothing is known
}

// What is known of a process that has ended stays so, for samples that are looked at later; what a
// process has no more that goes on is forgotten.
func TestPerlEnded(t *testing.T) {
	const next = 8
	for version := range versions {
		m := newMemory(version)
		m.vm.image = &procstate.Image{}
		op := m.alloc(48)
		start := m.cop(1, "dir/main.pl")
		outer, inOuter := m.sub("main", "outer", 10)
		callee, inCallee := m.sub("Some::Package", "callee", 20)
		m.context(cxBlock, 0, 0, next)
		m.context(cxSub, outer, start, next)
		m.context(cxSub, callee, inOuter, 0)
		runs := func() [][]string { return m.loops(op, inCallee, int(perlCalled), int(perlMain)) }
		want := runs()
		later := func(live steptest.OnlyCode) [][]string {
			for _, is := range m.vm.known {
				is.checked = is.checked.Add(-2 * codeInterval)
			}
			for _, is := range m.vm.cops {
				is.checked = is.checked.Add(-2 * codeInterval)
			}
			for at, is := range m.vm.kinds {
				is.checked = is.checked.Add(-2 * codeInterval)
				m.vm.kinds[at] = is
			}
			for at, is := range m.vm.roots {
				is.checked = is.checked.Add(-2 * codeInterval)
				m.vm.roots[at] = is
			}
			m.vm.Live = live
			return runs()
		}
		same := func(a, b [][]string) bool { return slices.EqualFunc(a, b, slices.Equal) }
		if got := later(steptest.OnlyCode{HasEnded: true}); len(want[0]) == 0 || !same(got, want) {
			t.Errorf("5.%d: %q when it has ended, %q before", version, got, want)
		}
		if got := later(steptest.OnlyCode{}); same(got, want) {
			t.Errorf("5.%d: %q when it goes on without", version, got)
		}
	}
}

// With glibc on AArch64, too.
func TestPerlOfThreadAArch64(t *testing.T) {
	testenv.Needs(t, "aarch64-linux-gnu-gcc", "qemu-aarch64")
	program := filepath.Join(t.TempDir(), "perlkey")
	testenv.Run(t, exec.Command("aarch64-linux-gnu-gcc", "-pthread", "-o", program, "testdata/perlkey.c"))
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := emulated.Start([]string{program}, nil, "", in)
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	p.Run()
	c := collector{imageInfo: &imageInfo{}}
	if _, err := fmt.Fscan(out, &c.key); err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	defer images.Close()
	libs, err := p.Mappings(images)
	if err != nil {
		t.Fatal(err)
	}
	c.values = valuesOf(libs)
	for range 2 {
		var pointer, want uint64
		if _, err := fmt.Fscan(out, &pointer, &want); err != nil {
			t.Fatal(err)
		}
		if may := c.ofThread(p, &procstate.Regs{ThreadPointer: pointer}); may[0] != want {
			t.Errorf("%#x, want %#x", may, want)
		}
	}
}
