package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// jitProcess is a process whose memory is what a function says.
type jitProcess struct {
	ProcessState
	read func(addr uint64, buf []byte) bool
}

func (p *jitProcess) ReadMemory(addr uint64, buf []byte) (int, error) {
	if !p.read(addr, buf) {
		return 0, ErrUnreadable
	}
	return len(buf), nil
}

// Where the descriptor of a jitProcess is, and room for what it leads to.
const (
	jitTestDescriptor = 0x2000
	jitTestHeap       = 0x10000
)

// jitMemory is the memory of a process that registers object files.
type jitMemory struct {
	words map[uint64]uint64
	files map[uint64][]byte
	reads int
}

func newJITMemory() *jitMemory {
	return &jitMemory{words: map[uint64]uint64{jitTestDescriptor: 1, jitTestDescriptor + 8: 0, jitTestDescriptor + 16: 0}, files: map[uint64][]byte{}}
}

func (m *jitMemory) read(addr uint64, buf []byte) bool {
	m.reads++
	for at, b := range m.files {
		if off := addr - at; off <= uint64(len(b)) && uint64(len(buf)) <= uint64(len(b))-off {
			return copy(buf, b[off:]) == len(buf)
		}
	}
	for i := 0; i < len(buf); i += 8 {
		w, ok := m.words[addr+uint64(i)]
		if !ok {
			return false
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], w)
		copy(buf[i:], b[:])
	}
	return true
}

// Actions of a descriptor.
const (
	jitRegister   = 1
	jitUnregister = 2
)

// list makes entries, at those addresses, the list; the last action was about the
// one that is relevant.
func (m *jitMemory) list(action, relevant uint64, entries ...uint64) {
	m.words[jitTestDescriptor], m.words[jitTestDescriptor+8] = 1|action<<32, relevant
	before, link := uint64(0), uint64(jitTestDescriptor+16)
	for _, at := range entries {
		m.words[link], m.words[at+8] = at, before
		before, link = at, at
	}
	m.words[link] = 0
}

// entry makes an entry for the object file at an address.
func (m *jitMemory) entry(at, symfile uint64, file []byte) {
	m.files[symfile] = file
	m.words[at], m.words[at+8], m.words[at+16], m.words[at+24] = 0, 0, symfile, uint64(len(file))
}

// jitProcessOf makes a process with a program that has a descriptor.
func jitProcessOf(t testing.TB, read func(addr uint64, buf []byte) bool) *jitProcess {
	t.Helper()
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(header[16:], uint16(elf.ET_EXEC))
	binary.LittleEndian.PutUint16(header[18:], uint16(elf.EM_X86_64))
	im, err := NewImageBytes(header, "program")
	if err != nil {
		t.Fatal(err)
	}
	im.jit.once.Do(func() { im.jit.vaddr = jitTestDescriptor })
	im.segs = []Segment{{Filesz: 0x1000, Memsz: 0x1000, Flags: elf.PF_X}}
	space := new(AddressSpace)
	space.Insert(&Mapping{Start: 0x1000, End: 0x2000, Path: "program", Image: im})
	space.Mappings()[0].Bias = 0
	return &jitProcess{NewSnapshot(AMD64, 1, "program", space), read}
}

func jitFixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "jit", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The code of object files is that of their executable sections, by debug/elf, as
// long as they are registered.
func TestJITObjects(t *testing.T) {
	m := newJITMemory()
	files := []string{"jitlink.o", "rtdyld.o", "qemu.o"}
	var entries []uint64
	for i, name := range files {
		at := uint64(jitTestHeap + 0x100*i)
		m.entry(at, uint64(0x100000*(i+1)), jitFixture(t, name))
		entries = append(entries, at)
	}
	j := JITObjectsOf(jitProcessOf(t, m.read))
	if o := j.At(0x7f0000000000); o != nil {
		t.Fatal("an object file in an empty list")
	}
	m.list(jitRegister, entries[2], entries...)
	for i, name := range files {
		f, err := elf.NewFile(bytes.NewReader(jitFixture(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range f.Sections {
			if s.Flags&elf.SHF_EXECINSTR == 0 || s.Size == 0 {
				continue
			}
			j.Begin()
			first, last := j.At(s.Addr), j.At(s.Addr+s.Size-1)
			if first == nil || first != last || first.at != entries[i] || first.Frames.Arch() != AMD64 {
				t.Errorf("%s: %v at its first byte, %v at its last", name, first, last)
			}
			if j.At(s.Addr-1) != nil || j.At(s.Addr+s.Size) != nil {
				t.Errorf("%s: code beside it", name)
			}
			if first != nil && (first.Generated != (name == "qemu.o") || !first.Holds(s.Addr) || !first.Holds(s.Addr+s.Size-1) || first.Holds(s.Addr+s.Size)) {
				t.Errorf("%s: generated: %v, holds its end: %v", name, first.Generated, first.Holds(s.Addr+s.Size))
			}
			if start, ok := j.Above(s.Addr-10, 10); !ok || start != s.Addr {
				t.Errorf("%s: above it is %#x, %v", name, start, ok)
			}
			if _, ok := j.Above(s.Addr-11, 10); ok {
				t.Errorf("%s: is above what is far below", name)
			}
		}
	}

	text := func(name string) uint64 {
		f, err := elf.NewFile(bytes.NewReader(jitFixture(t, name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range f.Sections {
			if s.Flags&elf.SHF_EXECINSTR != 0 && s.Size != 0 {
				return s.Addr
			}
		}
		t.Fatal("no code")
		return 0
	}
	linked, dyld, qemu := text(files[0]), text(files[1]), text(files[2])
	before := j.At(dyld)
	// The second is unregistered; its neighbours stay.
	m.list(jitUnregister, entries[1], entries[0], entries[2])
	j.Begin()
	if j.At(dyld) != nil || j.At(linked) == nil || j.At(qemu) == nil {
		t.Error("an object file that was unregistered")
	}
	m.list(jitRegister, entries[1], entries...)
	j.Begin()
	if j.At(dyld) == nil {
		t.Error("an object file that was registered again")
	}
	// Another object file of the same size is in the place of the first, with the
	// same entry and the same words in the descriptor.
	file := m.files[0x100000]
	other := bytes.Clone(file)
	section, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	frames := section.Section(".eh_frame")
	other[frames.Offset+frames.Size-1] ^= 0xff
	first := j.At(linked)
	m.files[0x100000] = other
	j.Begin()
	if again := j.At(linked); again == nil || again == first {
		t.Error("an object file in place of another")
	}
	if o := j.At(dyld); o == nil || o.sum != before.sum {
		t.Error("the others are not what they were")
	}
	// What cannot be read any more is not there.
	delete(m.files, 0x100000)
	j.Begin()
	if j.At(linked) != nil {
		t.Error("an object file that is no more")
	}
}

// liveJITProcess is a jitProcess that runs on.
type liveJITProcess struct{ *jitProcess }

func (p liveJITProcess) ReadLive(addr uint64, buf []byte) int {
	if !p.read(addr, buf) {
		return 0
	}
	return len(buf)
}

// Of a process that runs on, code that has been there a moment ago is known, as long as
// nothing else is in its place.
func TestJITObjectsGone(t *testing.T) {
	file := jitFixture(t, "rtdyld.o")
	linked, err := LinkJITObject(bytes.Clone(file))
	if err != nil {
		t.Fatal(err)
	}
	code := linked.Segments()[0].Vaddr
	for _, live := range []bool{true, false} {
		m := newJITMemory()
		m.entry(jitTestHeap, 2*jitTestHeap, file)
		m.list(jitRegister, jitTestHeap, jitTestHeap)
		process := jitProcessOf(t, m.read)
		j := JITObjectsOf(process)
		if live {
			j = JITObjectsOf(liveJITProcess{process})
		}
		o := j.At(code)
		if o == nil {
			t.Fatal("it is not there")
		}
		m.list(jitUnregister, jitTestHeap)
		m.files = nil
		j.Begin()
		j.epoch++
		j.took = 0 // where the machine was busy, it would be too early for another look
		if was := j.At(code); live && was != o || !live && was != nil {
			t.Errorf("live %v: %v when it is unloaded", live, was)
		}
		m.words[code] = 0
		j.Begin()
		j.epoch++
		j.took = 0
		if was := j.At(code); was != nil {
			t.Errorf("live %v: there is something else, and still %v", live, was)
		}
	}
}

// Of a program without symbols the descriptor is found by what it leads to, in its data, once
// it leads there; what looks like one and does not is none.
func TestJITDescriptorUnnamed(t *testing.T) {
	file := jitFixture(t, "rtdyld.o")
	linked, err := LinkJITObject(bytes.Clone(file))
	if err != nil {
		t.Fatal(err)
	}
	code := linked.Segments()[0].Vaddr
	for _, symbols := range []bool{false, true} {
		m := newJITMemory()
		const data, size = 0x1f00, 0x300
		for at := uint64(data); at < data+size; at += 8 {
			if at < jitTestDescriptor || at > jitTestDescriptor+16 {
				m.words[at] = 1
			}
		}
		m.words[data+8], m.words[data+16], m.words[data+24] = 1|jitRegister<<32, jitTestHeap+0x100, jitTestHeap+0x100
		m.words[jitTestHeap+0x100], m.words[jitTestHeap+0x108], m.words[jitTestHeap+0x110], m.words[jitTestHeap+0x118] = 0, 0, data, size
		process := jitProcessOf(t, m.read)
		im := process.Libraries().Libraries()[0].Image
		im.jit.vaddr = 0
		im.segs = append(im.segs, Segment{Vaddr: data, Filesz: size, Memsz: size, Flags: elf.PF_R | elf.PF_W})
		if symbols {
			im.sections = []Section{{Name: ".symtab"}}
		}
		j := JITObjectsOf(liveJITProcess{process})
		if o := j.At(code); o != nil || len(j.unnamed.found) != 0 {
			t.Errorf("symbols %v: %v and %#x before there is any", symbols, o, j.unnamed.found)
		}
		m.entry(jitTestHeap, 2*jitTestHeap, file)
		m.list(jitRegister, jitTestHeap, jitTestHeap)
		reads := m.reads
		if j.Begin(); j.At(code) != nil || m.reads > reads+2 {
			t.Errorf("symbols %v: searched for again at once", symbols)
		}
		j.unnamed.last = j.unnamed.last.Add(-jitSearchLast)
		j.Begin()
		j.epoch++
		if o := j.At(code); (o != nil) == symbols {
			t.Errorf("symbols %v: %v", symbols, o)
		}
		if named := JITObjectsOf(liveJITProcess{process}).Linked(); (len(named) == 1) == symbols {
			t.Errorf("symbols %v: %d object files for names", symbols, len(named))
		}
		if found := j.unnamed.found; !symbols && !slices.Equal(found, []uint64{jitTestDescriptor}) {
			t.Errorf("found at %#x", found)
		}
	}
}

// Data full of what looks like a descriptor is not looked through to its end.
func TestJITDescriptorsWithoutEnd(t *testing.T) {
	m := newJITMemory()
	const data, size = 0x100000, 24 * 20 * maxJITTries
	for at := uint64(data); at < data+size; at += 24 {
		m.words[at], m.words[at+8], m.words[at+16] = 1|jitRegister<<32, jitTestHeap, jitTestHeap
	}
	process := jitProcessOf(t, m.read)
	im := process.Libraries().Libraries()[0].Image
	im.jit.vaddr = 0
	im.segs = append(im.segs, Segment{Vaddr: data, Filesz: size, Memsz: size, Flags: elf.PF_R | elf.PF_W})
	j := JITObjectsOf(liveJITProcess{process})
	if o := j.At(jitTestHeap); o != nil || m.reads < maxJITTries || m.reads > 2*maxJITTries {
		t.Errorf("%v after %d reads", o, m.reads)
	}
}

// Two object files are registered for the same code: the newer one counts.
func TestJITObjectsOverlap(t *testing.T) {
	m := newJITMemory()
	old, recent := uint64(jitTestHeap), uint64(jitTestHeap+0x100)
	m.entry(old, 0x100000, jitFixture(t, "jitlink.o"))
	m.entry(recent, 0x200000, jitFixture(t, "jitlink.o"))
	m.list(jitRegister, recent, recent, old)
	j := JITObjectsOf(jitProcessOf(t, m.read))
	f, err := elf.NewFile(bytes.NewReader(m.files[0x100000]))
	if err != nil {
		t.Fatal(err)
	}
	addr := f.Section(".text").Addr
	if o := j.At(addr); o == nil || o.at != recent {
		t.Errorf("%v, want the newer one", o)
	}
}

func TestWithoutOverlaps(t *testing.T) {
	got := withoutOverlaps([]jitRange{{10, 20, nil, 3}, {15, 18, nil, 1}, {18, 30, nil, 2}, {29, 40, nil, 5}, {40, 50, nil, 9}})
	want := []jitRange{{15, 18, nil, 1}, {18, 30, nil, 2}, {40, 50, nil, 9}}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// The names of object files are handed out once, also of those that had been
// met before anybody asked.
func TestJITObjectsLinked(t *testing.T) {
	m := newJITMemory()
	m.entry(jitTestHeap, 0x100000, jitFixture(t, "jitlink.o"))
	m.entry(jitTestHeap+0x100, 0x200000, jitFixture(t, "rtdyld.o"))
	m.list(jitRegister, jitTestHeap, jitTestHeap)
	j := JITObjectsOf(jitProcessOf(t, m.read))
	j.At(0)
	if l := j.Linked(); len(l) != 1 {
		t.Fatalf("%d, want 1", len(l))
	}
	if l := j.Linked(); len(l) != 0 {
		t.Fatalf("%d again", len(l))
	}
	m.list(jitRegister, jitTestHeap+0x100, jitTestHeap+0x100, jitTestHeap)
	j.Begin()
	l := j.Linked()
	if len(l) != 1 {
		t.Fatalf("%d, want 1", len(l))
	}
	// Symbols have run-time addresses: those of the file and of its section.
	f, err := elf.NewFile(bytes.NewReader(jitFixture(t, "rtdyld.o")))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{}
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			want[s.Name] = f.Sections[s.Section].Addr + s.Value
		}
	}
	l[0].EachSymbol(func(s *ELFSymbol) bool {
		if s.Type == elf.STT_FUNC {
			if want[string(s.Name)] != s.Value {
				t.Errorf("%s: %#x, want %#x", s.Name, s.Value, want[string(s.Name)])
			}
			delete(want, string(s.Name))
		}
		return true
	})
	if len(want) > 0 {
		t.Errorf("without %v", want)
	}
}

// Lists that are anything but lists cost a bounded amount of work and memory.
func TestJITObjectsHostile(t *testing.T) {
	file := jitFixture(t, "jitlink.o")
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	addr := f.Section(".text").Addr
	descriptor := func(buf []byte) {
		binary.LittleEndian.PutUint64(buf[16:], jitTestHeap)
	}
	for name, entry := range map[string]func(at uint64, read int) [4]uint64{
		"a cycle":          func(at uint64, _ int) [4]uint64 { return [4]uint64{at ^ 0x100, 0, 1 << 40, 64} },
		"without end":      func(at uint64, _ int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 40, 64} },
		"terabytes":        func(at uint64, _ int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 40, 1 << 43} },
		"many large ones":  func(at uint64, _ int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 40, maxJITObject} },
		"the last address": func(at uint64, _ int) [4]uint64 { return [4]uint64{0, 0, ^uint64(0) - 8, 1 << 20} },
		"never twice same": func(at uint64, n int) [4]uint64 {
			return [4]uint64{at + 0x20*uint64(n%7), 0, 1<<40 + uint64(n%3), uint64(n)}
		},
		"itself a file":     func(at uint64, _ int) [4]uint64 { return [4]uint64{at, at, at, 1 << 12} },
		"one file for all":  func(at uint64, _ int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 41, uint64(len(file))} },
		"a part of a file":  func(at uint64, n int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 41, uint64(64 + n%len(file))} },
		"a file and a half": func(at uint64, _ int) [4]uint64 { return [4]uint64{at + 0x20, 0, 1 << 41, uint64(len(file)) * 3 / 2} },
	} {
		t.Run(name, func(t *testing.T) {
			reads, size := 0, 0
			p := jitProcessOf(t, func(at uint64, buf []byte) bool {
				reads++
				size += len(buf)
				switch {
				case at == jitTestDescriptor || at == jitTestDescriptor+16:
					b := make([]byte, 24)
					descriptor(b)
					copy(buf, b[at-jitTestDescriptor:])
				case at >= 1<<41 && at-1<<41 < uint64(len(file)):
					return copy(buf, file[at-1<<41:]) == len(buf)
				case at >= 1<<40:
					clear(buf)
					copy(buf, elf.ELFMAG)
				default:
					words := entry(at&^0x1f, reads)
					for i := range words {
						var b [8]byte
						binary.LittleEndian.PutUint64(b[:], words[i])
						copy(buf[min(8*i, len(buf)):], b[:])
					}
				}
				return true
			})
			j := JITObjectsOf(p)
			for range 3 {
				j.Begin()
				j.At(addr)
				j.Linked()
			}
			if reads > 3*4*maxJITEntries || size > 8*maxJITBytes {
				t.Errorf("%d reads of %d bytes in all", reads, size)
			}
		})
	}
}

