package jsc

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
)

// Hashes as the reference implementation has them, of text of so many characters.
func TestWyhash(t *testing.T) {
	const text = "The quick brown fox jumps over the lazy dog, and then over all that is in its way, and is gone far away."
	for n, want := range map[int]uint64{
		0: 0x409638ee2bde459, 1: 0xf30049d0446bf2ae, 3: 0x314c66b6405b584, 4: 0x622646877058d82e, 7: 0x6c8665b6c3ac1861, 8: 0x9d8f352881451a37,
		16: 0xc91b9e743a108f51, 17: 0x57a5a9803eb39c82, 32: 0x47c6ccd9d12598b9, 47: 0xfb5798dcd5674f26, 48: 0xb13eee834feb9d2f, 49: 0xb6bde0912395e28a,
		64: 0x7fd675840eba8c6b, 96: 0x63b980bf944eb57f, 97: 0xf0133f32236948ce, 104: 0xb8d863561047c6e2,
	} {
		if got := wyhash(text[:n]); got != want {
			t.Errorf("%d: %#x, want %#x", n, got, want)
		}
	}
}

// The places that Bun 1.4.2 and 1.4.3 have of the same function, and words of all kinds.
func TestJSCExpressions(t *testing.T) {
	const source = "() {\n  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);\n}"
	words := map[uint8][]uint32{
		7:  {0xce1c0b9, 0x8401c59f, 0x3542809f, 0x8564409f, 0xb405439f, 0x52a39a9f, 0x6b13309f},
		11: {0xc0e0700, 0x84000705, 0x34140a00, 0x84161100, 0xb4001503, 0x53ea0e1a, 0x6bf10c30},
	}
	for bits, words := range words {
		for instruction, want := range map[uint32]string{
			0: ".wait(", 1: ".wait(", 17: ".wait(", 84: "(new Int32Array", 1000: "(new Int32Array",
		} {
			r := expressionReader{words: words, wordLayout: wordLayout{divotBits: bits, hasLines: bits == 7}}
			at, places, ok := r.find(instruction, uint32(len(source)))
			if !ok || places != len(words) || !startsAt(source, at.divot, want) {
				t.Errorf("%d bits, at %d: %d of %d places, %v: %.20q", bits, instruction, at.divot, places, ok, source[min(at.divot, 60):])
			}
			if r.hasLines && (at.line != 1 || at.column != at.divot-uint32(strings.Index(source, "\n")+1)) {
				t.Errorf("at %d: %+v", instruction, at)
			}
		}
	}
	const zero = 0x40 << 20 // no distance, in 7 bits
	basic := func(instruction uint32, divot int32) uint32 { return instruction<<27 | uint32(divot+64)<<20 }
	wideWord := func(multi, rest uint32) uint32 { return wide<<27 | multi<<26 | rest }
	type place struct{ instruction, divot uint32 }
	for name, c := range map[string]struct {
		words []uint32
		aside int
		want  []place
		fails bool
	}{
		"two":           {words: []uint32{basic(1, 5), basic(29, -3)}, want: []place{{1, 5}, {30, 2}}},
		"one field":     {words: []uint32{wideWord(0, 1<<23|3000), basic(1, 2), wideWord(0, 1<<23|(1<<23-1000)), basic(1, 0)}, want: []place{{1, 3002}, {2, 2002}}},
		"others":        {words: []uint32{wideWord(0, 3<<23|3000), wideWord(0, 4<<23|5), basic(1, 2)}, want: []place{{1, 2}}},
		"two fields":    {words: []uint32{wideWord(1, 0<<23|1000<<13|1<<10|1023), basic(1, 2)}, want: []place{{1001, 1}}},
		"whole words":   {words: []uint32{wideWord(1, 7<<23|3<<18|0<<15|2<<12|1<<9), 70000, 9, 80000, basic(1, 2)}, want: []place{{70001, 80002}}},
		"a chapter":     {words: []uint32{basic(9, 9), special<<27 | 70000, basic(1, 3)}, want: []place{{9, 9}, {70001, 3}}},
		"aside":         {words: []uint32{special<<27 | 1<<26 | 3, basic(1, 3), basic(2, 2), wideWord(0, 0<<23|40), wideWord(0, 7<<23)}, aside: 2, want: []place{{41, 3}, {43, 5}}},
		"the last word": {words: []uint32{special<<27 | 1<<26 | 2, basic(2, 2), wideWord(0, 0<<23|40), basic(1, 3)}, aside: 2, want: []place{{41, 3}, {43, 5}}},
		"no end":        {words: []uint32{basic(1, 1), wideWord(0, 0<<23|40)}, want: []place{{1, 1}}, fails: true},
		"no fields":     {words: []uint32{wideWord(1, 7<<23), basic(1, 1)}, fails: true},
		"cut":           {words: []uint32{wideWord(1, 7<<23|2<<18|1<<12), 1}, fails: true},
		"far aside":     {words: []uint32{special<<27 | 1<<26 | 9, basic(1, 1)}, fails: true},
		"back":          {words: []uint32{basic(1, 1), special<<27 | 1<<26}, want: []place{{1, 1}}, fails: true},
		"end of none":   {words: []uint32{wideWord(0, 7<<23), basic(1, 1)}, fails: true},
	} {
		r := &expressionReader{words: c.words, aside: c.aside, wordLayout: wordLayout{divotBits: 7}}
		var got []place
		for r.read() {
			got = append(got, place{r.instruction, r.divot})
		}
		if fails := r.next != len(c.words)-c.aside; !slices.Equal(got, c.want) || fails != c.fails {
			t.Errorf("%s: %v, fails %v; want %v, %v", name, got, fails, c.want, c.fails)
		}
	}
	for name, words := range map[string][]uint32{
		"behind the function":   {basic(1, 50), basic(1, 60)},
		"before it":             {basic(1, 1), basic(1, -2)},
		"instructions go back":  {basic(9, 1), special<<27 | 5, zero},
		"what is none":          {basic(1, 1), wideWord(1, 7<<23)},
		"none":                  {},
		"an instruction is far": {basic(1, 1), wideWord(1, 7<<23|1<<18|0<<15), 1<<32 - 1, zero},
	} {
		if at, _, ok := (&expressionReader{words: words, wordLayout: wordLayout{divotBits: 7}}).find(1, 100); ok {
			t.Errorf("%s: %+v", name, at)
		}
	}
}

