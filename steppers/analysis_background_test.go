//go:build linux

package steppers

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

// TestAnalysisInBackground asks about frames of files: those without unwind tables are
// looked through at once, others when that is worth it, and meanwhile the frames are
// nobody's.
func TestAnalysisInBackground(t *testing.T) {
	images := procstate.NewImages(0)
	defer images.Close()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("without tables", func(t *testing.T) {
		lookedThrough(t, withoutSections(t, exe), 1)
	})
	t.Run("with tables", func(t *testing.T) {
		found, _ := filepath.Glob("/usr/lib/*/libcrypto.so.[0-9]")
		if len(found) == 0 {
			testenv.Lacks(t, "no libcrypto")
		}
		im := steptest.OpenFile(t, images, found[0])
		size := mcode.Size(im)
		if size <= 2*codePerFrame {
			t.Fatalf("%s has %d bytes of code", found[0], size)
		}
		lookedThrough(t, im, (size+codePerFrame-1)/codePerFrame)
	})
	t.Run("small", func(t *testing.T) { // when it is worth it, at once
		if _, err := os.Stat("/bin/bash"); err != nil {
			testenv.Lacks(t, "no bash")
		}
		im := steptest.OpenFile(t, images, "/bin/bash")
		size := mcode.Size(im)
		if size <= maxAtOnce || size > maxSoon {
			t.Skipf("bash has %d bytes of code", size)
		}
		a, e := &Analysis{InBackground: true}, &analysedCode{}
		for asked := uint64(1); asked*codePerFrame < size+codePerFrame; asked++ {
			if code, worth := a.look(e, im, mcode.Range{}), asked*codePerFrame >= size; worth != (code != nil) {
				t.Errorf("asked about %d times: looked through %t, of %d bytes", asked, code != nil, size)
			}
		}
	})
}

// TestAnalysisAlone asks about functions that a symbol gives the size of: those that stand alone
// have rules at once, and nothing else of their file is looked through.
func TestAnalysisAlone(t *testing.T) {
	found, _ := filepath.Glob("/usr/lib/*/libcrypto.so.[0-9]")
	if len(found) == 0 {
		testenv.Lacks(t, "no libcrypto")
	}
	images := procstate.NewImages(0)
	defer images.Close()
	im := steptest.OpenFile(t, images, found[0])
	a, known, asked := &Analysis{InBackground: true}, 0, uint64(0)
	for _, start := range im.FuncStarts() {
		lo, hi, alone := im.FunctionAround(start)
		if !alone || lo != start {
			continue
		}
		asked++
		for _, vaddr := range []uint64{lo, hi - 1, lo} {
			if c := a.codeAt(im, vaddr); c != nil {
				if _, ok := c.RuleAt(lo); !ok {
					t.Errorf("%#x: no rule", lo)
				}
				known++
			}
		}
		if asked == 20 {
			break
		}
	}
	if e := a.code.Get(im); known < 3*8 || len(e.alone.looked) != 20 || e.rest.done {
		t.Errorf("%d of 60 known, %d functions looked at", known, len(e.alone.looked))
	}
	for range 2 * maxAlone { // what nothing is found of costs no more than a bounded time
		a.code.Get(im).alone.at(im, im.Segments()[0].Vaddr)
	}
	if e := a.code.Get(im); e.alone.tries < maxAloneTries-1 {
		t.Errorf("%d looks left of %d for one address", e.alone.tries, maxAloneTries)
	}
}

// withoutSections returns a file without its sections, and so without unwind tables, which Go's linker makes for
// debuggers, and symbols: by these, functions could be looked at by themselves.
func withoutSections(t *testing.T, path string) *procstate.Image {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const offset, count, names = 40, 60, 62 // of the ELF header
	clear(b[offset : offset+8])
	clear(b[count : count+2])
	clear(b[names : names+2])
	im, err := procstate.NewImageBytes(b, path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// lookedThrough has a file looked through that has to be asked about so often.
func lookedThrough(t *testing.T, im *procstate.Image, often uint64) {
	a := &Analysis{InBackground: true}
	at := im.Segments()[0].Vaddr
	for _, s := range im.Sections() {
		if s.Name == ".text" {
			at = s.Vaddr
		}
	}
	for i := uint64(1); i < often; i++ {
		if a.codeAt(im, at) != nil || a.code.Get(im).rest.pending != nil {
			t.Fatalf("looked through after %d frames of %d bytes", i, mcode.Size(im))
		}
	}
	if a.codeAt(im, at) != nil || a.code.Get(im).rest.pending == nil {
		t.Fatal("not looked through in the background when it was worth it")
	}
	for end := time.Now().Add(time.Minute); a.codeAt(im, at) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not looked through after a minute")
		}
	}
	if c := NewAnalysis().codeAt(im, at); c == nil {
		t.Error("not looked through at once where nobody has to keep up")
	}
}
