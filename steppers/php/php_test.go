package php

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// memory is a process that runs PHP: outer calls array_map, which calls closure, which calls inner,
// which calls strlen.
type memory struct {
	b    []byte
	vm   *machine
	w    *unwind.Walker
	snap *procstate.Snapshot
	text uint64 // where the next text is put
}

// Where it has what, and the numbers of frames and functions.
const (
	testBase      = 0x7f0000000000
	testGlobals   = 0x100
	testFrames    = 0x1000
	testFunctions = 0x2000
	testOps       = 0x3000
	testTexts     = 0x4000
	testSize      = 0x8000

	testStrlen = iota - 7
	testInner
	testClosure
	testMap
	testOuter
)

func testFrame(i int) uint64    { return testBase + testFrames + uint64(i)*0x100 }
func testFunction(i int) uint64 { return testBase + testFunctions + uint64(i)*0x100 }
func testOp(i, n int) uint64 {
	return testBase + testOps + uint64(i)*0x100 + uint64(n)*phpOpSize
}

func newMemory(api uint32) *memory { return newMemoryOf(procstate.AMD64, api) }

func newMemoryOf(of *procstate.Arch, api uint32) *memory {
	m := &memory{b: make([]byte, testSize), text: testTexts}
	m.snap = procstate.NewSnapshot(of, 1, "", nil)
	m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
	m.w = unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.vm = &machine{
		arch: archOf(of), kept: kept{reg: procstate.NoReg}, fields: phpVersions[api], Memory: vmread.Memory{Mem: m.snap, Captured: m.snap}, once: true, isSampled: true,
		globals: mcode.Range{Start: testBase + testGlobals, End: testBase + testGlobals + 0x400},
		known:   map[uint64]*function{}, running: map[uint64]*function{}, asked: vmread.FramesAsked{},
	}
	m.put(testBase+testGlobals+m.vm.fields.current, testFrame(0))
	file := m.string("/app.php")
	class := m.at(16)
	m.put(class+phpClassName, m.string("Shape"))
	for i, name := range []string{"strlen", "inner", "{closure}", "array_map", ""} {
		fn, f := testFunction(i), m.vm.fields
		m.b[fn-testBase] = user
		if i == testStrlen || i == testMap {
			m.b[fn-testBase] = internal
		}
		if name != "" {
			m.put(fn+phpName, m.string(name))
		}
		if i == testInner {
			m.put(fn+phpScope, class)
		}
		if m.b[fn-testBase] == user {
			m.put(fn+f.opcodes, testOp(i, 0))
			binary.LittleEndian.PutUint32(m.b[fn+f.last-testBase:], 4)
			m.put(fn+f.fileName, file)
			for n := range 4 {
				m.put(testOp(i, n)+phpOpLine, uint64(10*i+n))
			}
		}
		m.put(testFrame(i)+phpFunc, fn)
		m.put(testFrame(i)+phpOpline, testOp(i, 2))
		if i != testInner {
			m.put(testFrame(i)+phpInfo, phpCallTop)
		}
		if i != testOuter {
			m.put(testFrame(i)+phpPrevious, testFrame(i+1))
		}
	}
	return m
}

func (m *memory) put(at, v uint64) { binary.LittleEndian.PutUint64(m.b[at-testBase:], v) }

// at returns the address of so many bytes that are not used yet.
func (m *memory) at(n int) uint64 {
	m.text += uint64(n+7) &^ 7
	return testBase + m.text - uint64(n+7)&^7
}

func (m *memory) string(s string) uint64 {
	at := m.at(phpStringData + len(s))
	m.put(at+phpStringSize, uint64(len(s)))
	copy(m.b[at+phpStringData-testBase:], s)
	return at
}

