package hotspot

import (
	"encoding/binary"
	"fmt"
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

// Integers as HotSpot's CompressedWriteStream (to JDK 19) and UNSIGNED5 (from 20 on) write
// them.
func TestCompressed(t *testing.T) {
	for _, test := range []struct {
		v           uint32
		before, now []byte
	}{
		{0, []byte{0}, []byte{1}},
		{190, []byte{190}, []byte{191}},
		{191, []byte{191}, []byte{192, 1}},
		{192, []byte{192, 0}, []byte{193, 1}},
		{255, []byte{255, 0}, []byte{192, 2}},
		{12479, []byte{255, 191}, []byte{192, 193, 1}},
		{1<<32 - 1, []byte{255, 252, 252, 252, 252}, []byte{192, 254, 253, 253, 253}},
	} {
		for _, as := range []struct {
			compressed
			b []byte
		}{{compressed{}, test.before}, {compressed{1}, test.now}} {
			if v, n := as.read(append(slices.Clone(as.b), 7)); v != test.v || n != len(as.b) {
				t.Errorf("%d as % x, %+v: %d, %d bytes", test.v, as.b, as.compressed, v, n)
			}
			for cut := range as.b {
				if _, n := as.read(as.b[:cut]); n != 0 {
					t.Errorf("% x cut to %d: %d bytes", as.b, cut, n)
				}
			}
		}
	}
	if _, n := (compressed{1}).read([]byte{0}); n != 0 {
		t.Error("a byte that is excluded")
	}
}

func TestLineTable(t *testing.T) {
	// Steps of bytecodes and lines: in one byte, or signed and behind 0xff.
	table := []byte{0xff, 0, 2 * 100, 0, 3<<3 | 1, 0xff, 2 * 5, 2*2 - 1, 30<<3 | 7, 0}
	table = slices.Replace(table, 2, 4, 192+200-192, 0) // 200, which is 100 doubled
	want := []bytecodeLine{{0, 100}, {3, 101}, {8, 99}, {38, 106}}
	if got := lineTable(table, compressed{}); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for n := range table {
		if got := lineTable(table[:n], compressed{}); !slices.Equal(got, want[:len(got)]) {
			t.Errorf("cut to %d: %v", n, got)
		}
	}
	m := javaMethod{function: &unwind.CodeFunction{}, size: 50, lines: want}
	for bci, line := range map[int]int{-1: 100, 0: 100, 2: 100, 3: 101, 7: 101, 8: 99, 37: 99, 38: 106, 49: 106, 50: 0, noBytecode: 0, 1 << 40: 0} {
		if got := m.lineAt(bci); got.Line != line || got.CodeFunction != m.function {
			t.Errorf("bytecode %d is in line %d, want %d", bci, got.Line, line)
		}
	}
}

func TestJavaNames(t *testing.T) {
	for descriptor, want := range map[string]string{
		"()V": "()", "(I)J": "(int)", "([[BZLjava/lang/String;D)V": "(byte[][], boolean, java.lang.String, double)",
		"([Ljava/util/Map$Entry;)Ljava/util/Map;": "(java.util.Map$Entry[])", "(Q)V": "", "(Ljava/lang/String": "",
	} {
		if got := javaParameters(descriptor); got != want {
			t.Errorf("%s: %s, want %s", descriptor, got, want)
		}
	}
	for class, want := range map[string]string{
		"Main": "Main", "java/util/HashMap$Node": "java.util.HashMap$Node",
		"a/B$$Lambda$14+0x0000000800c03000": "a.B$$Lambda$14", "+0x1": "+0x1",
	} {
		if got := javaClass(class); got != want {
			t.Errorf("%s: %s, want %s", class, got, want)
		}
	}
}

// Between two addresses that are told of, the calls are known that both are in.
func TestCommonCalls(t *testing.T) {
	call := func(method uint64, bci int) javaCall { return javaCall{method, bci, bci} }
	for name, test := range map[string]struct{ a, b, want []javaCall }{
		"none":            {nil, []javaCall{call(1, 0)}, nil},
		"the same":        {[]javaCall{call(2, 5), call(1, 7)}, []javaCall{call(2, 5), call(1, 7)}, []javaCall{call(2, 5), call(1, 7)}},
		"other bytecodes": {[]javaCall{call(2, 5), call(1, 7)}, []javaCall{call(2, 9), call(1, 7)}, []javaCall{{2, 5, 9}, call(1, 7)}},
		"another call":    {[]javaCall{call(2, 5), call(1, 7)}, []javaCall{call(2, 5), call(1, 8)}, []javaCall{{1, 7, 8}}},
		"another method":  {[]javaCall{call(2, 5), call(1, 7)}, []javaCall{call(3, 5), call(1, 7)}, []javaCall{call(1, 7)}},
		"less":            {[]javaCall{call(1, 7)}, []javaCall{call(2, 5), call(1, 7)}, []javaCall{call(1, 7)}},
	} {
		if got := commonCalls(test.a, test.b); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// Scopes may say anything.
func TestScopes(t *testing.T) {
	pointers := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 100), 200)
	data := []byte{0xee, 0, 1, 8, 1, 2, 4, 7, 1, 1, 0, 2, 1}
	// At 1 the method itself, bytecode 7; at 4 what was inlined there; at 7 what is in itself; at 10
	// what is in no method of this.
	s := scopeReader{data: data, pointers: pointers, method: 100}
	for at, want := range map[uint32][]javaCall{
		0: {{100, noBytecode, noBytecode}}, 1: {{100, 7, 7}}, 4: {{200, 3, 3}, {100, 7, 7}}, 7: nil, 10: nil, 12: nil, 13: nil, 1 << 31: nil,
	} {
		if got := s.chain(nil, at); !slices.Equal(got, want) {
			t.Errorf("at %d: %v, want %v", at, got, want)
		}
	}
	if got := (&scopeReader{data: data, method: 100}).chain(nil, 1); got != nil {
		t.Errorf("without pointers: %v", got)
	}
}

// Where an nmethod has its scopes is told by its beginning, in each of the ways that there are.
func TestScopeRanges(t *testing.T) {
	const header, far, further = 0x1000, 0x7000, 0x9000
	head := make([]byte, 64)
	for at, v := range map[int]uint32{0: 0x100, 4: 0x300, 8: 0x200, 12: 0x400, 16: 0x180} {
		binary.LittleEndian.PutUint32(head[at:], v)
	}
	for at, v := range map[int]uint64{24: header + 0x300, 32: far, 40: further} {
		binary.LittleEndian.PutUint64(head[at:], v)
	}
	for name, test := range map[string]struct {
		fields methodFields
		want   scopeRanges
	}{
		"JDK 8": {
			methodFields{layout: scopesByOffset, metadata: 0, scopesData: 8, scopesPCs: 4, scopesEnd: 12},
			scopeRanges{pointers: byteRange{0x1100, 0x1200}, data: byteRange{0x1200, 0x1300}, descs: byteRange{0x1300, 0x1400}},
		},
		"JDK 9 to 22": {
			methodFields{layout: scopesByAddress, metadata: 0, scopesData: 24, scopesPCs: 12, scopesEnd: 12},
			scopeRanges{pointers: byteRange{0x1100, 0x1300}, data: byteRange{0x1300, 0x1400}, descs: byteRange{0x1400, 0x1400}},
		},
		"from JDK 25 on": {
			methodFields{layout: scopesApart, immutable: 32, mutable: 40, metadata: 0, mutableBytes: 16, scopesPCs: 8, scopesData: 4, scopesEnd: 12},
			scopeRanges{pointers: byteRange{0x9100, 0x9180}, data: byteRange{0x7300, 0x7400}, descs: byteRange{0x7200, 0x7300}},
		},
	} {
		if got := test.fields.rangesOf(header, head); got != test.want {
			t.Errorf("%s: %x, want %x", name, got, test.want)
		}
	}
	var b []byte
	for _, r := range []byteRange{{2, 1}, {0, maxScopesBytes + 1}, {1 << 63, 1}} {
		if r.read(&machine{mem: &onesMemory{}}, &b) {
			t.Errorf("%x was read", r)
		}
	}
}

// What the virtual machine tells of itself.
func TestJavaVersion(t *testing.T) {
	t.Parallel()
	steptest.NeedPtrace(t)
	testenv.EachJava(t, testJavaVersion)
}

func testJavaVersion(t *testing.T, java testenv.Program) {
	for name, test := range map[string]struct {
		flags []string
		all   bool
	}{
		"default":            {nil, false},
		"DebugNonSafepoints": {[]string{"-XX:+UnlockDiagnosticVMOptions", "-XX:+DebugNonSafepoints"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			classes := testenv.CompileJava(t, java, filepath.Join("..", "..", "testdata", "walk", "Busy.java"))
			command := java.Command(append(test.flags, "-cp", classes, "Busy", "600000")...)
			cmd := exec.Command(command[0], command[1:]...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			p, err := procstate.Attach(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Detach()
			s, w := New(nil), unwind.NewWalker(p, unwind.NewGroup(), nil)
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				vm := s.findMachine(w)
				if vm.fields == nil || vm.array == 0 {
					if time.Now().After(deadline) {
						t.Fatal("no virtual machine")
					}
					_ = p.Libraries().Update()
					continue
				}
				if vm.fields.method == nil || vm.fields.method.flags == 0 {
					t.Fatal("the fields of methods, or flags, are not there")
				}
				if all := vm.tellsAll(); all != test.all {
					if time.Now().After(deadline) {
						t.Fatalf("tells of all code: %v", all)
					}
					continue // it has not looked at its arguments yet
				}
				command = java.Command("-version")
				out, _ := exec.Command(command[0], command[1:]...).CombinedOutput()
				excluded, want := vm.compressed().excluded, fmt.Sprintf("(build %d", vm.names.version)
				if vm.fields.oneHeap {
					want = "(build 1.8."
				}
				if !strings.Contains(string(out), want) || excluded != 0 && vm.names.version < 20 {
					t.Errorf("no %q in %s, or %d of numbers", want, out, excluded)
				}
				return
			}
		})
	}
}

// busyHeader is memory from 0 on of which a word changes with each read.
type busyHeader struct {
	procstate.ProcessState
	bytes []byte
	word  int
}

func (m *busyHeader) ReadMemory(addr uint64, buf []byte) (int, error) {
	m.bytes[m.word]++
	return copy(buf, m.bytes[addr:]), nil
}

// The scopes of an nmethod are read while other fields of its header change, as they do while it is used, but not when it is
// another one by then.
func TestScopesOfBusy(t *testing.T) {
	f := &methodFields{layout: scopesByOffset, metadata: 8, scopesData: 12, scopesPCs: 16, scopesEnd: 20, compiled: 32, compileID: 40}
	const busy, ranges = 24, 1024
	for word, want := range map[int]bool{busy: true, int(f.compileID): false} {
		mem := &busyHeader{bytes: make([]byte, 4<<10), word: word}
		for i, field := range []uint64{f.metadata, f.scopesData, f.scopesPCs, f.scopesEnd} {
			binary.LittleEndian.PutUint32(mem.bytes[field:], uint32(ranges+64*i))
		}
		b := &codeBlob{method: 1 << 20, id: 7}
		binary.LittleEndian.PutUint64(mem.bytes[f.compiled:], b.method)
		binary.LittleEndian.PutUint32(mem.bytes[f.compileID:], b.id)
		vm := &machine{mem: mem, fields: &vmFields{method: f}}
		var scopes javaScopes
		if got := vm.readScopes(b, &scopes); got != want {
			t.Errorf("byte %d changes: %v", word, got)
		} else if want && (len(scopes.data) != 64 || len(scopes.descs) != 64) {
			t.Errorf("%d and %d bytes", len(scopes.data), len(scopes.descs))
		}
	}
}

// What such memory tells of a compiled method: its name, what was inlined, and lines.
func TestMadeUpJava(t *testing.T) {
	jvm := steptest.OpenImage(t, steptest.FakeJVM(t))
	memory, _ := steptest.NewFakeJVMHeap()
	mem := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	mem.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: steptest.FakeJVMHeap, Data: memory}})
	read := func(addr uint64, buf []byte) bool {
		n, err := mem.ReadMemory(addr, buf)
		return err == nil && n == len(buf) || jvm.ReadVaddr(buf, addr) == nil
	}
	vm := &machine{mem: mem, fields: findVMFields(jvm, 0, read), image: jvm}
	vm.heaps = []codeHeap{{low: steptest.FakeJVMHeap, high: steptest.FakeJVMHeap + 0x400, segments: steptest.FakeJVMHeap + 0x900, log2: 7}}
	vm.names.version = 17
	lines := func(pc uint64, interrupted bool) (out []string) {
		b := vm.blobAt(steptest.FakeJVMHeap + pc)
		if b == nil {
			t.Fatal("no method")
		}
		for _, l := range vm.compiledLines(b, steptest.FakeJVMHeap+pc, interrupted) {
			out = append(out, fmt.Sprintf("%s%s %s:%d", l.Name, l.Parameters, l.File, l.Line))
		}
		return out
	}
	const inner, outer, unknown = "p.A.run() p/A.java:10", "p.A.run() p/A.java:13", "p.A.run() p/A.java:0"
	for _, test := range []struct {
		pc          uint64
		interrupted bool
		want        []string
	}{
		{128 + 17, false, []string{inner, outer}},
		{128 + 14, true, []string{inner, outer}}, // between two that say so
		{128 + 17, true, []string{unknown}},      // there is none behind it
		{128 + 14, false, []string{unknown}},     // no call returns there
		{128 + 2, true, []string{unknown}},
	} {
		if got := lines(test.pc, test.interrupted); !slices.Equal(got, test.want) {
			t.Errorf("at %d, interrupted %v: %q, want %q", test.pc-128, test.interrupted, got, test.want)
		}
	}
	memory[0xb00]++ // a scope of another method is not believed,
	vm.names.kept = [keptScopes]javaScopes{}
	if got := lines(128+17, false); !slices.Equal(got, []string{unknown}) {
		t.Errorf("with another method's scopes %q", got)
	}
	memory[16+40]++ // and this is none
	if got := lines(128+17, false); got != nil {
		t.Errorf("of what is no method %q", got)
	}
}

