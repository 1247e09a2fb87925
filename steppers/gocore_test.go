package steppers

import (
	"bytes"
	"debug/elf"
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// coreOf is a core whose mappings are told by the test: those that the
// emulator writes name no files.
type coreOf struct {
	*procstate.Core
	libs *procstate.AddressSpace
}

func (c *coreOf) Libraries() procstate.LibraryState { return c.libs }

// A crashed arm64 program is walked from its core as its own runtime has
// printed it: from the signal handler across to the goroutine that faulted.
func TestGoARM64AgainstItsTraceback(t *testing.T) {
	testenv.Needs(t, "qemu-aarch64")
	t.Setenv("GOARCH", "arm64")
	t.Setenv("CGO_ENABLED", "0")
	path := buildGo(t, "gocrash")
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `ulimit -c unlimited; exec qemu-aarch64 "$0"`, path)
	cmd.Dir = dir
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if err := cmd.Run(); err == nil {
		t.Fatal("the program did not crash")
	}
	cores, _ := filepath.Glob(filepath.Join(dir, "qemu_*.core"))
	if len(cores) != 1 {
		t.Fatalf("cores %v, output:\n%s", cores, printed.String())
	}
	core, err := procstate.OpenCore(cores[0], path)
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close()
	img := steptest.OpenImage(t, path)
	c := &coreOf{core, &procstate.AddressSpace{}}
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X != 0 {
			c.libs.Insert(&procstate.Mapping{Start: s.Vaddr &^ 4095, End: (s.Vaddr + s.Memsz + 4095) &^ 4095, Offset: s.Off &^ 4095, Image: img})
		}
	}
	w := unwind.NewWalker(c, Default(unwind.NewTables()), nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if errors.Is(err, unwind.NoMapping) { // the trampoline is in a page of the emulator
		page := frames[len(frames)-1].PC() &^ 4095
		c.libs.Insert(&procstate.Mapping{Start: page, End: page + 4096})
		frames, err = w.WalkStack(nil, procstate.DefaultThread)
	}
	if err != nil {
		t.Fatalf("%v after %d frames", err, len(frames))
	}
	// What the runtime printed of the goroutine, but for inlined calls.
	_, text, _ := strings.Cut(printed.String(), "[running]:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	lines := regexp.MustCompile(`fp=0x[0-9a-f]+ sp=0x([0-9a-f]+) pc=0x([0-9a-f]+)`).FindAllStringSubmatch(text, -1)
	if len(lines) < 8 || len(lines) > len(frames) {
		t.Fatalf("%d frames, the runtime has\n%s", len(frames), text)
	}
	tail := frames[len(frames)-len(lines):]
	for i, l := range lines {
		sp, _ := strconv.ParseUint(l[1], 16, 64)
		pc, _ := strconv.ParseUint(l[2], 16, 64)
		if tail[i].PC() != pc || tail[i].SP() != sp {
			t.Errorf("frame %d: pc %#x sp %#x, the runtime has %s", i, tail[i].PC(), tail[i].SP(), l[0])
		}
	}
	signals := 0
	for _, f := range frames {
		if f.Flags&unwind.Signal != 0 {
			signals++
		}
	}
	if signals != 1 {
		t.Errorf("%d signal frames, want 1", signals)
	}
}