// functions returns what runs in a frame of the C stack that has registers.
func (m *memory) functions(frame, op uint64, isCompiled bool) (all string) {
	in := unwind.NewFrame(m.vm.arch.Arch, 1, testBase, 0)
	in.Regs.Set(m.vm.arch.frame, frame)
	in.Regs.Set(m.vm.arch.op, op)
	for code := m.vm.codeOf(m.w, &in, isCompiled); code != 0; code = m.w.Codes().Outer(code) {
		for _, l := range m.w.Codes().Lines(code) {
			all += fmt.Sprintf("%s:%d ", l.Name, l.Line)
		}
	}
	return strings.TrimSuffix(all, " ")
}

// walk begins another walk.
func (m *memory) walk() { _, _ = m.w.WalkPCs(nil, &procstate.Regs{}) }

// Each frame of the C stack has the functions that it runs, by its register.
func TestPHPFrames(t *testing.T) {
	want := func(name, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	const first, second = "strlen:0 Shape::inner:12 {closure}:22", "array_map:0 <file app.php>:42"
	for api := range phpVersions {
		m := newMemory(api)
		m.walk()
		want("the first", m.functions(testFrame(testInner), testOp(testInner, 3), false), first)
		want("the register of the one before", m.functions(testFrame(testInner), 0, false), "")
		want("the second", m.functions(testFrame(testOuter), 0, false), second)
		want("one more", m.functions(testFrame(testOuter), 0, false), "")

		m.walk()
		want("another", m.functions(testBase+0x3f00, 0, false), "")
		want("the second alone", m.functions(testFrame(testOuter), 0, false), second)

		current := testBase + testGlobals + m.vm.fields.current
		m.put(current, testFrame(testInner)) // strlen has returned
		m.walk()
		want("by the register", m.functions(testFrame(testInner), testOp(testInner, 3), false), "Shape::inner:13 {closure}:22")
		m.walk()
		want("another's instruction", m.functions(testFrame(testInner), testOp(testClosure, 2), false), "{closure}:22")
		m.walk()
		want("compiled", m.functions(testFrame(testInner), testOp(testInner, 3), true), "Shape::inner:0 {closure}:22")

		m.put(current, testFrame(testClosure)) // inner is ending
		m.walk()
		want("ending", m.functions(testFrame(testInner), testOp(testInner, 3), false), "{closure}:22")
		m.put(testFrame(testInner)+phpInfo, phpCallTop)
		m.walk()
		want("ending, as a call of its own", m.functions(testFrame(testInner), 0, false), "")
		want("behind that", m.functions(testFrame(testClosure), testOp(testClosure, 1), false), "{closure}:21")

		m.put(testFrame(testMap)+phpPrevious, testFrame(testClosure)) // in a circle
		m.walk()
		want("in a circle", m.functions(testFrame(testClosure), 0, false), "")

		m = newMemory(api)
		m.put(testFrame(testClosure)+phpPrevious, 0x1000) // which was not copied
		m.walk()
		want("the first of what was copied", m.functions(testFrame(testInner), 0, false), first)
		m.put(testFrame(testInner)+phpPrevious, 0x1000)
		m.walk()
		want("cut", m.functions(testFrame(testInner), 0, false), "strlen:0 Shape::inner:12 [not copied]:0")
	}
}

// Where the frames are is told when they were not copied, and not again at once.
func TestPHPLacked(t *testing.T) {
	for api, f := range phpVersions {
		m := newMemory(api)
		s := New(nil)
		m.w.Keep(s, m.vm)
		m.walk()
		m.functions(testFrame(testInner), 0, false)
		if _, lacks := s.Lacked(m.w, 1); lacks {
			t.Errorf("%d: it lacks what was copied", api)
		}
		m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase + testFrames, Data: m.b[testFrames:]}})
		m.walk()
		m.functions(testFrame(testInner), 0, false)
		for i, tid := range []int{1, 1, 2} {
			got, lacks := s.Lacked(m.w, tid)
			want := procstate.ThreadFrames{}
			if i != 1 {
				globals := uint64(testBase + testGlobals)
				want = procstate.ThreadFrames{Current: globals + f.current, Bounds: globals, Low: int(f.stackLow), High: int(f.stackHigh), IsFrame: true, Bytes: 56, Previous: 48}
			}
			if !lacks || got != want {
				t.Errorf("%d: thread %d lacks %+v, want %+v", api, tid, got, want)
			}
		}
		m.walk() // which has met no PHP
		if _, lacks := s.Lacked(m.w, 3); lacks {
			t.Errorf("%d: another walk lacks frames", api)
		}
	}
}

