package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// openTestFile makes an Image of a file that stays open during the test.
func openTestFile(t testing.TB, path string) *Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := NewImage(f, st.Size(), path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// compile builds a small C program with flags of its own.
func compile(t testing.TB, source string, compiler string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, out := filepath.Join(dir, "x.c"), filepath.Join(dir, "x")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Needs(t, compiler)
	args := append([]string{"-o", out, src}, flags...)
	testenv.Run(t, exec.Command(compiler, args...))
	return out
}

const nothing = "int x[1000] = {1}; int main(void) { return x[3]; }\n"

// Headers are compared with the standard library's reader.
func TestImageHeaders(t *testing.T) {
	files := []string{"/proc/self/exe", "/bin/sh", compile(t, manyNames, "cc", "-g", "-gz=zlib"),
		compile(t, nothing, "cc", "-static"), compile(t, nothing, "cc", "-c", "-g"),
		compile(t, nothing, "cc", "-m32", "-nostdlib", "-r")}
	for _, path := range files {
		im := openTestFile(t, path)
		want, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer want.Close()
		if im.Type() != want.Type || im.Entry() != want.Entry || im.Arch().Machine != want.Machine {
			t.Errorf("%s: %v, entry %#x, %v", path, im.Type(), im.Entry(), im.Arch().Name)
		}
		var loads []Segment
		for _, p := range want.Progs {
			if p.Type == elf.PT_LOAD {
				loads = append(loads, Segment{p.Off, p.Filesz, p.Vaddr, p.Memsz, p.Flags})
			}
			if first, ok := im.Prog(p.Type); !ok || first.Type != p.Type {
				t.Errorf("%s: no %v", path, p.Type)
			}
		}
		if len(loads) != len(im.Segments()) {
			t.Fatalf("%s: segments %+v, want %+v", path, im.Segments(), loads)
		}
		for i := range loads {
			if loads[i] != im.Segments()[i] {
				t.Errorf("%s: segment %+v, want %+v", path, im.Segments()[i], loads[i])
			}
		}
		if len(im.Sections()) != len(want.Sections) {
			t.Fatalf("%s: %d sections, want %d", path, len(im.Sections()), len(want.Sections))
		}
		for i, s := range want.Sections {
			got := im.Sections()[i]
			if got.Name != s.Name || got.Type != s.Type || got.Flags != s.Flags || got.Vaddr != s.Addr ||
				got.Off != s.Offset || got.Size != s.FileSize || got.Link != s.Link || got.Info != s.Info || got.Entsize != s.Entsize {
				t.Errorf("%s: section %+v, want %+v", path, got, s.SectionHeader)
			}
			if s.Type == elf.SHT_NOBITS || s.Type == elf.SHT_NULL {
				continue
			}
			b, err := im.SectionBytes(got, 0)
			wantBytes, wantErr := s.Data()
			if err != nil || wantErr != nil || !bytes.Equal(b, wantBytes) {
				t.Errorf("%s: section %s: %d bytes, %v; want %d, %v", path, s.Name, len(b), err, len(wantBytes), wantErr)
			}
			if len(b) > 1 {
				if _, err := im.SectionBytes(got, uint64(len(b)-1)); err == nil {
					t.Errorf("%s: section %s: read beyond the limit", path, s.Name)
				}
				if err := im.SectionParts(got, uint64(len(b)-1), func([]byte) {}); err == nil {
					t.Errorf("%s: section %s: read in parts beyond the limit", path, s.Name)
				}
			}
			var parts []byte
			err = im.SectionParts(got, 0, func(part []byte) { parts = append(parts, part...) })
			if err != nil || !bytes.Equal(parts, wantBytes) {
				t.Errorf("%s: section %s in parts: %d bytes, %v; want %d", path, s.Name, len(parts), err, len(wantBytes))
			}
		}
	}
}

func TestBuildID(t *testing.T) {
	for _, test := range []struct{ flag, want string }{
		{"-Wl,--build-id=0x0123456789abcdef", "0123456789abcdef"},
		{"-Wl,--build-id=0x01", "01"},
		{"-Wl,--build-id=none", ""},
	} {
		path := compile(t, nothing, "cc", test.flag)
		if got := openTestFile(t, path).BuildID(); got != test.want {
			t.Errorf("%s: %q", test.flag, got)
		}
		// Without section headers the note is found by its segment.
		testenv.Needs(t, "objcopy")
		if b, err := exec.Command("objcopy", "--strip-section-headers", path).CombinedOutput(); err != nil {
			if !strings.Contains(string(b), "option") {
				t.Fatalf("objcopy: %v\n%s", err, b)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			clear(b[40:48]) // e_shoff
			im, err := NewImageBytes(b, path)
			if err != nil || im.BuildID() != test.want || len(im.Sections()) != 0 {
				t.Errorf("%s without sections: %q, %v", test.flag, im.BuildID(), err)
			}
		}
	}
}

func TestBuildIDInNotes(t *testing.T) {
	note := func(name string, typ uint32, desc string) string {
		var b []byte
		b = binary.LittleEndian.AppendUint32(b, uint32(len(name)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(desc)))
		b = binary.LittleEndian.AppendUint32(b, typ)
		b = append(b, name...)
		b = append(b, make([]byte, -len(b)&3)...)
		b = append(b, desc...)
		return string(append(b, make([]byte, -len(b)&3)...))
	}
	id := note("GNU\x00", 3, "0123456789abcdef0123")
	tests := []struct{ notes, want string }{
		{id, "0123456789abcdef0123"},
		{note("Go\x00", 4, "abc") + note("GNU\x00", 1, "0123") + id, "0123456789abcdef0123"},
		{note("GNU\x00", 3, ""), ""},
		{note("GNU", 3, "0123"), ""},
		{id[:len(id)-1], ""},
		{id[:15], ""}, {id[:12], ""}, {id[:11], ""}, {"", ""},
		{"\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00GNU\x00", ""},
		{"\x04\x00\x00\x00\xff\xff\xff\xff\x03\x00\x00\x00GNU\x00", ""},
	}
	for _, test := range tests {
		if got := string(buildIDInNotes([]byte(test.notes))); got != test.want {
			t.Errorf("%q: %q, want %q", test.notes, got, test.want)
		}
	}
}

// Files that are not ELF, or cut anywhere, are errors or have what is left.
func TestImageOfDamagedFiles(t *testing.T) {
	whole, err := os.ReadFile(compile(t, nothing, "cc", "-g", "-Wl,--compress-debug-sections=zlib"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(whole); n += 61 {
		im, err := NewImageBytes(whole[:n], "cut")
		if err != nil {
			var format *FormatError
			if !errors.As(err, &format) {
				t.Errorf("cut at %d: %v", n, err)
			}
			continue
		}
		readAll(im)
	}
	for _, b := range []string{"", "#!/bin/sh\n", "\x7fELF", "\x7fELF\x02\x02\x01" + strings.Repeat("\x00", 60),
		"\x7fELF\x02\x01\x01" + strings.Repeat("\x00", 60)} {
		if _, err := NewImageBytes([]byte(b), "none"); err == nil {
			t.Errorf("%q is no image", b)
		}
	}
	// A reader's own error comes through.
	if _, err := NewImage(failingReader{}, 1000, "failing"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("failing reader: %v", err)
	}
}

type failingReader struct{}

func (failingReader) ReadAt([]byte, int64) (int, error) { return 0, os.ErrClosed }

// readAll does with an image what its users do.
func readAll(im *Image) {
	for _, s := range im.Sections() {
		im.SectionBytes(s, 1<<20)
		im.Section(s.Name)
		im.SectionParts(s, 1<<20, func([]byte) {})
		if p, _ := im.Packed(s); p != nil && p.Size() < 1<<24 {
			p.Part(p.Size() / 2)
		}
	}
	im.EachSymbol(func(*ELFSymbol) bool { return true })
	im.DynamicSymbol(1)
	im.ExportedSymbol("x")
	im.FuncStarts()
	im.frameRoots()
	im.jitDescriptor()
	symbolIn(im, ".symtab", ".strtab", trapFunction)
	goListsOf(im)
	GoRuntimeOf(im)
	if t, err := Pclntab(im); err == nil {
		start, end := t.Range()
		if f, ok := t.Func(start + (end-start)/2); ok {
			t.Lines(nil, &f, f.Entry)
		}
	}
	var b [16]byte
	for _, s := range im.Segments() {
		for _, vaddr := range []uint64{s.Vaddr, s.Vaddr + s.Filesz - 1, s.Vaddr + s.Memsz, s.Vaddr - 1} {
			im.ReadVaddr(b[:], vaddr)
			im.readConstant(b[:], vaddr)
			im.codeOffset(vaddr, 4096)
		}
		for _, off := range []uint64{s.Off, s.Off + s.Filesz, s.Off - 1, ^uint64(0)} {
			im.VaddrOfOffset(off)
			var space AddressSpace
			space.Insert(NewFileMapping(&FileRef{Start: 0x1000, End: 0x100000}, off, im, nil))
			space.ReadFile(b[:], 0x1000)
		}
	}
	im.BuildID()
}

// FuzzImage feeds damaged files to all readers: no panic, and no more memory
// than the file could fill.
func FuzzImage(f *testing.F) {
	for _, flags := range [][]string{
		{"-g", "-nostdlib", "-shared", "-Wl,--compress-debug-sections=zlib", "-Wl,-z,noseparate-code"},
		{"-g", "-c"},
	} {
		b, err := os.ReadFile(compile(f, "int x;", "cc", flags...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	if v := readOwnVDSO(); v != nil {
		f.Add(v.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		im, err := NewImageBytes(b, "fuzz")
		if err != nil {
			if im != nil {
				t.Error("an image with an error")
			}
			return
		}
		readAll(im)
		if n := len(im.Sections()) * 64; n > len(b) {
			t.Errorf("%d bytes of section headers in a file of %d", n, len(b))
		}
	})
}

// manyNames makes debug sections that are smaller when compressed.
var manyNames = func() string {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "int a_global_variable_of_number_%d;\n", i)
	}
	return b.String() + nothing
}()

// Compressed sections that lie about what they hold.
func TestDecompressLies(t *testing.T) {
	path := compile(t, manyNames, "cc", "-g", "-Wl,--compress-debug-sections=zlib")
	im := openTestFile(t, path)
	s, ok := im.Section(".debug_str")
	if !ok || s.Flags&elf.SHF_COMPRESSED == 0 {
		t.Fatalf("no compressed .debug_str in %s: %+v", path, s)
	}
	raw := make([]byte, s.Size)
	if _, err := im.ReadAt(raw, int64(s.Off)); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	size := binary.LittleEndian.Uint64(raw[8:])
	for _, test := range []struct {
		name string
		size uint64
		ok   bool
	}{{"true", size, true}, {"one more", size + 1, false}, {"huge", 1 << 60, false}, {"over the limit", size, true}} {
		lie := bytes.Clone(raw)
		binary.LittleEndian.PutUint64(lie[8:], test.size)
		b, err := decompress(s, lie, 1<<30, true)
		if (err == nil) != test.ok || (test.ok && uint64(len(b)) != size) {
			t.Errorf("%s: %d bytes, %v", test.name, len(b), err)
		}
	}
	if _, err := decompress(s, raw, size-1, true); err == nil {
		t.Error("decompressed beyond the limit")
	}
	for _, n := range []int{0, 23, 24, 30} {
		if _, err := decompress(s, raw[:n], 1<<30, true); err == nil {
			t.Errorf("decompressed %d bytes", n)
		}
	}
}

// zstd and the old .zdebug names, as binutils writes them.
func TestDecompressFormats(t *testing.T) {
	plain := compile(t, manyNames, "cc", "-g", "-c")
	want, err := openTestFile(t, plain).SectionBytes(mustSection(t, openTestFile(t, plain), ".debug_str"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"zlib", "zlib-gnu", "zstd"} {
		out := filepath.Join(t.TempDir(), "x.o")
		testenv.Needs(t, "objcopy")
		testenv.Run(t, exec.Command("objcopy", "--compress-debug-sections="+format, plain, out))
		im := openTestFile(t, out)
		name := ".debug_str"
		if format == "zlib-gnu" {
			name = ".zdebug_str"
		}
		got, err := im.SectionBytes(mustSection(t, im, name), 0)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", format, len(got), err, len(want))
		}
		err = im.SectionParts(mustSection(t, im, name), 0, func(part []byte) { got = part })
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s in parts: %d bytes, %v; want %d", format, len(got), err, len(want))
		}
	}
}

func mustSection(t *testing.T, im *Image, name string) Section {
	t.Helper()
	s, ok := im.Section(name)
	if !ok {
		t.Fatalf("%s has no section %s", im.Path, name)
	}
	return s
}
