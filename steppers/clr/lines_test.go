package clr

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/dotnet"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// bytesAt is memory at an address, with zeros behind it.
type bytesAt struct {
	base uint64
	data []byte
}

func (m bytesAt) ReadMemory(addr uint64, buf []byte) (int, error) {
	if addr-m.base >= uint64(len(m.data)) {
		return 0, io.EOF
	}
	clear(buf[copy(buf, m.data[addr-m.base:]):])
	return len(buf), nil
}

func (m bytesAt) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	ok := m.read(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

func (m bytesAt) read(addr uint64, buf []byte) bool {
	n, err := m.ReadMemory(addr, buf)
	return err == nil && n == len(buf)
}

// storeNibbles stores numbers three bits at a time.
func storeNibbles(numbers ...uint32) (b []byte) {
	var all []byte
	for _, v := range numbers {
		n := max(bits.Len32(v)+2, 3) / 3
		for i := n - 1; i >= 0; i-- {
			nibble := byte(v>>(3*i)) & 7
			if i > 0 {
				nibble |= 8
			}
			all = append(all, nibble)
		}
	}
	for i, v := range all {
		if i%2 == 0 {
			b = append(b, v)
		} else {
			b[i/2] |= v << 4
		}
	}
	return b
}

// place is a place in code.
type place struct {
	native, il uint32
	isCall     bool
}

// store stores places as debug information has them.
func (form form) store(places []place) []byte {
	last := uint32(0)
	if form == formNibbles {
		numbers := []uint32{uint32(len(places))}
		for _, p := range places {
			source := uint32(2)
			if p.isCall {
				source = 16
			}
			numbers = append(numbers, p.native-last, p.il+3, source)
			last = p.native
		}
		return storeNibbles(numbers...)
	}
	const deltaBits, ilBits = 9, 7
	b := storeNibbles(uint32(len(places)), deltaBits-1, ilBits-1)
	collected, n := uint64(0), 0
	for _, p := range places {
		source := uint64(2)
		if p.isCall {
			source = 1
		}
		collected |= (source | uint64(p.native-last)<<2 | uint64(p.il+3)<<(2+deltaBits)) << n
		last = p.native
		for n += 2 + deltaBits + ilBits; n >= 8; n -= 8 {
			b = append(b, byte(collected))
			collected >>= 8
		}
	}
	if n > 0 {
		b = append(b, byte(collected))
	}
	return b
}

// Numbers are stored as in the examples of the documentation of .NET.
func TestCLRNibbles(t *testing.T) {
	for v, want := range map[uint32]string{0: "\x00", 1: "\x01", 7: "\x07", 8: "\x09", 9: "\x19", 63: "\x7f", 511: "\xff\x07", 512: "\x89\x08", 513: "\x89\x18"} {
		r := nibbles{b: []byte(want)}
		if got := r.number(); got != v || r.failed {
			t.Errorf("% x is %d, not %d", want, got, v)
		}
		r = nibbles{b: storeNibbles(v)}
		if got := r.number(); got != v || r.bytes() != len(r.b) {
			t.Errorf("%d is stored as % x, and read as %d", v, r.b, got)
		}
	}
}

// Code is of the instruction of IL that is told of before it; and what is not so.
func TestCLROffsets(t *testing.T) {
	places := []place{{0, ilProlog, false}, {10, 0, false}, {20, 7, false}, {24, 9, true}, {30, ilNone, false}, {40, 3, false},
		{50, 30, false}, {50, ilEpilog, false}, {60, ilProlog, false}, {70, 12, false}, {70, 11, false}, {300, 8, false}}
	const none = -1
	for native, want := range map[uint32]int{
		0: 0, 9: 0, 10: 0, 19: 0, 20: 7, 24: 7, 29: 7, 30: none, 39: none, 40: 3, 49: 3, 50: 30, 59: 30, 60: none, 69: none, 299: 11, 300: 8, 1 << 20: 8,
	} {
		for _, form := range []form{formNibbles, formPacked} {
			il, ok := ilIn(form.store(places), form, native)
			if ok != (want != none) || ok && int(il) != want {
				t.Errorf("form %d, %d: %d, %v, want %d", form, native, il, ok, want)
			}
		}
	}
	// Of two instructions at the same place it is the last, or from .NET 10 on the first in IL.
	for _, two := range [][]place{{{0, 5, false}, {0, 6, false}}, {{0, 6, false}, {0, 5, false}}} {
		if il, ok := ilIn(formNibbles.store(two), formNibbles, 3); !ok || il != two[1].il {
			t.Errorf("%v: %d, %v", two, il, ok)
		}
		if il, ok := ilIn(formPacked.store(two), formPacked, 3); !ok || il != 5 {
			t.Errorf("%v: %d, %v", two, il, ok)
		}
	}
	for _, form := range []form{formNibbles, formPacked} {
		b := form.store(places)
		for _, damaged := range [][]byte{nil, b[:len(b)-1], append(bytes.Clone(b), 0), append([]byte{0xff, 0xff}, b...)} {
			if il, ok := ilIn(damaged, form, 20); ok {
				t.Errorf("form %d, % x: %d", form, damaged, il)
			}
		}
	}
}

// What .NET 8 has in memory of ObjectEqualityComparer`1.GetHashCode, compiled ahead, is read; and what can stand before places in code.
func TestCLRDebugInfo(t *testing.T) {
	const at = 0x7f0000001000
	b, err := hex.DecodeString("690707212d3ba22662202792c4260202")
	if err != nil {
		t.Fatal(err)
	}
	ahead := debugInfo{at, formNibbles, false}
	for native, want := range map[uint32]int{0: 0, 41: 0, 42: 24, 63: 24, 64: -1, 70: 24, 77: -1} {
		if il, ok := ahead.ilOffset(bytesAt{at, b}.read, native); ok != (want >= 0) || ok && int(il) != want {
			t.Errorf("%d: %d, %v, want %d", native, il, ok, want)
		}
	}
	places := []place{{0, ilProlog, false}, {8, 0, false}, {16, 4, false}}
	for _, form := range []form{formNibbles, formPacked} {
		bounds := form.store(places)
		head := storeNibbles(uint32(len(bounds)), 5)
		changed := storeNibbles(debugInstrumented, 3, uint32(len(bounds)), 5)
		patch := make([]byte, 8)
		if form == formPacked {
			patch = make([]byte, 16)
		}
		patch = append(append(patch, 2, 0, 0, 0), make([]byte, 20+2*4)...)
		for i, b := range [][]byte{
			slices.Concat([]byte{0}, head, bounds),
			slices.Concat([]byte{1}, patch, head, bounds),
			slices.Concat([]byte{0}, changed, []byte{1, 2, 3}, bounds),
			slices.Concat([]byte{2, 3, 0, 0, 0, 7, 7, 7}, head, bounds),
			slices.Concat([]byte{3}, patch, []byte{1, 0, 0, 0, 7}, head, bounds),
			slices.Concat([]byte{4}, head, bounds),
			slices.Concat([]byte{1}, patch, head, bounds[:2]),
		} {
			d := debugInfo{at, form, true}
			il, ok := d.ilOffset(bytesAt{at, b}.read, 17)
			if want := i != 2 && i < 5 || i == 2 && form == formPacked; ok != want || ok && il != 4 {
				t.Errorf("form %d, %d: %d, %v", form, i, il, ok)
			}
		}
	}
}

// storeNative stores a number of an image.
func storeNative(v uint32) []byte {
	for n := range 4 {
		if v < 1<<(7*(n+1)) {
			v = v<<(n+1) | (1<<n - 1)
			return binary.LittleEndian.AppendUint32(nil, v)[:n+1]
		}
	}
	return binary.LittleEndian.AppendUint32([]byte{15}, v)
}

// nativeTree stores elements of an array: those from first on, as many as bit tells.
func nativeTree(elements map[uint32][]byte, first, bit uint32) []byte {
	var there []uint32
	for i := first; i < first+2*bit || i == first; i++ {
		if elements[i] != nil {
			there = append(there, i)
		}
	}
	switch {
	case len(there) == 0:
		return nil
	case bit == 0:
		return elements[first]
	case len(there) == 1:
		return append(storeNative(there[0]%16<<2), elements[there[0]]...)
	}
	left, right := nativeTree(elements, first, bit/2), nativeTree(elements, first+bit, bit/2)
	node := []byte{0}
	for {
		v := uint32(0)
		if left != nil {
			v |= 1
		}
		if right != nil {
			v |= 2 | uint32(len(node)+len(left))<<2
		}
		b := storeNative(v)
		if len(b) == len(node) {
			return slices.Concat(b, left, right)
		}
		node = b
	}
}

// An element of an array in an image is found, whatever others there are, and that of an earlier one where it is the same.
func TestCLRArray(t *testing.T) {
	const base, array, last = 0x400000, 0x400100, 40
	for seed := range uint32(200) {
		elements := map[uint32][]byte{}
		for i := range uint32(last) {
			if seed == 0 || bits.OnesCount32((i+1)*(seed*2654435761|1))%3 == 0 {
				elements[i] = append(storeNative(0), bytes.Repeat([]byte{byte(i), 0xee}, int(i))...)
			}
		}
		for width := range 3 {
			head := storeNative(last<<2 | uint32(width))
			var trees []byte
			index := make([]byte, (last+15)/16<<width)
			for i := range (last + 15) / 16 {
				at := len(index) + len(trees)
				switch width {
				case 0:
					index[i] = byte(min(at, 255))
				case 1:
					binary.LittleEndian.PutUint16(index[2*i:], uint16(at))
				case 2:
					binary.LittleEndian.PutUint32(index[4*i:], uint32(at))
				}
				tree := nativeTree(elements, uint32(16*i), 8)
				if tree == nil {
					tree = storeNative(16 << 2) // none of them
				}
				trees = append(trees, tree...)
			}
			if width == 0 && len(index)+len(trees) > 255 {
				continue
			}
			r := nativeReader{bytesAt{array, slices.Concat(head, index, trees, make([]byte, 8))}.read, base}
			for i := range uint32(last + 2) {
				at, ok := r.element(array, i)
				if ok != (elements[i] != nil) {
					t.Fatalf("seed %d, width %d: %d is there: %v", seed, width, i, ok)
				}
				var b [1]byte
				if ok && i > 0 && (!r.read(at, b[:]) || uint32(b[0]) != i) {
					t.Fatalf("seed %d, width %d: %d is %d", seed, width, i, b[0])
				}
			}
		}
	}
	// The second of two refers to what is 3 bytes before it.
	elements := map[uint32][]byte{0: {0, 0xaa, 0xbb}, 1: storeNative(2)}
	data := slices.Concat(storeNative(2<<2), []byte{1}, nativeTree(elements, 0, 8))
	r := nativeReader{bytesAt{array, append(data, 0, 0, 0, 0)}.read, base}
	first, ok := r.element(array, 0)
	second, ok2 := r.element(array, 1)
	if !ok || !ok2 || first != second {
		t.Errorf("the first is at %#x, %v, the second at %#x, %v", first, ok, second, ok2)
	}
	for v, want := range map[uint32]int{0: 1, 127: 1, 128: 2, 1<<14 - 1: 2, 1 << 14: 3, 1 << 21: 4, 1 << 28: 5, 1<<32 - 1: 5} {
		got, next, ok := nativeReader{bytesAt{array, storeNative(v)}.read, base}.number(array)
		if got != v || next != array+uint64(want) || !ok {
			t.Errorf("%d is %d, %d bytes, %v", v, got, next-array, ok)
		}
	}
}

// An assembly tells of its PDB, beside it or within it, which has the lines of its methods.
func TestCLRLines(t *testing.T) {
	const base = 0x400000
	source := strings.Split(dotnet.Source, "\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Lines.pdb"), dotnet.PDB, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		dll        []byte
		dir        string
		isEmbedded bool
	}{{dotnet.DLL, dir, false}, {dotnet.Embedded, "/", true}, {dotnet.Embedded, dir, true}} {
		mem := bytesAt{base, test.dll}
		m := readModule(mem.read, base)
		if m == nil || m.symbols.id == (pdbID{}) || (m.symbols.embedded.size > 0) != test.isEmbedded || !test.isEmbedded && m.symbols.name != "Lines.pdb" {
			t.Fatalf("%+v", m)
		}
		m.dir = test.dir
		vm := &machine{Memory: vmread.Memory{Mem: mem}, pdbs: &pdbs{}, root: "/"}
		p := vm.pdbOf(m)
		if p == nil || vm.pdbs.size != p.size || vm.pdbOf(m) != p {
			t.Fatal("it has no PDB")
		}
		methods := map[string]uint64{}
		for n := range m.tables[methodDef].rows {
			name, typ, _ := m.method(n + 1)
			methods[typ+"."+name] = n + 1
		}
		var lines []string
		for _, pt := range allPoints(p, methods["Lines.Straight"]) {
			if file := p.document(pt.document); file != "/src/Lines.cs" {
				t.Errorf("%s", file)
			}
			lines = append(lines, strings.TrimSpace(source[pt.line-1]))
		}
		want := []string{"int a = n + 1;", "int b = a * 2;", "Stop(); sink += b;", "Stop(); sink += b;", "return a + b;"}
		if !slices.Equal(slices.Compact(lines), slices.Compact(want)) {
			t.Errorf("Straight has the lines %q", lines)
		}
		if at, ok := p.at(methods["Lines.Straight"], 0); !ok || !strings.Contains(source[at.line-1], "int a = n + 1;") {
			t.Errorf("%+v, %v", at, ok)
		}
		if at, ok := p.at(methods["Lines.Straight"], 1<<20); !ok || !strings.Contains(source[at.line-1], "return a + b;") {
			t.Errorf("%+v, %v", at, ok)
		}
		if at, ok := p.at(uint64(len(methods)+100), 0); ok {
			t.Errorf("%+v", at)
		}
	}
}

