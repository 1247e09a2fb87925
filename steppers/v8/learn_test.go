package v8

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Types are learned from a function that all leads back to, and from nothing less.
func TestV8Learn(t *testing.T) {
	made := func() (m *memory, function, callee uint64) {
		m = newMemory(make([]byte, 1<<14))
		function, callee, _, _ = m.fill()
		meta := m.room(32)
		m.put(meta, meta+1)
		for _, is := range m.maps {
			m.put(is, meta+1)
		}
		f := m.vm.fields
		for _, typ := range []*uint16{&f.sharedType, &f.bytecodeType, &f.codeType, &f.streamType, &f.scopeType, &f.scriptType, &f.listType} {
			*typ = noType
		}
		f.scriptFunctions = 0
		return m, function, callee
	}
	m, function, callee := made()
	want := fields136()
	if m.vm.learn(callee); m.vm.fields.sharedType != want.sharedType {
		t.Fatalf("learned %+v", m.vm.fields)
	}
	f := m.vm.fields
	if f.bytecodeType != want.bytecodeType || f.scopeType != want.scopeType || f.scriptType != want.scriptType || f.listType != want.listType ||
		f.scriptFunctions != want.scriptFunctions || f.plainLengths {
		t.Errorf("learned %+v", f)
	}
	if fn := m.vm.functionAt(function); fn == nil || fn.Name != "f" || fn.StartLine != 2 {
		t.Errorf("the function is %+v", fn)
	}
	word := func(m *memory, object, at uint64) uint64 {
		return binary.LittleEndian.Uint64(m.b[object-1+at-base:])
	}
	for name, spoil := range map[string]func(m *memory, function uint64){
		"another's script": func(m *memory, function uint64) {
			list := word(m, word(m, function, want.script), want.scriptFunctions)
			m.put(list-1+v8Data, function+32|2)
			m.put(list-1+v8Data+8, function+32|2)
		},
		"no map": func(m *memory, function uint64) { m.put(m.maps[want.sharedType], 0) },
		"bytecode cut short": func(m *memory, function uint64) {
			m.put(word(m, function, v8FunctionData)-1+v8Length, small(1))
		},
		"a scope beyond the source": func(m *memory, function uint64) {
			m.put(word(m, function, want.name)-1+v8ScopeFlags+8*(v8ScopeStart+1), small(1000))
		},
	} {
		m, function, callee := made()
		if spoil(m, function); true {
			m.vm.learn(callee)
		}
		if m.vm.fields.sharedType != noType {
			t.Errorf("%s: learned", name)
		}
	}
	for version, known := range map[[2]int]bool{{12, 8}: false, {12, 9}: true, {13, 7}: true, {15, 0}: true, {15, 1}: false, {16, 0}: false} {
		if f := embeddedFields(version, want.sizes); (f != nil) != known {
			t.Errorf("version %v is known: %v", version, f != nil)
		}
	}
}

