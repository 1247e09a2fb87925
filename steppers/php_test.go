package steppers

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
	"github.com/swbpf/swbpf/unwind"
)

// phpMemory is a process that runs PHP: outer calls array_map, which calls closure, which calls inner,
// which calls strlen.
type phpMemory struct {
	b    []byte
	vm   *phpVM
	w    *unwind.Walker
	snap *procstate.Snapshot
	text uint64 // where the next text is put
}

// Where it has what, and the numbers of frames and functions.
const (
	phpTestBase      = 0x7f0000000000
	phpTestGlobals   = 0x100
	phpTestFrames    = 0x1000
	phpTestFunctions = 0x2000
	phpTestOps       = 0x3000
	phpTestTexts     = 0x4000
	phpTestSize      = 0x8000

	phpTestStrlen = iota - 7
	phpTestInner
	phpTestClosure
	phpTestMap
	phpTestOuter
)

func phpTestFrame(i int) uint64    { return phpTestBase + phpTestFrames + uint64(i)*0x100 }
func phpTestFunction(i int) uint64 { return phpTestBase + phpTestFunctions + uint64(i)*0x100 }
func phpTestOp(i, n int) uint64 {
	return phpTestBase + phpTestOps + uint64(i)*0x100 + uint64(n)*phpOpSize
}

func newPHPMemory(api uint32) *phpMemory {
	m := &phpMemory{b: make([]byte, phpTestSize), text: phpTestTexts}
	m.snap = procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: phpTestBase, Data: m.b}})
	m.w = unwind.NewWalker(m.snap, unwind.NewGroup(), nil)
	m.vm = &phpVM{
		fields: phpVersions[api], vmMemory: vmMemory{mem: m.snap, captured: m.snap}, once: true, isSampled: true,
		globals: vaddrRange{phpTestBase + phpTestGlobals, phpTestBase + phpTestGlobals + 0x400},
		known:   map[uint64]*phpFunction{}, running: map[uint64]*phpFunction{}, asked: framesAsked{},
	}
	m.put(phpTestBase+phpTestGlobals+m.vm.fields.current, phpTestFrame(0))
	file := m.string("/app.php")
	class := m.at(16)
	m.put(class+phpClassName, m.string("Shape"))
	for i, name := range []string{"strlen", "inner", "{closure}", "array_map", ""} {
		fn, f := phpTestFunction(i), m.vm.fields
		m.b[fn-phpTestBase] = phpUser
		if i == phpTestStrlen || i == phpTestMap {
			m.b[fn-phpTestBase] = phpInternal
		}
		if name != "" {
			m.put(fn+phpName, m.string(name))
		}
		if i == phpTestInner {
			m.put(fn+phpScope, class)
		}
		if m.b[fn-phpTestBase] == phpUser {
			m.put(fn+f.opcodes, phpTestOp(i, 0))
			binary.LittleEndian.PutUint32(m.b[fn+f.last-phpTestBase:], 4)
			m.put(fn+f.fileName, file)
			for n := range 4 {
				m.put(phpTestOp(i, n)+phpOpLine, uint64(10*i+n))
			}
		}
		m.put(phpTestFrame(i)+phpFunc, fn)
		m.put(phpTestFrame(i)+phpOpline, phpTestOp(i, 2))
		if i != phpTestInner {
			m.put(phpTestFrame(i)+phpInfo, phpCallTop)
		}
		if i != phpTestOuter {
			m.put(phpTestFrame(i)+phpPrevious, phpTestFrame(i+1))
		}
	}
	return m
}

func (m *phpMemory) put(at, v uint64) { binary.LittleEndian.PutUint64(m.b[at-phpTestBase:], v) }

// at returns the address of so many bytes that are not used yet.
func (m *phpMemory) at(n int) uint64 {
	m.text += uint64(n+7) &^ 7
	return phpTestBase + m.text - uint64(n+7)&^7
}

func (m *phpMemory) string(s string) uint64 {
	at := m.at(phpStringData + len(s))
	m.put(at+phpStringSize, uint64(len(s)))
	copy(m.b[at+phpStringData-phpTestBase:], s)
	return at
}