// A PDB that is another assembly's is none, nor is one that is damaged, or too large.
func TestCLROtherPDB(t *testing.T) {
	const base = 0x400000
	m := readModule(bytesAt{base, dotnet.DLL}.read, base)
	id := m.symbols.id
	if readPDB(dotnet.PDB, id) == nil {
		t.Fatal("not understood")
	}
	for i := range id {
		other := id
		other[i]++
		if readPDB(dotnet.PDB, other) != nil {
			t.Errorf("that with byte %d otherwise is", i)
		}
	}
	for n := range len(dotnet.PDB) { // cut
		if n < 400 && readPDB(dotnet.PDB[:n], id) != nil {
			t.Errorf("its first %d bytes are", n)
		}
	}
	dir := t.TempDir()
	name := filepath.Join(dir, m.symbols.name)
	vm := &machine{Memory: vmread.Memory{Mem: bytesAt{}}, pdbs: &pdbs{}, root: "/"}
	for _, test := range []struct {
		make func() error
		want bool
	}{
		{func() error { return syscall.Mkfifo(name, 0o600) }, false},
		{func() error { return os.Mkdir(name, 0o700) }, false},
		{func() error { return os.WriteFile(name, nil, 0o600) }, false},
		{func() error {
			return os.WriteFile(name, append(bytes.Clone(dotnet.PDB), make([]byte, maxPDB)...), 0o600)
		}, false},
		{func() error { return os.WriteFile(name, dotnet.PDB, 0o600) }, true},
	} {
		if err := test.make(); err != nil {
			t.Fatal(err)
		}
		m := *m
		m.dir = dir
		if got := vm.pdbOf(&m) != nil; got != test.want {
			t.Errorf("it is found: %v", got)
		}
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
}

// A PDB is looked for as the process sees files, which may have another root: links are followed there.
func TestCLRRoot(t *testing.T) {
	const base = 0x400000
	root := t.TempDir()
	for _, dir := range []string{"app", "lib"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(root, "lib/real"), dotnet.PDB, 0o600), os.Symlink("/lib/real", filepath.Join(root, "app/Lines.pdb"))); err != nil {
		t.Fatal(err)
	}
	for vmRoot, want := range map[string]bool{root: true, "/": false, filepath.Join(root, "none"): false} {
		m := readModule(bytesAt{base, dotnet.DLL}.read, base)
		m.dir = "/app"
		vm := &machine{Memory: vmread.Memory{Mem: bytesAt{}}, pdbs: &pdbs{}, root: vmRoot}
		if got := vm.pdbOf(m) != nil; got != want {
			t.Errorf("with root %s it is found: %v", vmRoot, got)
		}
	}
}

