package procstate

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseMapsLine(t *testing.T) {
	tests := []struct {
		line string
		want MapsEntry // zero: malformed
	}{
		{"55d0c8a00000-55d0c8a02000 r-xp 00001000 fe:01 9978438                    /tmp/a b",
			MapsEntry{0x55d0c8a00000, 0x55d0c8a02000, ProtRead | ProtExec, 0x1000, 0xfe, 1, 9978438, "/tmp/a b"}},
		{"00400000-00401000 rwxs 00000000 00:00 0 ", MapsEntry{Start: 0x400000, End: 0x401000, Prot: 7}},
		{"00400000-00401000 ---p 00000000 00:00 0", MapsEntry{Start: 0x400000, End: 0x401000}},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]",
			MapsEntry{Start: 0xffffffffff600000, End: 0xffffffffff601000, Prot: ProtExec, Path: "[vsyscall]"}},
		{"00400000-00401000 r--p 00000000 103:02 18446744073709551615 /x\\012y (deleted)",
			MapsEntry{0x400000, 0x401000, ProtRead, 0, 0x103, 2, 1<<64 - 1, "/x\ny (deleted)"}},
		{"", MapsEntry{}},
		{"00400000", MapsEntry{}},
		{"00401000-00400000 r-xp 00000000 00:00 0", MapsEntry{}}, // ends before it starts
		{"00400000-00401000 r-x", MapsEntry{}},
		{"00400000-00401000 r-xp 00000000 00:00", MapsEntry{}},
		{"00400000-00401000 r-xp zz 00:00 0", MapsEntry{}},
		{"00400000-00401000 r-xp 00000000 0:100000000 0", MapsEntry{}},
		{"10000000000000000-10000000000000001 r-xp 00000000 00:00 0", MapsEntry{}},
	}
	for _, test := range tests {
		got, err := ParseMapsLine([]byte(test.line))
		if got != test.want || (err != nil) != (test.want == MapsEntry{}) {
			t.Errorf("%q: %+v, %v; want %+v", test.line, got, err, test.want)
		}
	}
}

// Whatever the kernel is asked to map, it is found again in our own maps.
func TestReadMaps(t *testing.T) {
	path := filepath.Join(t.TempDir(), " a\nb ")
	if err := os.WriteFile(path, make([]byte, 3*pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, prot := range []int{unix.PROT_READ, unix.PROT_READ | unix.PROT_EXEC, unix.PROT_READ | unix.PROT_WRITE} {
		b, err := unix.Mmap(int(f.Fd()), int64(pageSize), int(2*pageSize), prot, unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		for _, execOnly := range []bool{false, true} {
			entries, err := ReadMaps("/proc/self/maps", execOnly)
			if err != nil {
				t.Fatal(err)
			}
			var found []MapsEntry
			for _, e := range entries {
				if e.Path == path {
					found = append(found, e)
				}
			}
			if execOnly && prot&unix.PROT_EXEC == 0 {
				if len(found) != 0 {
					t.Errorf("found %+v, which is not executable", found)
				}
				continue
			}
			if len(found) != 1 || found[0].End-found[0].Start != 2*pageSize ||
				found[0].Offset != pageSize || int(found[0].Prot) != prot {
				t.Errorf("protection %d: found %+v", prot, found)
			}
		}
		unix.Munmap(b)
	}
	if _, err := ReadMaps("/proc/0/maps", false); !os.IsNotExist(err) {
		t.Errorf("a process that is not there: %v", err)
	}
}

func FuzzParseMapsLine(f *testing.F) {
	f.Add([]byte("55d0c8a00000-55d0c8a02000 r-xp 00001000 fe:01 9978438                    /tmp/a b"))
	f.Add([]byte("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]"))
	f.Add([]byte("- r"))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := ParseMapsLine(line)
		if err != nil && e != (MapsEntry{}) {
			t.Errorf("%+v with error %v", e, err)
		}
		if err == nil && e.End < e.Start {
			t.Errorf("%+v ends before it starts", e)
		}
	})
}
