package procstate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
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
				if os.Getenv("SWBPF_REQUIRE_KERNEL") == "1" {
					t.Fatal("not root")
				}
				t.Skip("needs root for a mount namespace")
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