// PDBs that are kept are bounded, and read again.
func TestCLRKeptPDBs(t *testing.T) {
	const base = 0x400000
	m := readModule(bytesAt{base, dotnet.Embedded}.read, base)
	vm := &machine{Memory: vmread.Memory{Mem: bytesAt{base, dotnet.Embedded}}, pdbs: &pdbs{}, root: "/"}
	first := vm.pdbOf(m)
	vm.pdbs.byID, vm.pdbs.size = map[pdbID]*pdb{{1}: {}}, maxPDBs
	if p := vm.pdbOf(m); p == nil || p == first || len(vm.pdbs.byID) != 1 || vm.pdbs.size != p.size {
		t.Errorf("%d PDBs of %d bytes are kept", len(vm.pdbs.byID), vm.pdbs.size)
	}
}

// allPoints returns where lines begin in a method.
func allPoints(p *pdb, method uint64) (all []point) {
	r := p.points(method)
	for {
		pt, ok := r.next()
		if !ok {
			return all
		}
		all = append(all, pt)
	}
}

// testPDB returns a PDB of one method, with that blob for its lines.
func testPDB(lines []byte) (data []byte, id pdbID) {
	le := binary.LittleEndian
	name := []byte("\x00\x01a\x04b.cs\x03/\x01\x03") // parts, and the name that they make up
	blobs := append(bytes.Clone(name), byte(len(lines)))
	blobs = append(blobs, lines...)
	tables := []byte{0, 0, 0, 0, 2, 0, 0, 1}
	tables = le.AppendUint64(tables, 1<<pdbDocuments|1<<pdbMethods)
	tables = le.AppendUint64(tables, 0)
	for _, rows := range []uint32{2, 1} {
		tables = le.AppendUint32(tables, rows)
	}
	for _, v := range []uint16{8, 0, 0, 0, 8, 0, 0, 0, 1, uint16(len(name))} { // two documents and a method
		tables = le.AppendUint16(tables, v)
	}
	data = append(data, "BSJB\x01\x00\x01\x00\x00\x00\x00\x00\x0c\x00\x00\x00PDB v1.0\x00\x00\x00\x00\x00\x00\x03\x00"...)
	at := uint32(len(data) + 16 + 12 + 16)
	copy(id[:], "an ID of a PDB, here")
	for _, s := range []struct{ name, data string }{{"#Pdb\x00\x00\x00\x00", string(id[:])}, {"#~\x00\x00", string(tables)}, {"#Blob\x00\x00\x00", string(blobs)}} {
		data = le.AppendUint32(le.AppendUint32(data, at), uint32(len(s.data)))
		data = append(data, s.name...)
		at += uint32(len(s.data))
	}
	return append(append(append(data, id[:]...), tables...), blobs...), id
}