// Frames of generators that wait for one that runs are where that is.
func TestPHPGenerators(t *testing.T) {
	for api, f := range phpVersions {
		m := newMemory(api)
		// inner runs for closure, and that for outer; map is what all is called by.
		const generators = 0x5000
		g := func(i uint64) uint64 { return testBase + generators + i*0x200 }
		for i, frame := range []int{testOuter, testClosure, testInner} {
			m.put(g(uint64(i))+f.execute, testFrame(frame))
			if i < 2 {
				m.put(g(uint64(i))+f.parent, g(uint64(i+1)))
			}
		}
		placeholder := g(0) + f.placeholder
		m.put(placeholder+phpThis, g(0))
		m.put(placeholder+phpPrevious, testFrame(testMap))
		m.put(testFrame(testInner)+phpPrevious, placeholder)
		m.put(testFrame(testInner)+phpInfo, phpCallTop)
		m.put(testFrame(testMap)+phpPrevious, 0)
		m.walk()
		const want = "strlen:0 Shape::inner:12 {closure}:22 <file app.php>:42"
		if got := m.functions(testFrame(testInner), 0, false); got != want {
			t.Errorf("%d: %q, want %q", api, got, want)
		}
		m.put(placeholder+phpThis, g(1)) // it is no placeholder
		m.walk()
		if got := m.functions(testFrame(testInner), 0, false); got != "strlen:0 Shape::inner:12" {
			t.Errorf("%d: %q", api, got)
		}
		m.put(placeholder+phpThis, g(0))
		m.put(g(1)+f.parent, g(0)) // they wait for each other
		m.walk()
		m.functions(testFrame(testInner), 0, false)
	}
}

// A function that ends with a request has a name only where it is the same for all, and
// another in its place none of the one before.
func TestPHPRequests(t *testing.T) {
	const heap = 0x7f0000000000 // a piece is described at its beginning
	for api := range phpVersions {
		m := newMemory(api)
		m.vm.once = false
		m.put(heap, heap+64)
		m.put(testBase+testGlobals+m.vm.fields.current, testFrame(testInner))
		look := func() string {
			for _, fn := range m.vm.known {
				if fn != nil {
					fn.checked = fn.checked.Add(-checkInterval)
				}
			}
			m.walk()
			return m.functions(testFrame(testInner), testOp(testInner, 1), false)
		}
		for range 3 {
			if got := look(); got != "[not read]:0" {
				t.Errorf("%d: at first %q", api, got)
			}
		}
		if got := look(); got != "Shape::inner:11 [not read]:0" { // closures come and go
			t.Errorf("%d: then %q", api, got)
		}
		m.put(testFunction(testInner)+phpName, m.string("other"))
		for range 10 {
			if got := look(); got != "[not read]:0" {
				t.Errorf("%d: after another came %q", api, got)
			}
		}
		m.vm.isSampled = false // a walk sees that the frame is still there
		if got := look(); got != "Shape::other:11 {closure}:22" {
			t.Errorf("%d: in a walk %q", api, got)
		}
	}
}