// startsAt reports whether a function has so many characters before this.
func startsAt(source string, n uint32, with string) bool {
	return int(n)+len(with) <= len(source) && source[n:int(n)+len(with)] == with
}

// mapFile reads what Bun has kept of testdata/places.ts: 1.3.6 as others do, 1.4.5 in windows.
func mapFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Both kinds of maps, which two versions of Bun have made of the same file, say the same of every place.
func TestJSCSourceMaps(t *testing.T) {
	m := newTest()
	text, windows := mapFile(t, "places.vlq"), mapFile(t, "places.windows")
	const atText, atWindows = testHeap + 1<<20, testHeap + 2<<20
	m.Put(atText, text...)
	m.Put(atWindows, windows...)
	vm, known, lines := m.vm(), 0, map[int]bool{}
	for line := range uint32(60) {
		for column := range uint32(90) {
			at := sourcePlace{line, column}
			want, ok1 := vm.lineInText(atText, 1, at)
			got, ok2 := vm.lineInWindows(atWindows, at)
			if got != want || ok1 != ok2 {
				t.Fatalf("%v: %d %v and %d %v", at, want, ok1, got, ok2)
			}
			if ok1 {
				known++
				lines[got] = true
			}
		}
	}
	if known < 1000 || len(lines) < 15 || !lines[20] || lines[1] || lines[8] { // of which there is nothing in the text
		t.Errorf("%d places in lines %v", known, lines)
	}
	if _, ok := vm.lineInWindows(atText, sourcePlace{}); ok {
		t.Error("other text is windows")
	}
	for n := range windows { // cut
		m.Put(atWindows, windows...)
		m.Words(atWindows, uint64(n))
		if line, ok := vm.lineInWindows(atWindows, sourcePlace{2, 3}); ok && n != len(windows) {
			// What is in the first window may be known still.
			if whole, _ := vm.lineInText(atText, 1, sourcePlace{2, 3}); line != whole || uint64(n) < 80+32 {
				t.Errorf("cut to %d: %d", n, line)
			}
		}
	}
	text = text[mapHeader:]
	for n := range bytes.LastIndexByte(text, 'A') { // the last mapping's
		if places, ok := mappingsIn(text[:n]); ok && len(places) == 0x5e {
			t.Errorf("cut to %d: all mappings", n)
		}
	}
}