// Lines go back, are hidden, and are another document's, as compilers store it.
func TestCLRPoints(t *testing.T) {
	lines := []byte{
		0,             // no variables
		0, 0, 5, 9, 4, // IL 0, line 9
		3, 0, 5, 0x7f, 0, // IL 3, line 8
		2, 0, 0, // IL 5, hidden
		0, 2, // the second document
		4, 2, 1, 0x80, 0xc8, 2, // IL 9, line 108
	}
	data, id := testPDB(lines)
	p := readPDB(data, id)
	if p == nil {
		t.Fatal("not understood")
	}
	want := []point{{0, 9, 1}, {3, 8, 1}, {9, 108, 2}}
	if got := allPoints(p, 1); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for il, want := range map[uint32]int{0: 9, 2: 9, 3: 8, 5: 8, 8: 8, 9: 108, 100: 108} {
		if at, ok := p.at(1, il); !ok || at.line != want {
			t.Errorf("IL %d: %v, %v", il, at, ok)
		}
	}
	if got := p.document(1); got != "a/b.cs" {
		t.Errorf("%q", got)
	}
	if got := p.document(3); got != "" {
		t.Errorf("%q", got)
	}
	data, id = testPDB(lines[:len(lines)-1])
	if at, ok := readPDB(data, id).at(1, 100); ok {
		t.Errorf("what is cut has %v", at)
	}
	for v, want := range map[string]int64{"\x00": 0, "\x02": 1, "\x7f": -1, "\x01": -64, "\x7e": 63, "\x80\x80": 64, "\x80\x01": -8192, "\xc0\x00\x80\x00": 1 << 14, "\xc0\x00\x00\x01": -1 << 28} {
		b := blob{b: []byte(v)}
		if got := b.signed(); got != want || b.failed {
			t.Errorf("% x is %d, want %d", v, got, want)
		}
	}
}

