package procstate

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// refTo makes the FileRef of a file that no process maps.
func refTo(t *testing.T, path string) *FileRef {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return &FileRef{Path: path, Dev: uint64(st.Dev), Inode: st.Ino}
}

func copyFile(t *testing.T, from, to string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func TestImagesShare(t *testing.T) {
	dir := t.TempDir()
	a := copyFile(t, "/bin/sh", filepath.Join(dir, "a"))
	b := copyFile(t, "/bin/sh", filepath.Join(dir, "b"))
	c := copyFile(t, "/bin/sh", filepath.Join(dir, "c"))
	f, err := os.OpenFile(c, os.O_RDWR, 0) // another file of the same build ID
	if err != nil {
		t.Fatal(err)
	}
	st, _ := f.Stat()
	f.WriteAt([]byte{0xff}, st.Size()-1)
	f.Close()

	images := NewImages(0)
	defer images.Close()
	open := func(path string) *Image {
		im, err := images.Open(refTo(t, path))
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	first := open(a)
	if open(a) != first {
		t.Error("a file was opened twice")
	}
	if open(b) != first {
		t.Error("a copy is not shared")
	}
	if open(c) == first {
		t.Error("a file of other contents is shared by its build ID")
	}
	if s := images.Stats(); s.Opened != 3 || s.Hits != 1 || s.Shared != 1 || s.OpenNow != 3 {
		t.Errorf("%+v", s)
	}
}

// Only the very file is used, whatever lies at its path.
func TestImagesIdentity(t *testing.T) {
	dir := t.TempDir()
	path := copyFile(t, "/bin/sh", filepath.Join(dir, "x"))
	images := NewImages(0)
	defer images.Close()

	ref := refTo(t, path)
	ref.Inode++
	if _, err := images.Open(ref); !errors.Is(err, ErrFileGone) {
		t.Errorf("another inode: %v", err)
	}
	ref = refTo(t, path)
	ref.Dev++
	if _, err := images.Open(ref); !errors.Is(err, ErrFileGone) {
		t.Errorf("another device: %v", err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	ref = refTo(t, path)
	if gen, ok := generation(fd); ok {
		ref.Gen, ref.HasGen = gen+1, true
		if _, err := images.Open(ref); !errors.Is(err, ErrFileGone) {
			t.Errorf("another generation: %v", err)
		}
		ref.Gen = gen
	}
	if _, err := images.Open(ref); err != nil {
		t.Error(err)
	}

	// Written after it was mapped by a process that is gone.
	other := copyFile(t, "/bin/sh", filepath.Join(dir, "y"))
	ref = refTo(t, other)
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	ref.Mapped = uint64(now.Nano() - int64(time.Hour))
	if _, err := images.Open(ref); !errors.Is(err, ErrFileGone) {
		t.Errorf("written since: %v", err)
	}
}

// Monotonic is the kernel's clock, by which samples and mappings are stamped.
func TestMonotonic(t *testing.T) {
	kernel := func() uint64 {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		return uint64(now.Nano())
	}
	least := Monotonic()
	for range 100 {
		now := Monotonic()
		if late := kernel() - now; now < least || late > uint64(time.Minute) { // it is never ahead
			t.Fatalf("%d ns after %d, %d ns behind the kernel's", now, least, int64(late))
		}
		least = now
	}
}

// Opening FIFOs and devices blocks or has effects.
func TestImagesLeaveSpecialFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	images := NewImages(0)
	defer images.Close()
	for _, path := range []string{fifo, "/dev/null", "/tmp"} {
		if _, err := images.Open(refTo(t, path)); !errors.Is(err, ErrFileGone) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestImagesNotELF(t *testing.T) {
	before := openFDs(t)
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	images := NewImages(0)
	defer images.Close()
	for range 3 {
		var format *FormatError
		if _, err := images.Open(refTo(t, path)); !errors.As(err, &format) {
			t.Errorf("error %v", err)
		}
	}
	if s := images.Stats(); s.Failed != 1 || s.FailedAgain != 2 {
		t.Errorf("%+v", s)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

// A file that is rewritten or cut short costs an error, and is read anew when
// it is mapped again.
func TestImagesChangedFile(t *testing.T) {
	path := copyFile(t, "/bin/sh", filepath.Join(t.TempDir(), "x"))
	images := NewImages(0)
	defer images.Close()
	ref := refTo(t, path)
	old, err := images.Open(ref)
	if err != nil {
		t.Fatal(err)
	}
	var b [64]byte
	if _, err := old.ReadAt(b[:], 0); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // the kernel's clock of files has ticks
	copyFile(t, "/bin/true", path)
	if _, err := old.ReadAt(b[:], old.Size()/2); !errors.Is(err, errFileChanged) {
		t.Errorf("read of a file that changed: %v", err)
	}
	now := b
	if _, err := old.ReadAt(now[:], 0); err == nil && now != b {
		t.Error("what was read before is not as it was")
	}
	again, err := images.Open(ref)
	if err != nil || again == old {
		t.Errorf("the file that changed: %v, same %v", err, again == old)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if err := again.ReadVaddr(b[:], again.Entry()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("read of a file that was cut: %v", err)
	}
}

// A mapping from before the last look at its file is of what was there then.
func TestImagesLookedAt(t *testing.T) {
	path := copyFile(t, "/bin/sh", filepath.Join(t.TempDir(), "x"))
	images := NewImages(0)
	defer images.Close()
	ref := refTo(t, path)
	mapped := Monotonic()
	time.Sleep(time.Millisecond) // a later look has a later time, whichever CPU tells it
	var im *Image
	for range 2 { // it is looked at when it is found open
		var err error
		if im, err = images.Open(ref); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, im.Size()/2); err != nil {
		t.Fatal(err)
	}
	ref.Mapped = mapped
	if again, err := images.Open(ref); err != nil || again != im {
		t.Errorf("mapped before it was cut short: another Image, error %v", err)
	}
	ref.Mapped = 0
	if again, _ := images.Open(ref); again == im {
		t.Error("mapped after it was cut short: the same Image")
	}
}

// More files than may be open: the cache stays within its limit, and images
// that are still held can be read.
func TestImagesLimit(t *testing.T) {
	dir := t.TempDir()
	const limit = 8
	images := NewImages(limit)
	before := openFDs(t)
	var held []*Image
	for i := range 40 {
		path := copyFile(t, "/bin/true", filepath.Join(dir, fmt.Sprint(i)))
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%d", i) // none is like another
		f.Close()
		im, err := images.Open(refTo(t, path))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, im)
		if _, err := images.Open(refTo(t, filepath.Join(dir, "0"))); err != nil {
			t.Fatal(err)
		}
		if n := openFDs(t) - before; n > limit+1 {
			t.Fatalf("%d descriptors with a limit of %d", n, limit)
		}
	}
	s := images.Stats()
	if s.Evicted == 0 || s.OpenNow > limit+1 || len(images.files) > limit+1 || len(images.builds) > limit+1 {
		t.Errorf("%+v", s)
	}
	// What is used all the time stays open.
	if again, err := images.Open(refTo(t, filepath.Join(dir, "0"))); err != nil || again != held[0] {
		t.Errorf("the file used most was closed: %v", err)
	}
	for i, im := range held {
		var magic [4]byte
		if _, err := im.ReadAt(magic[:], 0); err != nil || string(magic[:]) != "\x7fELF" {
			t.Errorf("image %d: %q, %v", i, magic, err)
		}
	}
	images.Close()
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors after Close, %d before", n, before)
	}
	if _, err := held[0].ReadAt(make([]byte, 4), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
}

func TestImageReadAllocates(t *testing.T) {
	images := NewImages(0)
	defer images.Close()
	ref := refTo(t, "/bin/sh")
	im, err := images.Open(ref)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() { im.ReadAt(b, 0) }); n != 0 {
		t.Errorf("a read makes %v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { images.Open(ref) }); n != 0 {
		t.Errorf("finding a known file makes %v allocations", n)
	}
}

// Overlayfs on two file systems tells stat other numbers than maps.
func TestImagesOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root, to mount")
	}
	testenv.Needs(t, "mount", "unshare")
	if os.Getenv("SWBPF_TEST_INSIDE") == "" {
		dir := t.TempDir()
		script := fmt.Sprintf(`mount -t tmpfs none %[1]s && cd %[1]s && mkdir l u m && mount -t tmpfs none l && mount -t tmpfs none u &&
			mkdir u/u u/w && cp /bin/sleep l/lower && cp /bin/sleep u/u/upper && echo >>u/u/upper &&
			mount -t overlay overlay -o lowerdir=l,upperdir=u/u,workdir=u/w m && exec %[2]s -test.run='^TestImagesOverlay$' -test.v`, dir, os.Args[0])
		cmd := exec.Command("unshare", "-m", "sh", "-c", script)
		cmd.Env = append(os.Environ(), "SWBPF_TEST_INSIDE="+dir+"/m")
		testenv.Run(t, cmd)
		return
	}
	images := NewImages(0)
	defer images.Close()
	for _, name := range []string{"lower", "upper"} {
		path := filepath.Join(os.Getenv("SWBPF_TEST_INSIDE"), name)
		cmd := exec.Command(path, "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var m *Mapping
		for m == nil || m.Path != path { // Start returns in the middle of exec
			space, err := images.LoadAddressSpace(int32(cmd.Process.Pid))
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if maps := space.Mappings(); len(maps) > 0 {
				m = maps[0]
			}
		}
		if m.Image == nil {
			t.Fatalf("%+v", m)
		}
		// Through our own namespace, by the numbers that maps shows.
		ref := FileRef{Path: path, Dev: m.Image.ID.Dev, Inode: m.Image.ID.Inode}
		fd, st, err := findFile(&ref, nil)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		if st.Dev == ref.Dev {
			t.Errorf("stat and maps agree on device %#x: nothing was tested", st.Dev)
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
}

func TestVDSO(t *testing.T) {
	images := NewImages(0)
	defer images.Close()
	space, err := images.LoadAddressSpace(int32(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	var own *Mapping
	for _, m := range space.Mappings() {
		if m.Path == "[vdso]" {
			own = m
		}
	}
	if own == nil || own.Image == nil || own.Image.Arch() != HostArch() {
		t.Fatalf("no vdso of our own: %+v", own)
	}
	memory, err := readProcMem(int32(os.Getpid()), own.Start, 64)
	var file [64]byte
	if err != nil || space.ReadFile(file[:], own.Start) != nil || string(file[:]) != string(memory) {
		t.Errorf("% x in memory, %v; % x in the image", memory, err, file)
	}
	// Lengths that no vdso has, and processes that are gone.
	for _, test := range []struct{ start, end uint64 }{
		{own.Start, own.Start}, {own.Start, own.Start + maxVDSO + 1}, {0x1000, 0x3000}, {own.Start, 0},
	} {
		if im, err := images.VDSO(0, test.start, test.end); err == nil {
			t.Errorf("[%#x, %#x): %+v", test.start, test.end, im)
		}
	}
}

func TestHasFile(t *testing.T) {
	for path, want := range map[string]bool{
		"": false, "//anon": false, "[heap]": false, "[vdso]": false, "[anon:x]": false, "anon_inode:[x]": false,
		"/anon_hugepage (deleted)": false, "/anon_hugepage": false, "/SYSV00000000 (deleted)": false,
		"/dev/zero (deleted)": false, "/dev/zero": false,
		"/bin/sh": true, "/memfd:x (deleted)": true, "/x (deleted)": true, "//anon/x": true, "/": true,
	} {
		if HasFile(path) != want {
			t.Errorf("%q: %v", path, !want)
		}
	}
}

// Files that nobody used since the call before are closed, and opened again
// for those who still read them.
func TestImagesCloseIdle(t *testing.T) {
	dir := t.TempDir()
	images := NewImages(0)
	defer images.Close()
	var ims [3]*Image
	var refs [3]*FileRef
	for i, program := range []string{"/bin/sh", "/bin/ls", "/bin/cat"} {
		refs[i] = refTo(t, copyFile(t, program, filepath.Join(dir, filepath.Base(program))))
		im, err := images.Open(refs[i])
		if err != nil {
			t.Fatal(err)
		}
		ims[i] = im
	}
	keep := func(im *Image) bool { return im == ims[0] }
	open := func(when string, want int) {
		t.Helper()
		if s := images.Stats(); s.OpenNow != want || s.Evicted != uint64(len(ims)-want) {
			t.Errorf("%s: %+v, want %d open", when, s, want)
		}
	}
	images.CloseIdle(keep)
	open("all just opened", 3)
	if _, err := images.Open(refs[1]); err != nil {
		t.Fatal(err)
	}
	images.CloseIdle(keep)
	open("one kept, one mapped again", 2)
	images.CloseIdle(keep)
	open("one kept", 1)
	for i, im := range ims {
		var b [4]byte
		if _, err := im.ReadAt(b[:], 0); err != nil || string(b[:]) != elf.ELFMAG {
			t.Errorf("file %d: %q, %v", i, b, err)
		}
	}
}

// Where the process may not open more files, some of those held are given up
// for new ones, and can be read all the same.
func TestImagesTooManyOpen(t *testing.T) {
	dir := t.TempDir()
	images := NewImages(1000)
	defer images.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(openFDs(t) + 12), Max: limit.Max}
	var refs []*FileRef
	for i := range 40 {
		refs = append(refs, refTo(t, copyFile(t, "/bin/sh", filepath.Join(dir, fmt.Sprint(i)))))
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	for _, ref := range refs {
		im, err := images.Open(ref)
		if err != nil {
			t.Fatal(err)
		}
		var b [4]byte
		if _, err := im.ReadAt(b[:], 0); err != nil || string(b[:]) != elf.ELFMAG {
			t.Fatalf("%s: %q, %v", ref.Path, b, err)
		}
	}
	if s := images.Stats(); s.Evicted == 0 || s.Failed != 0 || s.OpenNow > 12 {
		t.Errorf("%+v", s)
	}
}

// An inode that could not be opened by one name can by another: its number was given to a new file, or it is seen elsewhere.
func TestImagesOfInodeAgain(t *testing.T) {
	path := copyFile(t, "/bin/sh", filepath.Join(t.TempDir(), "x"))
	images := NewImages(0)
	defer images.Close()
	ref := refTo(t, path)
	ref.Path += " (deleted)"
	for range 2 {
		if _, err := images.Open(ref); !errors.Is(err, ErrFileGone) {
			t.Errorf("error %v", err)
		}
	}
	if s := images.Stats(); s.Failed != 1 || s.FailedAgain != 1 {
		t.Errorf("%+v", s)
	}
	if _, err := images.Open(refTo(t, path)); err != nil {
		t.Error(err)
	}
}