// The descriptor of a program, with and without a table of all symbols, is where
// nm says.
func TestJITDescriptor(t *testing.T) {
	testenv.Needs(t, "gcc", "nm")
	dir := t.TempDir()
	source := filepath.Join(dir, "d.c")
	const text = "struct { unsigned v, a; void *r, *f; } __jit_debug_descriptor = {1, 0, 0, 0};\nint main(void) { return 0; }\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"-rdynamic", "-rdynamic -s", "-static", "-s"} {
		program := filepath.Join(dir, "d")
		if b, err := exec.Command("gcc", append(strings.Fields(flags), "-o", program, source)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		im, err := NewImageBytes(b, program)
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		if flags != "-s" {
			list := "-n"
			if strings.HasPrefix(flags, "-rdynamic") {
				list = "-D"
			}
			out, err := exec.Command("nm", list, program).Output()
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(out)) {
				if w := strings.Fields(line); w[len(w)-1] == "__jit_debug_descriptor" {
					if want, err = strconv.ParseUint(w[0], 16, 64); err != nil {
						t.Fatal(err)
					}
				}
			}
			if want == 0 {
				t.Fatalf("%s: nm does not know it: %s", flags, out)
			}
		}
		if got := im.jitDescriptor(); got != want {
			t.Errorf("%s: %#x, want %#x", flags, got, want)
		}
	}
}

