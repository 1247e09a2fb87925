package procstate

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// biasSource prints, as the dynamic linker knows them, the bias and the
// executable segments of all that is loaded, and waits.
const biasSource = `
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
static int show(struct dl_phdr_info *i, size_t n, void *p)
{
	for (int k = 0; k < i->dlpi_phnum; k++)
		if (i->dlpi_phdr[k].p_type == PT_LOAD && i->dlpi_phdr[k].p_flags & PF_X)
			printf("%lx %lx %lx\n", (long)i->dlpi_addr, (long)i->dlpi_phdr[k].p_vaddr,
			       (long)i->dlpi_phdr[k].p_memsz);
	return 0;
}
int main(void)
{
	dl_iterate_phdr(show, 0);
	puts("end");
	fflush(stdout);
	return getchar() > 0;
}
`

// The bias of each loaded file, for the layouts that linkers make, is that of
// the dynamic linker.
func TestBiasOfLayouts(t *testing.T) {
	layouts := []struct {
		name, compiler string
		flags          []string
	}{
		{"pie", "cc", nil},
		{"no pie", "cc", []string{"-no-pie"}},
		{"static", "cc", []string{"-static"}},
		{"static pie", "cc", []string{"-static-pie"}},
		{"code with headers", "cc", []string{"-Wl,-z,noseparate-code"}},
		{"large pages", "cc", []string{"-Wl,-z,max-page-size=0x200000"}},
		{"large pages, code with headers", "cc", []string{"-Wl,-z,max-page-size=0x200000,-z,noseparate-code"}},
		{"no relro", "cc", []string{"-Wl,-z,norelro"}},
		{"gold", "cc", []string{"-fuse-ld=gold"}},
		{"gold, no pie, rosegment", "cc", []string{"-fuse-ld=gold", "-no-pie", "-Wl,--rosegment"}},
		{"text far up", "cc", []string{"-no-pie", "-Wl,-Ttext-segment=0x7000000"}},
		{"text moved within the file", "cc", []string{"-Wl,--section-start=.text=0x40080"}},
		{"stack executable", "cc", []string{"-z", "execstack"}},
		{"musl", "musl-gcc", nil},
		{"musl static pie", "musl-gcc", []string{"-static-pie"}},
	}
	images := NewImages(0)
	defer images.Close()
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			cmd := exec.Command(compile(t, biasSource, layout.compiler, layout.flags...))
			_, stdout := testenv.Start(t, cmd)
			type segment struct{ bias, vaddr, size uint64 }
			var want []segment
			for sc := bufio.NewScanner(stdout); sc.Scan() && sc.Text() != "end"; {
				var s segment
				if _, err := fmt.Sscanf(sc.Text(), "%x %x %x", &s.bias, &s.vaddr, &s.size); err != nil {
					t.Fatal(err)
				}
				want = append(want, s)
			}
			space, err := images.LoadAddressSpace(int32(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range want {
				for _, vaddr := range []uint64{s.vaddr, s.vaddr + s.size - 1} {
					m := space.MappingAt(s.bias + vaddr)
					if m == nil || m.Image == nil || m.Bias != s.bias {
						t.Errorf("%#x: %+v, want bias %#x", s.bias+vaddr, m, s.bias)
					}
				}
			}
			if len(want) == 0 {
				t.Error("nothing is loaded")
			}
			checkTextBytes(t, int32(cmd.Process.Pid), space)
		})
	}
}

// checkTextBytes compares what the files hold for code and constants with the
// memory of the process.
func checkTextBytes(t *testing.T, pid int32, space *AddressSpace) {
	t.Helper()
	for _, m := range space.Mappings() {
		if m.Image == nil {
			continue
		}
		for _, seg := range m.Image.Segments() {
			for _, at := range []uint64{0, seg.Filesz / 3 &^ 7, seg.Filesz - 64} {
				if seg.Filesz < 64 || seg.Flags&2 != 0 {
					continue
				}
				var have [64]byte
				addr := m.Bias + seg.Vaddr + at
				if err := space.ReadFile(have[:], addr); err != nil {
					t.Errorf("%s: %#x: %v", m.Path, addr, err)
					continue
				}
				want, err := readProcMem(pid, addr, 64)
				if err == nil && string(want) != string(have[:]) {
					t.Errorf("%s: at %#x the process has % x, the file % x", m.Path, addr, want, have)
				}
			}
		}
	}
}