// What says where V8's own functions are, in the middle of other data.
func TestV8Blob(t *testing.T) {
	const n = minBuiltins + 10
	var want []builtinRange
	at := uint32(0)
	for i := range uint32(n) {
		l := builtinRange{at, 20 + i%200}
		want = append(want, l)
		at = l.end(2 * blobAlign)
	}
	want[3], want[5] = want[5], want[3] // they need not be in order
	for _, entry := range []int{layoutBytes, layoutBytes10, layoutBytes11} {
		var table []byte
		for i, l := range want {
			table = binary.LittleEndian.AppendUint32(table, l.start)
			table = binary.LittleEndian.AppendUint32(table, l.size)
			table = binary.LittleEndian.AppendUint32(table, uint32(7*i))
			table = append(table, make([]byte, entry-layoutBytes)...)
		}
		data := slices.Concat([]byte("is_iterable()\x00"), bytes.Repeat([]byte{1}, 18), table, bytes.Repeat([]byte{0xff}, 40))
		for _, of := range []int{layoutBytes, layoutBytes10, layoutBytes11} {
			found := findLayouts(data, of, true)
			if is := len(found) == 1 && slices.Equal(found[0], want); is != (of == entry) {
				t.Errorf("entries of %d bytes, taken for %d: %d tables", entry, of, len(found))
			}
		}
		cut := data[:bytes.Index(data, table)+(minBuiltins+2)*entry+4]
		for isMore, want := range map[bool]int{true: 0, false: 1} {
			if found := findLayouts(cut, entry, isMore); len(found) != want {
				t.Errorf("table that the data end in, with more behind %v: %d tables", isMore, len(found))
			}
		}
		binary.LittleEndian.PutUint32(data[bytes.Index(data, table)+entry*(n/2)+4:], 1<<10)
		if found := findLayouts(data, entry, true); len(found) != 0 {
			t.Errorf("functions that lie on each other: %d tables", len(found))
		}
	}
	data := []byte("is_iterable()\x00-rusty\x00\x0015.0.245.2-rusty\x00")
	if got := versionIn(data); got != [2]int{15, 0} {
		t.Errorf("version %v", got)
	}
	sizes := [3][]byte{{1, 1, 1, 1, 1, 2, 3, 4, 5, 5, 6, 9}, {1, 1, 1, 1, 1, 3, 5, 7, 9, 7, 9, 8}, {1, 1, 1, 1, 1, 5, 9, 13, 17, 11, 15, 7}}
	all := slices.Concat([]byte{0, 1}, sizes[0], sizes[1], sizes[2])
	for i, got := range bytecodeSizes(all) {
		if !bytes.Equal(got, sizes[i]) {
			t.Errorf("sizes %d: %v", i, got)
		}
	}
	if got := bytecodeSizes(all[:len(all)-1]); got[0] != nil {
		t.Errorf("sizes that are cut short: %v", got)
	}
}

// What V8's own functions are called is read from the file, or from a process that has made that table itself.
func TestBuiltinNames(t *testing.T) {
	testenv.Needs(t, "gcc")
	dir := t.TempDir()
	source, library := filepath.Join(dir, "names.c"), filepath.Join(dir, "names.so")
	want := []string{"RecordWrite", "InterpreterEntryTrampoline", "ArrayMap", "MovExtraWideHandler"}
	text := `struct { const char *name; long kind, entry; } names[] = { {"not a name"}, {"` + strings.Join(want, `"}, {"`) + `"}, {"` + strings.Repeat("long", 64) + `"} };` // names are read as far as the longest may be
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Run(t, exec.Command("gcc", "-shared", "-nostdlib", "-o", library, source))
	var st syscall.Stat_t
	if err := syscall.Stat(library, &st); err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImages(1).Open(&procstate.FileRef{Path: library, Dev: st.Dev, Inode: st.Ino})
	if err != nil {
		t.Fatal(err)
	}
	words, named := map[uint64]uint64{}, uint64(0)
	eachRelative(im, func(vaddr, value uint64) {
		words[vaddr] = value
		if builtinName(im, value) == want[1] {
			named = vaddr
		}
	})
	if place := placeOf(im, words[named]); named == 0 || place != named {
		t.Fatalf("the name is at %#x, not %#x", place, named)
	}
	if got := builtinNames(im, named, len(want)); !slices.Equal(got, want) {
		t.Errorf("in the file: %q", got)
	}
	const bias = 0x7f0000000000
	isMade := false
	read := func(addr uint64, b []byte) bool {
		for off := 0; off+8 <= len(b); off += 8 {
			value := uint64(0)
			if v, ok := words[addr+uint64(off)-bias]; ok && isMade {
				value = v + bias
			}
			binary.LittleEndian.PutUint64(b[off:], value)
		}
		return true
	}
	if got := builtinNamesNow(im, bias, named, len(want), read); got != nil {
		t.Errorf("in a process that has not made the table yet: %q", got)
	}
	isMade = true
	if got := builtinNamesNow(im, bias, named, len(want), read); !slices.Equal(got, want) {
		t.Errorf("in a process: %q", got)
	}
	if got := builtinNamesNow(im, bias, named, len(want), func(uint64, []byte) bool { return false }); got != nil {
		t.Errorf("in a process that has ended: %q", got)
	}
}
