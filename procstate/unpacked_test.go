//go:build linux

package procstate

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unpackHere puts headers with segments, and code, into anonymous memory of this process, as a packer does.
func unpackHere(t *testing.T, typ elf.Type, segs []elf.Prog64, prot int) (mem []byte, start uint64) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, 4*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(typ), Machine: uint16(HostArch().Machine), Version: 1,
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segs))}
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, &h)
	binary.Write(&b, binary.LittleEndian, segs)
	copy(mem, b.Bytes())
	copy(mem[2*os.Getpagesize():], "the code")
	if err := unix.Mprotect(mem, prot); err != nil {
		t.Fatal(err)
	}
	return mem, uint64(uintptr(unsafe.Pointer(&mem[0])))
}

// A program in anonymous memory is known by its headers, whatever those say, and each once.
func TestFindUnpacked(t *testing.T) {
	page := uint64(os.Getpagesize())
	const done, unfinished = unix.PROT_READ | unix.PROT_EXEC, unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC
	code := func(vaddr, size uint64) elf.Prog64 {
		return elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: vaddr, Filesz: size, Memsz: size}
	}
	for _, c := range []struct {
		name string
		typ  elf.Type
		segs []elf.Prog64
		prot int
		want bool
	}{
		{"a program", elf.ET_DYN, []elf.Prog64{code(0, 4*page)}, done, true},
		{"linked for another address", elf.ET_DYN, []elf.Prog64{code(16*page, 4*page)}, done, true},
		{"that cannot be moved", elf.ET_EXEC, []elf.Prog64{code(0, 4*page)}, done, false},
		{"not yet complete", elf.ET_DYN, []elf.Prog64{code(0, 4*page)}, unfinished, false},
		{"without segments", elf.ET_DYN, nil, done, false},
		{"of unlimited size", elf.ET_DYN, []elf.Prog64{code(0, 1<<40)}, done, false},
		{"whose size is not a number", elf.ET_DYN, []elf.Prog64{code(0, 4*page), {Type: uint32(elf.PT_LOAD), Off: 1<<62 - 1, Filesz: 1<<62 - 1}}, done, false},
		{"whose code is elsewhere", elf.ET_DYN, []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Filesz: 4 * page, Memsz: 4 * page}}, done, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem, start := unpackHere(t, c.typ, c.segs, c.prot)
			images := NewImages(0)
			defer images.Close()
			space, err := images.LoadAddressSpace(int32(os.Getpid()))
			if err != nil {
				t.Fatal(err)
			}
			ref := FileRef{PID: int32(os.Getpid()), Start: start, End: start + uint64(len(mem))}
			find := func() *Mapping {
				tries := 0
				return images.mappingOfMaps(space, &ref, 0, 0, &tries)
			}
			m := find()
			if !c.want {
				if m.Image != nil {
					t.Errorf("it is %s", m.Image.Path)
				}
				return
			}
			if m.Image == nil || !strings.HasSuffix(m.Path, unpackedSuffix) {
				t.Fatalf("%+v", m)
			}
			space.Insert(m)
			m = space.MappingAt(start)
			var b [8]byte
			at := start + 2*page
			if err := m.Image.ReadVaddr(b[:], at-m.Bias); err != nil || string(b[:]) != "the code" {
				t.Errorf("%q, %v", b, err)
			}
			if again := find(); again.Image != m.Image {
				t.Error("the same program is another Image")
			}
			// What was read stays, whatever another process says.
			unread := find().Image.r.(*unpackedProgram)
			unread.isOf(1<<30, 0)
			if err := m.Image.ReadVaddr(b[:], at-m.Bias); err != nil {
				t.Error(err)
			}
		})
	}
}

// Programs with the same first bytes and other code are not taken for each other.
func TestUnpackedOthers(t *testing.T) {
	page := uint64(os.Getpagesize())
	segs := []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: 4 * page, Memsz: 4 * page}}
	images := NewImages(0)
	defer images.Close()
	var found [2]*Image
	for i := range found {
		mem, start := unpackHere(t, elf.ET_DYN, segs, unix.PROT_READ|unix.PROT_WRITE)
		for at := range mem[page:] {
			mem[int(page)+at] = byte(i + 1)
		}
		if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			t.Fatal(err)
		}
		ref := FileRef{PID: int32(os.Getpid()), Start: start, End: start + uint64(len(mem))}
		m := &Mapping{Start: ref.Start, End: ref.End}
		images.findUnpacked(&ref, 0, m)
		if m.Image == nil {
			t.Fatal("no program")
		}
		found[i] = m.Image // which nobody has read
	}
	for i, im := range found {
		var b [1]byte
		if err := im.ReadVaddr(b[:], 2*page); err != nil || b[0] != byte(i+1) {
			t.Errorf("program %d has the code of %d, %v", i+1, b[0], err)
		}
	}
}

// Of a program whose process is gone before it was read, another process tells.
func TestUnpackedOfAnother(t *testing.T) {
	page := uint64(os.Getpagesize())
	mem, start := unpackHere(t, elf.ET_DYN, []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: 4 * page, Memsz: 4 * page}}, unix.PROT_READ|unix.PROT_EXEC)
	_, other := unpackHere(t, elf.ET_EXEC, nil, unix.PROT_READ)
	p := &unpackedProgram{header: mem[:unpackedHeader], segments: []Segment{{Filesz: 4 * page, Memsz: 4 * page}}, size: 4 * page}
	p.isOf(1<<30, start)
	var b [8]byte
	for range 2 {
		if n, err := p.ReadAt(b[:], int64(2*page)); err == nil {
			t.Fatalf("%d bytes of no process", n)
		}
	}
	p.isOf(int32(os.Getpid()), other) // which executes another program by now
	if n, err := p.ReadAt(b[:], int64(2*page)); err == nil {
		t.Fatalf("%d bytes of another program", n)
	}
	p.isOf(int32(os.Getpid()), start)
	if _, err := p.ReadAt(b[:], int64(2*page)); err != nil || string(b[:]) != "the code" {
		t.Errorf("%q, %v", b, err)
	}
	if n, err := p.ReadAt(b[:], int64(4*page-4)); n != 4 || err == nil {
		t.Errorf("%d bytes at the end, %v", n, err)
	}
	if n, err := p.ReadAt(b[:], -8); n != 0 || err == nil {
		t.Errorf("%d bytes before the start, %v", n, err)
	}
}