// Closures are found by their instructions when their own functions have ended.
func TestPHPClosures(t *testing.T) {
	for api, f := range phpVersions {
		if f.closures == 0 {
			continue
		}
		m := newMemory(api)
		list := m.at(16)
		m.put(list, testFunction(testClosure))
		m.put(list+8, testFunction(testOuter))
		binary.LittleEndian.PutUint32(m.b[testFunction(testInner)+f.closureCount-testBase:], 2)
		m.put(testFunction(testInner)+f.closures, list)
		gone := testBase + uint64(0x7000)
		m.put(testFrame(testClosure)+phpFunc, gone)
		m.put(testFrame(testInner)+phpOpline, testOp(testInner, 2))
		for i, want := range []string{"strlen:0 Shape::inner:12 [not read]:0", "strlen:0 Shape::inner:12 Shape::{closure}:22"} {
			m.walk()
			if got := m.functions(testFrame(testInner), 0, false); got != want {
				t.Errorf("%d: in walk %d %q, want %q", api, i, got, want)
			}
		}
		m.put(testBase+testGlobals+f.current, testFrame(testClosure))
		m.walk()
		if got := m.functions(testFrame(testClosure), testOp(testClosure, 3), false); got != "Shape::{closure}:23" {
			t.Errorf("%d: that runs %q", api, got)
		}
		m.walk() // what it has called has just returned to it: another closure
		if got := m.functions(testFrame(testClosure), testOp(testOuter, 3), false); got != "" {
			t.Errorf("%d: with another's instruction %q", api, got)
		}
		m.put(gone+phpName, 1) // after a time all are looked for anew
		m.vm.began = m.vm.began.Add(-2 * innerInterval)
		m.walk()
		if got := m.functions(testFrame(testClosure), testOp(testClosure, 3), false); got != "" {
			t.Errorf("%d: after a time %q", api, got)
		}
	}
}

// What a file does itself is known where its function is gone, if another process has the same instructions in that place.
func TestPHPShared(t *testing.T) {
	for api, f := range phpVersions {
		shared := new(sharedFiles)
		functions := func(change func(m *memory)) string {
			m := newMemory(api)
			m.vm.shared = shared
			change(m)
			m.walk()
			return m.functions(testFrame(testOuter), 0, false)
		}
		gone := func(m *memory) { m.put(testFrame(testOuter)+phpFunc, testBase+0x7000) }
		const known, unknown = "array_map:0 <file app.php>:42", "array_map:0" // what cannot be known of the innermost one is left out
		for _, step := range []struct {
			name, want string
			change     func(m *memory)
		}{
			{"met by none", unknown, gone},
			{"there", known, func(*memory) {}},
			{"gone", known, gone},
			{"with other instructions", unknown, func(m *memory) {
				gone(m)
				m.put(testOp(testOuter, 1)+phpOpLine, 4711)
			}},
			{"of another file", unknown, func(m *memory) {
				gone(m)
				file := binary.LittleEndian.Uint64(m.b[testFunction(testOuter)+f.fileName-testBase:])
				copy(m.b[file+phpStringData-testBase:], "/new.php")
			}},
			{"executed otherwise", known, func(m *memory) {
				gone(m)
				m.put(testOp(testOuter, 1), 4711)
			}},
		} {
			if got := functions(step.change); got != step.want {
				t.Errorf("%d: %s: %q, want %q", api, step.name, got, step.want)
			}
		}
		if len(shared.list) != 1 {
			t.Errorf("%d: %d files are shared", api, len(shared.list))
		}
	}
}

// What is kept of functions comes to an end, by their names too, and not only how many of them there are.
func TestPHPKept(t *testing.T) {
	for api := range phpVersions {
		m := newMemory(api)
		m.b = append(m.b, make([]byte, 2*maxName)...)
		m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: m.b}})
		m.text = testSize
		m.put(testFunction(testClosure)+phpName, m.string(strings.Repeat("f", maxName)))
		first := new(function)
		m.vm.known[0], m.vm.running[0] = first, first
		for n := 0; n < vmread.MaxKept/maxName+1; n++ {
			m.vm.looks = 1
			if m.vm.look(testFunction(testClosure), nil, time.Now()) == nil {
				t.Fatal("it is no function")
			}
		}
		if m.vm.Kept > vmread.MaxKept/2 || m.vm.known[0] != nil || m.vm.running[0] != nil {
			t.Errorf("%d: %d bytes are kept of %d functions", api, m.vm.Kept, len(m.vm.known))
		}
	}
}