// Tables that a virtual machine has not filled in yet tell of nothing.
func TestTablesTooEarly(t *testing.T) {
	jvm := steptest.OpenImage(t, steptest.FakeJVM(t))
	filled := func(addr uint64, buf []byte) bool { return jvm.ReadVaddr(buf, addr) == nil }
	empty := func(addr uint64, buf []byte) bool {
		if !filled(addr, buf) {
			return false
		}
		if len(buf)%vmStructBytes == 0 {
			for entry := range slices.Chunk(buf, vmStructBytes) {
				if isStatic := binary.LittleEndian.Uint32(entry[24:]); isStatic == 0 {
					clear(entry[32:40])
				}
			}
		}
		return true
	}
	if findVMFields(jvm, 0, filled) == nil || findVMFields(jvm, 0, empty) != nil {
		t.Error("fields are known, or are not")
	}
}

// What is known of a file that is not kept goes, and nothing else does.
func TestForgetImages(t *testing.T) {
	frames := &forgetful{}
	s := New(frames)
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	s.fields.Put(gone, &vmFields{})
	s.fields.Put(stays, &vmFields{})
	s.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if s.fields.Get(gone) != nil || s.fields.Get(stays) == nil || frames.forgot != 1 {
		t.Error("the wrong file was forgotten")
	}
	(&Stepper{}).ForgetImages(func(uint32) bool { return false }) // and nothing is known
}

// forgetful counts how often it has been told to forget.
type forgetful struct{ forgot int }

func (f *forgetful) IsFrameSet(*unwind.Walker, *unwind.Frame) (set, known bool) { return false, false }
func (f *forgetful) ForgetImages(func(uint32) bool)                             { f.forgot++ }