// functions returns what runs in a frame of the C stack that has registers.
func (m *phpMemory) functions(frame, op uint64, isCompiled bool) (all string) {
	in := unwind.NewFrame(procstate.AMD64, 1, phpTestBase, 0)
	in.Regs.Set(phpFrameReg, frame)
	in.Regs.Set(phpOpReg, op)
	for code := m.vm.codeOf(m.w, &in, isCompiled); code != 0; code = m.w.Codes().Outer(code) {
		for _, l := range m.w.Codes().Lines(code) {
			all += fmt.Sprintf("%s:%d ", l.Name, l.Line)
		}
	}
	return strings.TrimSuffix(all, " ")
}

// walk begins another walk.
func (m *phpMemory) walk() { _, _ = m.w.WalkPCs(nil, &procstate.Regs{}) }

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
		m := newPHPMemory(api)
		m.walk()
		want("the first", m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestInner, 3), false), first)
		want("the register of the one before", m.functions(phpTestFrame(phpTestInner), 0, false), "")
		want("the second", m.functions(phpTestFrame(phpTestOuter), 0, false), second)
		want("one more", m.functions(phpTestFrame(phpTestOuter), 0, false), "")

		m.walk()
		want("another", m.functions(phpTestBase+0x3f00, 0, false), "")
		want("the second alone", m.functions(phpTestFrame(phpTestOuter), 0, false), second)

		current := phpTestBase + phpTestGlobals + m.vm.fields.current
		m.put(current, phpTestFrame(phpTestInner)) // strlen has returned
		m.walk()
		want("by the register", m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestInner, 3), false), "Shape::inner:13 {closure}:22")
		m.walk()
		want("another's instruction", m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestClosure, 2), false), "{closure}:22")
		m.walk()
		want("compiled", m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestInner, 3), true), "Shape::inner:0 {closure}:22")

		m.put(current, phpTestFrame(phpTestClosure)) // inner is ending
		m.walk()
		want("ending", m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestInner, 3), false), "{closure}:22")
		m.put(phpTestFrame(phpTestInner)+phpInfo, phpCallTop)
		m.walk()
		want("ending, as a call of its own", m.functions(phpTestFrame(phpTestInner), 0, false), "")
		want("behind that", m.functions(phpTestFrame(phpTestClosure), phpTestOp(phpTestClosure, 1), false), "{closure}:21")

		m.put(phpTestFrame(phpTestMap)+phpPrevious, phpTestFrame(phpTestClosure)) // in a circle
		m.walk()
		want("in a circle", m.functions(phpTestFrame(phpTestClosure), 0, false), "")

		m = newPHPMemory(api)
		m.put(phpTestFrame(phpTestClosure)+phpPrevious, 0x1000) // which was not copied
		m.walk()
		want("the first of what was copied", m.functions(phpTestFrame(phpTestInner), 0, false), first)
		m.put(phpTestFrame(phpTestInner)+phpPrevious, 0x1000)
		m.walk()
		want("cut", m.functions(phpTestFrame(phpTestInner), 0, false), "strlen:0 Shape::inner:12 [not copied]:0")
	}
}

