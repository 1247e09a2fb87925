package procstate

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestImageRoot opens the program of a process with our root, and of one in a
// mount namespace of its own.
func TestImageRoot(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uintptr
	}{{"ours", 0}, {"another", syscall.CLONE_NEWNS}} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.flags != 0 && os.Geteuid() != 0 {
				testenv.Lacks(t, "needs root for a mount namespace")
			}
			cmd := exec.Command("cat")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tc.flags}
			startCat(t, cmd)
			images := NewImages(0)
			space, err := images.LoadAddressSpace(int32(cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			var im *Image
			for i := range space.Mappings() {
				if m := space.Mappings()[i]; m.Path == exe {
					im = m.Image
				}
			}
			if im == nil {
				t.Fatalf("no image of %s", exe)
			}
			if (im.Root != "") != (tc.flags != 0) {
				t.Fatalf("root %q", im.Root)
			}
			b, err := os.ReadFile(im.Root + im.Path)
			if err != nil || int64(len(b)) != im.Size() {
				t.Errorf("%s%s: %d bytes, %v", im.Root, im.Path, len(b), err)
			}
			if err := images.Close(); err != nil {
				t.Fatal(err)
			}
			if len(images.roots) > 0 {
				t.Errorf("%d roots are held after Close", len(images.roots))
			}
		})
	}
}

// TestImageOfHeldRoot opens a file of a mount namespace when the process that
// mapped it has ended, through the root that another file has left.
func TestImageOfHeldRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root for a mount namespace")
	}
	testenv.Needs(t, "mount")
	// A file system that only the namespace has, with a program that is there alone.
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `mount -t tmpfs none "$0" && cp "$(readlink -f "$(command -v cat)")" "$0/first" && cp "$0/first" "$0/second" &&
		echo changed >> "$0/second" && exec "$0/first"`, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	startCat(t, cmd)
	images := NewImages(0)
	defer images.Close()
	pid := int32(cmd.Process.Pid)
	if _, err := images.LoadAddressSpace(pid); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/root%s/second", pid, dir), &st); err != nil {
		t.Fatal(err)
	}
	// A process of a number that no process can have is one that has ended.
	ref := FileRef{PID: 1<<30 + 1, TID: 1<<30 + 1, Path: dir + "/second", Start: 0x1000, End: 0x2000, Dev: st.Dev, Inode: st.Ino}
	im, err := images.Open(&ref)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(im.Root + im.Path)
	if err != nil || int64(len(b)) != st.Size || im.Size() != st.Size {
		t.Errorf("%s%s: %d bytes of %d, %v", im.Root, im.Path, len(b), st.Size, err)
	}
	// Its path leads to another file for who asks for one that is gone.
	ref.Inode++
	if im, err := images.Open(&ref); !errors.Is(err, ErrFileGone) {
		t.Errorf("another file: %v, %v", im, err)
	}
}