// The table of Bun's own machine is found by the path, as Zig has it and as Rust has.
func TestJSCSourceMapTable(t *testing.T) {
	const path = "/app/a.ts"
	m := newTest()
	m.Put(testHeap+1<<20, mapFile(t, "places.vlq")...)
	global := m.sourceMap(path, false, 1023<<tagShift|(testHeap+1<<20))
	place := sourcePlace{2, 3}
	vm := m.vm()
	want, ok := vm.lineInText(testHeap+1<<20, 1, place)
	if !ok {
		t.Fatal("no line")
	}
	m.Put(testHeap+2<<20, mapFile(t, "places.windows")...)
	lists := m.alloc()
	m.Words(lists, 40, lists+0x100, 2, 3, 0)
	m.Words(lists+0x100, 2|1<<32, 2|4<<32, 0, uint64(want-1), 70)
	shared := m.alloc()
	m.Words(shared+0x48, 1, testHeap+2<<20)
	for name, c := range map[string]struct {
		isRust bool
		value  uint64
		want   bool
	}{
		"Zig, text":              {false, 1023<<tagShift | (testHeap + 1<<20), true},
		"Zig, windows":           {false, 1020<<tagShift | (testHeap + 2<<20), true},
		"Zig, lists":             {false, tagParsed<<tagShift | lists, true},
		"Rust, windows":          {true, 1022<<tagShift | (testHeap + 2<<20), true},
		"Rust, windows, shared":  {true, tagParsed<<tagShift | shared, true},
		"Rust, a map of its own": {true, tagParsed<<tagShift | lists, false},
		"neither":                {true, 1023<<tagShift | global, false},
	} {
		m.sourceMap(path, c.isRust, c.value)
		vm := m.vm()
		line, ok := vm.lineInFile(global, path, place)
		if ok != c.want || ok && line != want {
			t.Errorf("%s: %d %v, want %d", name, line, ok, want)
		}
		if _, ok := vm.lineInFile(global, path+"x", place); ok {
			t.Errorf("%s: another file has a line", name)
		}
	}
	m.Words(lists, 1<<31-1)
	m.sourceMap(path, false, tagParsed<<tagShift|lists)
	if line, ok := m.vm().lineInFile(global, path, place); ok {
		t.Errorf("line %d by a map that came with the file", line)
	}
}

// sourceMap makes a global object, always the same, and a table with one file.
func (m *test) sourceMap(path string, isRust bool, value uint64) (global uint64) {
	global = testHeap + 4<<20
	const machine, table, places, room = testHeap + 5<<20, testHeap + 5<<20 + 0x1008, testHeap + 6<<20, 8
	m.Words(global, make([]uint64, globalBytes/8)...)
	m.Words(global+0xd70, machine)
	m.Words(machine, make([]uint64, machineBytes/8)...)
	m.Words(machine+0x70, global)
	m.Words(places, make([]uint64, 0x100)...)
	key := wyhash(path)
	if isRust {
		m.Words(table-8, room, places, room, 1|5<<32)
		m.Words(places+3*24, 1, key, value)
		m.Words(places+4*24, 0, key, 0) // no more there
		return global
	}
	const keys = places + 0x20 + room
	m.Words(places+8, keys+8*room, keys, room)
	m.Words(table, places+0x20, 1|5<<32)
	m.Put(places+0x20, 0, 0, 0, 0x80)
	m.Words(keys+8*2, key, key)
	m.Words(keys+8*room+8*3, value)
	return global
}