// In a real interpreter the register has a frame from where it is set to where it is given back, and
// what belongs to no PHP is none.
func TestPHPRegister(t *testing.T) {
	path, err := exec.LookPath("php")
	if err != nil {
		t.Skip("no PHP here")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	im := steptest.OpenImage(t, path)
	s := New(nil)
	p := s.image(im)
	if p.fields == nil || len(p.leaves) == 0 {
		t.Skipf("%s is none that is known", path)
	}
	for vaddr, want := range map[uint64]bool{
		p.execute.Start: false, p.entered - 1: false, p.entered: true, p.leaves[0].Start - 1: true, p.leaves[0].Start: false,
		p.leaves[0].End - 1: false, p.leaves[0].End: true, p.execute.End - 1: true,
	} {
		if got := p.hasFrame(vaddr); got != want {
			t.Errorf("at %#x: %v, want %v", vaddr, got, want)
		}
	}
	for _, r := range p.leaves {
		var last [1]byte
		if err := im.ReadVaddr(last[:], r.End-1); err != nil || last[0] != 0xc3 && last[0] != 0xe9 && last[0] != 0xeb {
			t.Errorf("what gives it back at %#x ends with %#x, %v", r.Start, last, err)
		}
		if !s.isExecute(im, p, r.Start) {
			t.Errorf("%#x is not in execute_ex", r.Start)
		}
	}
	if s.isExecute(im, p, p.execute.Start-1) || s.isExecute(im, p, p.execute.End) {
		t.Error("other functions are execute_ex")
	}
	damaged := *p
	damaged.execute.End = p.entered // its end is missing
	damaged.entered, damaged.leaves = 0, nil
	if damaged.findRegister(im) {
		t.Error("a register that is never given back is known")
	}
}

func TestPHPFileName(t *testing.T) {
	for file, want := range map[string]string{
		"/srv/app.php": "<file app.php>", "/srv/app.php(3) : eval()'d code": "<eval app.php(3)>", "Command line code": "<file Command line code>",
		"/srv/app.php(3) : eval()'d code(1) : eval()'d code": "<eval app.php(3) : eval()'d code(1)>",
	} {
		if got := fileName(file); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// offsets prints the fields as PHP's headers have them.
const offsets = `
#include "php.h"
#include "zend_generators.h"
#define P(s, f) printf("%zu ", offsetof(s, f))
#if ZEND_MODULE_API_NO < 20210902
#define CLOSURES
#else
#define CLOSURES P(zend_op_array, num_dynamic_func_defs); P(zend_op_array, dynamic_func_defs);
#endif
int main(void) {
	printf("%d ", ZEND_MODULE_API_NO);
	P(zend_executor_globals, current_execute_data); P(zend_executor_globals, vm_stack); P(zend_executor_globals, vm_stack_top);
	P(zend_op_array, last); P(zend_op_array, opcodes); P(zend_op_array, filename); P(zend_op_array, line_start);
	P(zend_generator, execute_data); P(zend_generator, execute_fake); P(zend_generator, node.parent);
	P(zend_execute_data, opline); P(zend_execute_data, func); P(zend_execute_data, This); P(zend_execute_data, This.u1); P(zend_execute_data, prev_execute_data);
	P(zend_op_array, type); P(zend_op_array, function_name); P(zend_op_array, scope); P(zend_class_entry, name);
	P(zend_op, lineno); P(zend_string, len); P(zend_string, val);
	printf("%zu %d %d %d %d ", sizeof(zend_op), ZEND_CALL_TOP, ZEND_INTERNAL_FUNCTION, ZEND_USER_FUNCTION, ZEND_EVAL_CODE);
	CLOSURES
	return 0;
}`

// The fields are where the headers of PHP say, which are there with its phpize.
func TestPHPFields(t *testing.T) {
	testenv.Needs(t, "gcc")
	seen := 0
	for _, root := range append([]string{"/"}, filepath.SplitList(os.Getenv("SWBPF_ROOTS"))...) {
		dirs, _ := filepath.Glob(filepath.Join(root, "usr/include/php/20*"))
		for _, dir := range dirs {
			seen++
			source, program := filepath.Join(t.TempDir(), "offsets.c"), filepath.Join(t.TempDir(), "offsets")
			if err := os.WriteFile(source, []byte(offsets), 0o644); err != nil {
				t.Fatal(err)
			}
			testenv.Run(t, exec.Command("gcc", "-w", "-I"+dir, "-I"+dir+"/main", "-I"+dir+"/TSRM", "-I"+dir+"/Zend", "-o", program, source))
			out, err := exec.Command(program).Output()
			if err != nil {
				t.Fatal(err)
			}
			var api uint32
			fmt.Sscan(string(out), &api)
			f := phpVersions[api]
			if f == nil {
				t.Errorf("%s: %d is not known", dir, api)
				continue
			}
			want := []any{
				api, f.current, f.stackLow, f.stackHigh, f.last, f.opcodes, f.fileName, f.firstLine, f.execute, f.placeholder, f.parent,
				phpOpline, phpFunc, phpThis, phpInfo, phpPrevious, phpType, phpName, phpScope, phpClassName, phpOpLine, phpStringSize, phpStringData,
				phpOpSize, phpCallTop, internal, user, eval,
			}
			if f.closures != 0 {
				want = append(want, f.closureCount, f.closures)
			}
			if got := strings.Fields(string(out)); !slices.Equal(got, strings.Fields(fmt.Sprintln(want...))) {
				t.Errorf("%s: %v, want %v", dir, got, want)
			}
		}
	}
	if seen == 0 {
		t.Skip("no headers of PHP here")
	}
}

// A frame is known to belong to compiled code, and looking again takes no memory.
func TestPHPAllocates(t *testing.T) {
	m := newMemory(20220829)
	in := unwind.NewFrame(procstate.AMD64, 1, testBase, 0)
	in.Regs.Set(m.vm.arch.frame, testFrame(testInner))
	var regs procstate.Regs
	walk := func() {
		for _, fn := range m.vm.known {
			fn.checked = time.Now()
		}
		m.w.WalkPCs(nil, &regs)
		m.vm.codeOf(m.w, &in, false)
	}
	without := testing.AllocsPerRun(100, func() { m.w.WalkPCs(nil, &regs) })
	walk()
	if n := testing.AllocsPerRun(100, walk); n > without {
		t.Errorf("%v allocations, of a walk %v", n, without)
	}
}

// FuzzPHP has the interpreter's memory say anything.
func FuzzPHP(f *testing.F) {
	var versions []uint32
	for api := range phpVersions {
		versions = append(versions, api)
	}
	slices.Sort(versions)
	for i, api := range versions {
		f.Add(newMemory(api).b, uint8(i), uint64(testFrame(testInner)), uint64(testOp(testInner, 1)), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, memory []byte, version uint8, frame, op uint64, once bool) {
		m := newMemory(versions[int(version)%len(versions)])
		clear(m.b[copy(m.b, memory):])
		m.vm.once = once
		for range 2 {
			m.walk()
			m.functions(frame, op, false)
			m.functions(testFrame(testOuter), op, true)
		}
		c := collector{fields: m.vm.fields, globals: m.vm.globals.Start}
		total := 0
		c.collect(m.snap, 1, nil, func(_ uint64, n int) { total += n })
		if total > maxStack+(maxFrames+maxWaiting)*2*phpFrameBytes {
			t.Errorf("%d bytes are collected", total)
		}
	})
}