// Where the frames are is told when they were not copied, and not again at once.
func TestPHPLacked(t *testing.T) {
	for api, f := range phpVersions {
		m := newPHPMemory(api)
		s := NewPHP(nil)
		m.w.Keep(s, m.vm)
		m.walk()
		m.functions(phpTestFrame(phpTestInner), 0, false)
		if _, lacks := s.Lacked(m.w, 1); lacks {
			t.Errorf("%d: it lacks what was copied", api)
		}
		m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: phpTestBase + phpTestFrames, Data: m.b[phpTestFrames:]}})
		m.walk()
		m.functions(phpTestFrame(phpTestInner), 0, false)
		for i, tid := range []int{1, 1, 2} {
			got, lacks := s.Lacked(m.w, tid)
			want := procstate.ThreadFrames{}
			if i != 1 {
				globals := uint64(phpTestBase + phpTestGlobals)
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
		m := newPHPMemory(api)
		// inner runs for closure, and that for outer; map is what all is called by.
		const generators = 0x5000
		g := func(i uint64) uint64 { return phpTestBase + generators + i*0x200 }
		for i, frame := range []int{phpTestOuter, phpTestClosure, phpTestInner} {
			m.put(g(uint64(i))+f.execute, phpTestFrame(frame))
			if i < 2 {
				m.put(g(uint64(i))+f.parent, g(uint64(i+1)))
			}
		}
		placeholder := g(0) + f.placeholder
		m.put(placeholder+phpThis, g(0))
		m.put(placeholder+phpPrevious, phpTestFrame(phpTestMap))
		m.put(phpTestFrame(phpTestInner)+phpPrevious, placeholder)
		m.put(phpTestFrame(phpTestInner)+phpInfo, phpCallTop)
		m.put(phpTestFrame(phpTestMap)+phpPrevious, 0)
		m.walk()
		const want = "strlen:0 Shape::inner:12 {closure}:22 <file app.php>:42"
		if got := m.functions(phpTestFrame(phpTestInner), 0, false); got != want {
			t.Errorf("%d: %q, want %q", api, got, want)
		}
		m.put(placeholder+phpThis, g(1)) // it is no placeholder
		m.walk()
		if got := m.functions(phpTestFrame(phpTestInner), 0, false); got != "strlen:0 Shape::inner:12" {
			t.Errorf("%d: %q", api, got)
		}
		m.put(placeholder+phpThis, g(0))
		m.put(g(1)+f.parent, g(0)) // they wait for each other
		m.walk()
		m.functions(phpTestFrame(phpTestInner), 0, false)
	}
}