// FuzzLines has debug information and PDBs be anything.
func FuzzLines(f *testing.F) {
	places := []place{{0, ilProlog, false}, {10, 0, false}, {20, 7, true}, {50, ilEpilog, false}}
	for _, form := range []form{formNibbles, formPacked} {
		b := form.store(places)
		f.Add(slices.Concat([]byte{0}, storeNibbles(uint32(len(b)), 0), b))
		f.Add(b)
	}
	f.Add(dotnet.PDB)
	data, id := testPDB([]byte{0, 0, 0, 5, 9, 4, 3, 0, 5, 0x7f, 0, 0, 2, 1, 0, 0})
	f.Add(data)
	f.Add(slices.Concat(storeNative(2<<2), []byte{1}, nativeTree(map[uint32][]byte{0: {0, 1}, 1: {2}}, 0, 8)))
	const base = 0x400000
	ours := readModule(bytesAt{base, dotnet.DLL}.read, base).symbols.id
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := bytesAt{base, data}
		for _, form := range []form{formNibbles, formPacked} {
			ilIn(data, form, 15)
			for _, hasFlags := range []bool{false, true} {
				d := debugInfo{base, form, hasFlags}
				if il, ok := d.ilOffset(mem.read, 15); ok && il >= ilEpilog {
					t.Errorf("%#x is an instruction", il)
				}
			}
		}
		(nativeReader{mem.read, base}).element(base, 1)
		for _, id := range []pdbID{id, ours} {
			p := readPDB(data, id)
			if p == nil {
				continue
			}
			for n := range uint64(4) {
				for _, pt := range allPoints(p, n) {
					if p.document(pt.document); pt.line <= 0 {
						t.Errorf("line %d", pt.line)
					}
				}
			}
		}
		readSymbols(mem.read, stream{base, uint64(len(data))}, func(rva uint64) uint64 { return base + rva })
	})
}
