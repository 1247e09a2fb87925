package procstate

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// coreOf builds a small core by hand: an ELF header, a note segment and one
// load segment of 16 bytes at 0x1000.
func coreOf(notes []byte, typ elf.Type) []byte {
	le := binary.LittleEndian
	b := make([]byte, 64+2*56)
	copy(b, elf.ELFMAG)
	b[4], b[5], b[6] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	le.PutUint16(b[16:], uint16(typ))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint64(b[32:], 64) // phoff
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 2)
	ph := b[64:]
	le.PutUint32(ph, uint32(elf.PT_NOTE))
	le.PutUint64(ph[8:], uint64(len(b)))
	le.PutUint64(ph[32:], uint64(len(notes)))
	ph = ph[56:]
	le.PutUint32(ph, uint32(elf.PT_LOAD))
	le.PutUint32(ph[4:], uint32(elf.PF_R|elf.PF_W))
	le.PutUint64(ph[8:], uint64(len(b)+len(notes)))
	le.PutUint64(ph[16:], 0x1000)
	le.PutUint64(ph[32:], 16)
	le.PutUint64(ph[40:], 4096)
	b = append(b, notes...)
	return append(b, "0123456789abcdef"...)
}

// note makes an ELF note of the name CORE.
func note(typ uint32, desc []byte) []byte {
	le := binary.LittleEndian
	var b []byte
	b = le.AppendUint32(b, 5)
	b = le.AppendUint32(b, uint32(len(desc)))
	b = le.AppendUint32(b, typ)
	b = append(b, "CORE\x00\x00\x00\x00"...)
	b = append(b, desc...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// prstatus makes the note of a thread.
func prstatus(tid uint32, sig uint16, pc, sp uint64) []byte {
	d := make([]byte, 336)
	le := binary.LittleEndian
	le.PutUint16(d[12:], sig)
	le.PutUint32(d[32:], tid)
	le.PutUint64(d[112+16*8:], pc)
	le.PutUint64(d[112+19*8:], sp)
	le.PutUint64(d[112+21*8:], 0x7000)
	return note(ntPRStatus, d)
}

func openCoreBytes(t testing.TB, b []byte) (*Core, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "core")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return OpenCore(name, "")
}

func TestCoreByHand(t *testing.T) {
	notes := append(prstatus(11, 6, 0x401000, 0x1008), prstatus(12, 0, 0x402000, 0x1000)...)
	c, err := openCoreBytes(t, coreOf(notes, elf.ET_CORE))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tids, _ := c.Threads()
	if len(tids) != 2 || tids[0] != 11 || tids[1] != 12 || c.Signal != 6 || c.PID() != 11 || c.Arch() != AMD64 {
		t.Errorf("threads %v, signal %d, pid %d", tids, c.Signal, c.PID())
	}
	var regs Regs
	if err := c.Registers(12, &regs); err != nil || regs.Raw(AMD64.PC) != 0x402000 || regs.Raw(AMD64.SP) != 0x1000 || regs.ThreadPointer != 0x7000 {
		t.Errorf("registers %+v, %v", regs, err)
	}
	if err := c.Registers(13, &regs); err == nil {
		t.Error("registers of no thread")
	}
	var b [16]byte
	if n, err := c.ReadMemory(0x1000, b[:]); n != 16 || err != nil || string(b[:]) != "0123456789abcdef" {
		t.Errorf("%d bytes %q, %v", n, b[:n], err)
	}
	for _, addr := range []uint64{0xfff, 0x1001, 0x100f, 0x1010, 0x1fff, 0x2000, 0, ^uint64(0)} {
		if n, err := c.ReadMemory(addr, b[:]); err == nil {
			t.Errorf("%d bytes at %#x, past what was dumped", n, addr)
		}
	}
	if v, ok := c.ReadWord(0x1008); !ok || v != binary.LittleEndian.Uint64([]byte("89abcdef")) {
		t.Errorf("word %#x, %v", v, ok)
	}
	if _, ok := c.ReadWord(0x1009); ok {
		t.Error("a word past the end of what was dumped")
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A core that was cut short says so, by as much as it lacks.
func TestCoreCutShort(t *testing.T) {
	whole := coreOf(prstatus(1, 0, 0x401000, 0x1008), elf.ET_CORE)
	for _, lacks := range []int{0, 1, 16} {
		c, err := openCoreBytes(t, whole[:len(whole)-lacks])
		if err != nil || c.Lacks != uint64(lacks) {
			t.Fatalf("without %d bytes: %+v, %v", lacks, c, err)
		}
		if n, _ := c.ReadMemory(0x1000, make([]byte, 16)); n != 16-lacks {
			t.Errorf("without %d bytes: %d", lacks, n)
		}
		c.Close()
	}
	_, err := openCoreBytes(t, whole[:64+2*56])
	if !errors.Is(err, ErrNotCore) || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("without notes: %v", err)
	}
}

// A compressed core is the same; one whose end is missing is a core that was cut short.
func TestCorePacked(t *testing.T) {
	dump := make([]byte, 3<<20) // zeros, and a word at the end of each MB
	notes := prstatus(7, 11, 0x401000, 0x7ffe0000)
	for i := 1 << 20; i <= len(dump); i += 1 << 20 {
		copy(dump[i-8:], "the word")
	}
	plain := coreOf(notes, elf.ET_CORE)
	binary.LittleEndian.PutUint64(plain[64+56+32:], uint64(len(dump)))
	binary.LittleEndian.PutUint64(plain[64+56+40:], uint64(len(dump)))
	plain = append(plain[:len(plain)-16], dump...)
	zst, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var gz bytes.Buffer
	z := gzip.NewWriter(&gz)
	z.Write(plain)
	z.Close()
	t.Setenv("TMPDIR", t.TempDir())
	for name, packed := range map[string][]byte{"zstd": zst.EncodeAll(plain, nil), "gzip": gz.Bytes()} {
		c, err := openCoreBytes(t, packed)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if tids, _ := c.Threads(); len(tids) != 1 || tids[0] != 7 || c.Signal != 11 || c.Lacks != 0 {
			t.Errorf("%s: threads %v, signal %d, %d bytes missing", name, tids, c.Signal, c.Lacks)
		}
		read := make([]byte, len(dump))
		if n, err := c.ReadMemory(0x1000, read); n != len(dump) || err != nil || !bytes.Equal(read, dump) {
			t.Errorf("%s: %d bytes of memory, %v", name, n, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(c.file.Fd()), &st); err != nil || st.Nlink != 0 || st.Blocks*512 > 1<<20 {
			t.Errorf("%s: the unpacked file has %d links and %d blocks, %v", name, st.Nlink, st.Blocks, err)
		}
		if cut, err := openCoreBytes(t, packed[:len(packed)*9/10]); err != nil || cut.Lacks == 0 || len(cut.threads) != 1 {
			t.Errorf("%s, cut short: %+v, %v", name, cut, err)
		}
		if _, err := openCoreBytes(t, packed[:8]); !errors.Is(err, ErrNotCore) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s, its start: %v", name, err)
		}
		t.Setenv("TMPDIR", "/dev/null")
		if _, err := openCoreBytes(t, packed); err == nil || !strings.Contains(err.Error(), "no room to unpack it") {
			t.Errorf("%s, without a directory: %v", name, err)
		}
		t.Setenv("TMPDIR", t.TempDir())
	}
	for magic, command := range map[string]string{"\x04\x22\x4d\x18": "lz4 -d", "\xfd7zXZ\x00": "xz -dk", "BZh91AY": "bzip2 -dk"} {
		if _, err := openCoreBytes(t, []byte(magic)); !errors.Is(err, ErrNotCore) || !strings.HasSuffix(err.Error(), "unpack it with "+command) {
			t.Errorf("%q: %v", magic, err)
		}
	}
}

// A program header that no segment can have is damaged: it is told which, its segment
// is left out, and it makes no core one that was cut short.
func TestCoreDamagedHeader(t *testing.T) {
	const note, load = 64, 64 + 56 // headers
	const off, vaddr, filesz, memsz = 8, 16, 32, 40
	for _, test := range []struct {
		header, field int
		value         uint64
		damaged       bool
	}{
		{load, filesz, 0xfffffffffff00000, true},
		{load, filesz, 0xffffffffffffffff, true},
		{load, filesz, 0x7fffffffffffffff, true},
		{load, filesz, 4097, true}, // more than there is in memory
		{load, filesz, 4096, false},
		{load, off, 0xfffffffffffff000, true},
		{load, off, 1<<48 + 1, true},
		{load, off, 1 << 48, false},
		{load, vaddr, 0xfffffffffffff001, true},
		{load, memsz, 0xffffffffffffffff, true},
		{note, filesz, 0xffffffffffffffff, true},
		{note, off, 0xffffffffffffffff, true},
	} {
		b := coreOf(prstatus(1, 0, 0x401000, 0x1008), elf.ET_CORE)
		at := b[test.header+test.field:]
		binary.LittleEndian.PutUint64(at, test.value)
		c, err := openCoreBytes(t, b)
		if test.header == note {
			if !errors.Is(err, ErrNotCore) || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("%+v: %v", test, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", test, err)
			continue
		}
		want := []int(nil)
		if test.damaged {
			want = []int{1}
		}
		if !slices.Equal(c.Damaged, want) || test.damaged != (c.Lacks == 0) {
			t.Errorf("%+v: damaged %v, lacks %d", test, c.Damaged, c.Lacks)
		}
		if n, _ := c.ReadMemory(0x1000, make([]byte, 16)); test.damaged && n != 0 {
			t.Errorf("%+v: %d bytes were read", test, n)
		}
		c.Close()
	}
}

func TestCoreRefused(t *testing.T) {
	good := coreOf(prstatus(1, 0, 1, 1), elf.ET_CORE)
	for name, b := range map[string][]byte{
		"empty":          nil,
		"a program":      coreOf(prstatus(1, 0, 1, 1), elf.ET_EXEC),
		"no threads":     coreOf(nil, elf.ET_CORE),
		"short header":   good[:40],
		"short segments": good[:100],
		"short notes":    good[:64+2*56+20],
	} {
		if c, err := openCoreBytes(t, b); err == nil {
			c.Close()
			t.Errorf("%s is accepted", name)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCore(pipe, ""); err == nil { // and it does not wait for a writer
		t.Error("a pipe is accepted")
	}
}

// Segments of notes may be many, of the same bytes; those of code may lie in each
// other.
func TestCoreLies(t *testing.T) {
	segment := func(b []byte, i int, typ elf.ProgType, flags elf.ProgFlag, off, vaddr, filesz, memsz uint64) {
		le, ph := binary.LittleEndian, b[64+56*i:]
		le.PutUint32(ph, uint32(typ))
		le.PutUint32(ph[4:], uint32(flags))
		for at, v := range map[int]uint64{8: off, 16: vaddr, 32: filesz, 40: memsz} {
			le.PutUint64(ph[at:], v)
		}
	}
	core := func(segments int) []byte {
		b := bytes.Clone(coreOf(nil, elf.ET_CORE)[:64])
		binary.LittleEndian.PutUint16(b[56:], uint16(segments))
		return append(append(b, make([]byte, 56*segments)...), prstatus(1, 0, 1, 1)...)
	}
	b := core(3)
	notes := uint64(64 + 3*56)
	segment(b, 0, elf.PT_NOTE, 0, notes, 0, uint64(len(b))-notes, 0)
	segment(b, 1, elf.PT_LOAD, elf.PF_X|elf.PF_R, 0, 0x10000, 0, 0x9000)
	segment(b, 2, elf.PT_LOAD, elf.PF_X|elf.PF_R, 0, 0x11000, 0, 0x1000)
	c, err := openCoreBytes(t, b)
	if err != nil {
		t.Fatal(err)
	}
	if maps := c.space.Mappings(); len(maps) != 1 || maps[0].Start != 0x10000 || maps[0].End != 0x19000 {
		t.Errorf("%d mappings, the first %+v", len(maps), maps[0])
	}
	c.Close()

	segment(b, 1, elf.PT_NOTE, 0, 0, 0, maxCoreNotes-8, 0)
	name := filepath.Join(t.TempDir(), "core")
	if err := errors.Join(os.WriteFile(name, b, 0o600), os.Truncate(name, maxCoreNotes)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenCore(name, ""); !errors.Is(err, ErrNotCore) || !strings.Contains(err.Error(), "notes of") {
		t.Errorf("with too many notes: %v", err)
	}
}

// A core may tell of very many threads, some of one number, and of very many files that
// are none of a program.
func TestCoreMany(t *testing.T) {
	const threads, files = 1 << 16, maxCoreImages + 100
	var notes bytes.Buffer
	for i := range uint32(threads) {
		notes.Write(prstatus(i+1, 0, uint64(i), 0x1000))
	}
	notes.Write(prstatus(threads, 0, 7, 0x1000))
	le := binary.LittleEndian
	table, names := le.AppendUint64(le.AppendUint64(nil, files), 4096), []byte{}
	for i := range uint64(files) {
		for _, v := range []uint64{0x100000 + i<<12, 0x101000 + i<<12, 0} {
			table = le.AppendUint64(table, v)
		}
		names = append(names, "/proc/"+strings.Repeat("./", int(i)%1000)+strings.Repeat("/", int(i)/1000)+"version\x00"...)
	}
	notes.Write(note(ntFile, append(table, names...)))
	name := filepath.Join(t.TempDir(), "core")
	if err := os.WriteFile(name, coreOf(notes.Bytes(), elf.ET_CORE), 0o600); err != nil {
		t.Fatal(err)
	}
	began := testenv.CPUTime(t)
	c, err := OpenCore(name, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.opened != maxCoreImages {
		t.Errorf("%d files were opened, want %d", c.opened, maxCoreImages)
	}
	var regs Regs
	for tid := ThreadID(1); tid <= threads; tid++ {
		if err := c.Registers(tid, &regs); err != nil || regs.Raw(AMD64.PC) != uint64(tid-1) {
			t.Fatalf("thread %d: at %#x, %v", tid, regs.Raw(AMD64.PC), err)
		}
	}
	if took := testenv.CPUTime(t) - began; took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func FuzzCore(f *testing.F) {
	f.Add(coreOf(prstatus(1, 0, 1, 1), elf.ET_CORE))
	files := binary.LittleEndian.AppendUint64(nil, 1)
	for _, v := range []uint64{4096, 0x1000, 0x2000, 0} {
		files = binary.LittleEndian.AppendUint64(files, v)
	}
	files = append(files, "/nonexistent\x00"...)
	f.Add(coreOf(bytes.Join([][]byte{prstatus(1, 0, 1, 1), note(ntFile, files), note(ntAuxv, files), note(ntPRPSInfo, make([]byte, 136))}, nil), elf.ET_CORE))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(dir, "core")
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := OpenCore(name, "")
		if err != nil {
			return
		}
		defer c.Close()
		tids, _ := c.Threads()
		var regs Regs
		for _, tid := range tids {
			if err := c.Registers(tid, &regs); err != nil {
				t.Errorf("registers of thread %d: %v", tid, err)
			}
		}
		for _, l := range c.loads {
			var buf [64]byte
			c.ReadMemory(l.start, buf[:])
			c.ReadWord(l.end - 4)
		}
		c.Libraries().Libraries()
	})
}