// Every program that runs has its entry point where the kernel says.
func TestBiasOfLiveProcesses(t *testing.T) {
	images := NewImages(0)
	defer images.Close()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		entry, ok := auxvEntry(dir)
		if !ok {
			continue
		}
		space, err := images.LoadAddressSpace(int32(pid))
		if err != nil || len(space.Mappings()) == 0 {
			continue
		}
		m := space.MappingAt(entry)
		if again, ok := auxvEntry(dir); !ok || again != entry {
			continue // another program by now, or none
		}
		if m == nil || m.Image == nil {
			t.Errorf("%s: the entry point %#x is in %+v", dir, entry, m)
			continue
		}
		if m.Image.Entry()+m.Bias != entry {
			t.Errorf("%s: %s: entry point %#x with bias %#x, want %#x", dir, m.Path, m.Image.Entry()+m.Bias, m.Bias, entry)
		}
		checked++
	}
	if checked < 3 {
		t.Errorf("only %d processes checked", checked)
	}
}

// auxvEntry returns AT_ENTRY of a 64-bit process.
func auxvEntry(dir string) (uint64, bool) {
	const atEntry = 9
	b, err := os.ReadFile(dir + "/auxv")
	if err != nil {
		return 0, false
	}
	exe, err := os.Open(dir + "/exe")
	if err != nil {
		return 0, false
	}
	defer exe.Close()
	var ident [5]byte
	if _, err := exe.ReadAt(ident[:], 0); err != nil || ident[4] != 2 {
		return 0, false
	}
	for ; len(b) >= 16; b = b[16:] {
		if binary.LittleEndian.Uint64(b) == atEntry {
			return binary.LittleEndian.Uint64(b[8:]), true
		}
	}
	return 0, false
}

// Layouts that no linker here makes: pages of 64 KiB, and two executable
// segments in one page.
func TestSegmentOfOffset(t *testing.T) {
	large := &Image{segs: []Segment{
		{Off: 0, Filesz: 0x12340, Vaddr: 0, Memsz: 0x12340, Flags: 4},
		{Off: 0x12340, Filesz: 0x20000, Vaddr: 0x22340, Memsz: 0x20000, Flags: 5},
	}}
	// lld lets segments share pages of the file.
	lld := &Image{segs: []Segment{
		{Off: 0, Filesz: 0x5f0, Vaddr: 0x200000, Memsz: 0x5f0, Flags: 4},
		{Off: 0x5f0, Filesz: 0x1a0, Vaddr: 0x2015f0, Memsz: 0x1a0, Flags: 5},
		{Off: 0x790, Filesz: 0x1c0, Vaddr: 0x202790, Memsz: 0x1c0, Flags: 6},
	}}
	two := &Image{segs: []Segment{
		{Off: 0x1000, Filesz: 0x800, Vaddr: 0x1000, Memsz: 0x800, Flags: 5},
		{Off: 0x1800, Filesz: 0x2000, Vaddr: 0x2800, Memsz: 0x2000, Flags: 5},
		{Off: 0x3800, Filesz: 0x100, Vaddr: 0x5800, Memsz: 0x9000, Flags: 6},
		{Off: 0x9000, Filesz: 0, Vaddr: 0x20000, Memsz: 0x9000, Flags: 5},
		{Off: ^uint64(0) - 10, Filesz: 100, Vaddr: 5, Memsz: 100, Flags: 5},
	}}
	tests := []struct {
		im        *Image
		off, page uint64
		want      int // index; -1: none
	}{
		{large, 0, 1 << 16, 0}, {large, 0x10000, 1 << 16, 1}, {large, 0x20000, 1 << 16, 1},
		{large, 0x30000, 1 << 16, 1}, {large, 0x40000, 1 << 16, -1},
		{large, 0x11000, 4096, 0}, {large, 0x12000, 4096, 1},
		{lld, 0, 4096, 1}, {lld, 0x1000, 4096, -1},
		{two, 0, 4096, -1}, {two, 0x2000, 4096, 1}, {two, 0x3000, 4096, 1}, {two, 0x4000, 4096, -1},
		{two, 0x9000, 4096, -1}, {two, ^uint64(0), 4096, -1},
	}
	for _, test := range tests {
		got := -1
		if s := test.im.segmentOfOffset(test.off, test.page); s != nil {
			for i := range test.im.segs {
				if s == &test.im.segs[i] {
					got = i
				}
			}
		}
		if got != test.want {
			t.Errorf("offset %#x, pages of %#x: segment %d, want %d", test.off, test.page, got, test.want)
		}
	}
}