// A frame that has called has its function's line, in all layouts.
func TestJSCLines(t *testing.T) {
	const path = "/app/a.ts"
	text := "let x;\nfunction sum(v) {\n  return call(v);\n}\n"
	start, divot := uint64(16), uint64(17) // the text has the call in line 3
	for i, l := range expressionLayouts {
		for _, isWide := range []bool{false, true} {
			m := newTest()
			m.Put(testHeap+1<<20, mapFile(t, "places.vlq")...)
			global := m.sourceMap(path, i == 2, 1023<<tagShift|(testHeap+1<<20))
			e, unlinked := m.executable(unlinkeds[min(i, 1)], m.atom("sum"), 0)
			provider, _ := m.ReadWord(e + scriptSource)
			m.Words(provider+sourceURL, m.text(path, 4))
			str := m.text(text, 4)
			if isWide {
				m.Words(str+16, 0)
				for i, c := range text {
					m.Put(str+0x20+2*uint64(i), byte(c), 0)
				}
			}
			m.Words(provider+0xa8, m.text(path, 4), 0, str)
			m.Words(e+scriptSource+8, start|uint64(len(text)-2)<<32, 1|9<<32)
			words := m.alloc()
			m.Words(unlinked+l.at, words)
			m.Words(words+l.counts, 3<<32)
			shift := 32 - instructionBits - l.divotBits
			word := func(instruction, divot uint64) uint64 {
				word := instruction<<27 | (divot+1<<(l.divotBits-1))<<shift&(1<<27-1)
				if l.hasLines && divot == 17 { // the next line, in its column 7
					word |= (1+4)<<5 | (7 + 16)
				} else if l.hasLines {
					word |= 4<<5 | columnDivot
				}
				return word
			}
			inCache := m.alloc()
			m.Words(inCache, word(1, divot)|word(2, 2)<<32, word(3, 1))
			if isWide && l.mayBorrow {
				m.Words(words+l.words-8, inCache)
			} else {
				m.Words(words+l.words, word(1, divot)|word(2, 2)<<32, word(3, 1))
			}
			b := m.block("FunctionCodeBlock", e, unlinked, baseline, testMade+0x5000, 0x100)
			m.Words(b+blockGlobal, global)
			vm := m.vm()
			want, _ := vm.lineInText(testHeap+1<<20, 1, sourcePlace{2, 33 - 26})
			lines, ok := m.names(vm, b, m.function(e), framePoint{pc: testMade + 0x5010, calls: true})
			if !ok || len(lines) != 1 || lines[0].Line != want || want == 0 {
				t.Errorf("%d, wide %v: %v, want line %d", i, isWide, lines, want)
			}
			lines, ok = m.names(vm, b, m.function(e), framePoint{pc: testMade + 0x5010})
			if !ok || len(lines) != 1 || lines[0].Line != 0 {
				t.Errorf("%d: %v, where nothing was called", i, lines)
			}
			m.Words(provider+0xa8, m.text(text, 4))
			lines, _ = m.names(m.vm(), b, m.function(e), framePoint{pc: testMade + 0x5010, calls: true})
			if isKnown := lines[0].Line != 0; isKnown != l.hasLines { // which needs no text
				t.Errorf("%d: %v of two texts", i, lines)
			}
		}
	}
}

func TestJSCLineStarts(t *testing.T) {
	var chars []uint16
	for _, c := range "ab\nc\r\nd\re\u2028f\u2029\n" {
		chars = append(chars, uint16(c))
	}
	if got, want := lineStarts(chars), []uint32{0, 3, 6, 8, 10, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
}

// FuzzJSCPlaces has all that tells of places be anything.
func FuzzJSCPlaces(f *testing.F) {
	f.Add(mapFile(f, "places.vlq"), uint32(3), uint32(4))
	f.Add(mapFile(f, "places.windows"), uint32(9), uint32(40))
	f.Add([]byte{0x00, 0x07, 0x0e, 0x0c, 0xff, 0xff, 0xff, 0xff}, uint32(0), uint32(1))
	f.Fuzz(func(t *testing.T, b []byte, line, column uint32) {
		at := sourcePlace{line, column}
		m := &test{Memory: steptest.Memory{}, arch: newTest().arch, structures: map[string]uint64{}}
		m.Put(testHeap, b...)
		vm := m.vm()
		vm.lineInWindows(testHeap, at)
		vm.lineInText(testHeap, 1, at)
		vm.lineInList(testHeap, at)
		if len(b) > mapHeader {
			mappingsIn(b[mapHeader:])
		}
		if len(b) > windowEntry+windowHeader {
			lineInWindow(b, b[windowEntry:], int(b[windowEntry]), at)
		}
		var words []uint32
		for ; len(b) >= 4; b = b[4:] {
			words = append(words, binary.LittleEndian.Uint32(b))
		}
		for _, l := range expressionLayouts {
			r := expressionReader{words: words, aside: min(int(line%8), len(words)), wordLayout: l.wordLayout}
			if _, places, ok := r.find(column, 1<<20); ok && places > len(words) {
				t.Errorf("%d places in %d words", places, len(words))
			}
		}
	})
}