// The memory of a process may hold anything: its descriptor is at the start, and
// addresses in it count from there.
func FuzzJITObjects(f *testing.F) {
	for _, name := range []string{"jitlink.o", "rtdyld.o", "qemu.o"} {
		file := jitFixture(f, name)
		memory := make([]byte, 0x40, 0x40+len(file))
		le := binary.LittleEndian
		le.PutUint64(memory[16:], jitTestDescriptor+0x20)
		le.PutUint64(memory[0x30:], jitTestDescriptor+0x40)
		le.PutUint64(memory[0x38:], uint64(len(file)))
		f.Add(append(memory, file...))
	}
	f.Fuzz(func(t *testing.T, memory []byte) {
		p := jitProcessOf(t, func(addr uint64, buf []byte) bool {
			off := addr - jitTestDescriptor
			return off <= uint64(len(memory)) && uint64(len(buf)) <= uint64(len(memory))-off && copy(buf, memory[off:]) == len(buf)
		})
		j := JITObjectsOf(p)
		for _, im := range j.Linked() {
			for _, s := range im.Segments() {
				j.Begin()
				if o := j.At(s.Vaddr + s.Memsz/2); o != nil {
					if _, ok := o.Frames.Section(".text"); ok {
						t.Error("code among what is kept")
					}
				}
			}
			im.EachSymbol(func(*ELFSymbol) bool { return true })
		}
	})
}