// A function that ends with a request has a name only where it is the same for all, and
// another in its place none of the one before.
func TestPHPRequests(t *testing.T) {
	const heap = 0x7f0000000000 // a piece is described at its beginning
	for api := range phpVersions {
		m := newPHPMemory(api)
		m.vm.once = false
		m.put(heap, heap+64)
		m.put(phpTestBase+phpTestGlobals+m.vm.fields.current, phpTestFrame(phpTestInner))
		look := func() string {
			for _, fn := range m.vm.known {
				if fn != nil {
					fn.checked = fn.checked.Add(-phpCheckInterval)
				}
			}
			m.walk()
			return m.functions(phpTestFrame(phpTestInner), phpTestOp(phpTestInner, 1), false)
		}
		for range 3 {
			if got := look(); got != "[gone]:0" {
				t.Errorf("%d: at first %q", api, got)
			}
		}
		if got := look(); got != "Shape::inner:11 [gone]:0" { // closures come and go
			t.Errorf("%d: then %q", api, got)
		}
		m.put(phpTestFunction(phpTestInner)+phpName, m.string("other"))
		for range 10 {
			if got := look(); got != "[gone]:0" {
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
		m := newPHPMemory(api)
		list := m.at(16)
		m.put(list, phpTestFunction(phpTestClosure))
		m.put(list+8, phpTestFunction(phpTestOuter))
		binary.LittleEndian.PutUint32(m.b[phpTestFunction(phpTestInner)+f.closureCount-phpTestBase:], 2)
		m.put(phpTestFunction(phpTestInner)+f.closures, list)
		gone := phpTestBase + uint64(0x7000)
		m.put(phpTestFrame(phpTestClosure)+phpFunc, gone)
		m.put(phpTestFrame(phpTestInner)+phpOpline, phpTestOp(phpTestInner, 2))
		for i, want := range []string{"strlen:0 Shape::inner:12 [gone]:0", "strlen:0 Shape::inner:12 Shape::{closure}:22"} {
			m.walk()
			if got := m.functions(phpTestFrame(phpTestInner), 0, false); got != want {
				t.Errorf("%d: in walk %d %q, want %q", api, i, got, want)
			}
		}
		m.put(phpTestBase+phpTestGlobals+f.current, phpTestFrame(phpTestClosure))
		m.walk()
		if got := m.functions(phpTestFrame(phpTestClosure), phpTestOp(phpTestClosure, 3), false); got != "Shape::{closure}:23" {
			t.Errorf("%d: that runs %q", api, got)
		}
		m.walk() // what it has called has just returned to it: another closure
		if got := m.functions(phpTestFrame(phpTestClosure), phpTestOp(phpTestOuter, 3), false); got != "" {
			t.Errorf("%d: with another's instruction %q", api, got)
		}
		m.put(gone+phpName, 1) // after a time all are looked for anew
		m.vm.began = m.vm.began.Add(-2 * phpInnerInterval)
		m.walk()
		if got := m.functions(phpTestFrame(phpTestClosure), phpTestOp(phpTestClosure, 3), false); got != "" {
			t.Errorf("%d: after a time %q", api, got)
		}
	}
}

// What is kept of functions comes to an end, by their names too, and not only how many of them there are.
func TestPHPKept(t *testing.T) {
	for api := range phpVersions {
		m := newPHPMemory(api)
		m.b = append(m.b, make([]byte, 2*maxPHPName)...)
		m.snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: phpTestBase, Data: m.b}})
		m.text = phpTestSize
		m.put(phpTestFunction(phpTestClosure)+phpName, m.string(strings.Repeat("f", maxPHPName)))
		first := new(phpFunction)
		m.vm.known[0], m.vm.running[0] = first, first
		for n := 0; n < maxKept/maxPHPName+1; n++ {
			m.vm.looks = 1
			if m.vm.look(phpTestFunction(phpTestClosure), nil, time.Now()) == nil {
				t.Fatal("it is no function")
			}
		}
		if m.vm.kept > maxKept/2 || m.vm.known[0] != nil || m.vm.running[0] != nil {
			t.Errorf("%d: %d bytes are kept of %d functions", api, m.vm.kept, len(m.vm.known))
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
	s := NewPHP(nil)
	p := s.image(im)
	if p.fields == nil || len(p.leaves) == 0 {
		t.Skipf("%s is none that is known", path)
	}
	for vaddr, want := range map[uint64]bool{
		p.execute.start: false, p.entered - 1: false, p.entered: true, p.leaves[0].start - 1: true, p.leaves[0].start: false,
		p.leaves[0].end - 1: false, p.leaves[0].end: true, p.execute.end - 1: true,
	} {
		if got := p.hasFrame(vaddr); got != want {
			t.Errorf("at %#x: %v, want %v", vaddr, got, want)
		}
	}
	for _, r := range p.leaves {
		var last [1]byte
		if err := im.ReadVaddr(last[:], r.end-1); err != nil || last[0] != 0xc3 && last[0] != 0xe9 && last[0] != 0xeb {
			t.Errorf("what gives it back at %#x ends with %#x, %v", r.start, last, err)
		}
		if !s.isExecute(im, p, r.start) {
			t.Errorf("%#x is not in execute_ex", r.start)
		}
	}
	if s.isExecute(im, p, p.execute.start-1) || s.isExecute(im, p, p.execute.end) {
		t.Error("other functions are execute_ex")
	}
	damaged := *p
	damaged.execute.end = p.entered // its end is missing
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
		if got := phpFileName(file); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}

// phpOffsets prints the fields as PHP's headers have them.
const phpOffsets = `
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
			if err := os.WriteFile(source, []byte(phpOffsets), 0o644); err != nil {
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
				phpOpSize, phpCallTop, phpInternal, phpUser, phpEval,
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
	m := newPHPMemory(20220829)
	in := unwind.NewFrame(procstate.AMD64, 1, phpTestBase, 0)
	in.Regs.Set(phpFrameReg, phpTestFrame(phpTestInner))
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
		f.Add(newPHPMemory(api).b, uint8(i), uint64(phpTestFrame(phpTestInner)), uint64(phpTestOp(phpTestInner, 1)), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, memory []byte, version uint8, frame, op uint64, once bool) {
		m := newPHPMemory(versions[int(version)%len(versions)])
		clear(m.b[copy(m.b, memory):])
		m.vm.once = once
		for range 2 {
			m.walk()
			m.functions(frame, op, false)
			m.functions(phpTestFrame(phpTestOuter), op, true)
		}
		c := phpCollector{fields: m.vm.fields, globals: m.vm.globals.start}
		total := 0
		c.collect(m.snap, 1, nil, func(_ uint64, n int) { total += n })
		if total > maxPHPStack+(maxPHPFrames+maxPHPWaiting)*2*phpFrameBytes {
			t.Errorf("%d bytes are collected", total)
		}
	})
}