// The functions that readelf finds in call frame information are in the code that it is
// said to be of.
func TestReadFrameInfo(t *testing.T) {
	testenv.Needs(t, "gcc", "readelf")
	dir := t.TempDir()
	object := filepath.Join(dir, "part.so")
	if b, err := exec.Command("gcc", "-w", "-O2", "-shared", "-fPIC", "-fexceptions", "-o", object, filepath.Join("..", "oracle", "testdata", "jitpart.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	b, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	im, err := NewImageBytes(b, object)
	if err != nil {
		t.Fatal(err)
	}
	section, _ := im.Section(".eh_frame")
	frames, err := im.SectionBytes(section, maxFrameInfo)
	if err != nil {
		t.Fatal(err)
	}
	left := uint64(maxJITBytes)
	_, code, err := readFrameInfo(section.Vaddr, &left, func(addr uint64, buf []byte) bool {
		clear(buf) // what follows the section
		return copy(buf, frames[min(addr-section.Vaddr, uint64(len(frames))):]) > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("readelf", "--debug-dump=frames", object).Output()
	if err != nil {
		t.Fatal(err)
	}
	functions := 0
	for line := range strings.Lines(string(out)) {
		_, pcs, ok := strings.Cut(strings.TrimSpace(line), "pc=")
		if !ok {
			continue
		}
		from, to, _ := strings.Cut(pcs, "..")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(line)
		}
		functions++
		within := 0
		for _, c := range code {
			if c.start <= start && end <= c.end {
				within++
			}
		}
		if within != 1 {
			t.Errorf("[%#x, %#x) is in %d of %+v", start, end, within, code)
		}
	}
	if functions < 5 {
		t.Errorf("readelf knows %d functions:\n%s", functions, out)
	}
}

// Memory that looks like call frame information may be anything.
func FuzzReadFrameInfo(f *testing.F) {
	for _, name := range []string{"jitlink.o", "rtdyld.o"} {
		im, err := LinkJITObject(jitFixture(f, name))
		if err != nil {
			f.Fatal(err)
		}
		s, _ := im.Section(".eh_frame")
		b, err := im.SectionBytes(s, maxFrameInfo)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, 0, 0, 0, 0))
	}
	f.Fuzz(func(t *testing.T, memory []byte) {
		const at = 1 << 20
		left := uint64(maxJITBytes)
		raw, code, err := readFrameInfo(at, &left, func(addr uint64, buf []byte) bool {
			clear(buf)
			off := addr - at
			return off < uint64(len(memory)) && copy(buf, memory[off:]) > 0
		})
		if err != nil {
			return
		}
		for i, c := range code {
			if c.start >= c.end || i > 0 && code[i-1].end > c.start {
				t.Errorf("%+v", code)
			}
		}
		if len(raw) > maxFrameInfo+frameInfoPage || len(code) > len(raw)/12 {
			t.Errorf("%d bytes, %d pieces", len(raw), len(code))
		}
	})
}
