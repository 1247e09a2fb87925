package oracle

import (
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/unwind"
)

// Snapshots at which a stepper once went astray, or could, are walked right.
func TestFixtures(t *testing.T) {
	files, _ := filepath.Glob("testdata/fixtures/*.json.gz")
	if len(files) == 0 {
		t.Fatal("no fixtures")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			f, err := LoadFixture(file)
			if err != nil {
				t.Fatal(err)
			}
			right, wrong, err := f.Replay()
			if err != nil {
				t.Fatal(err)
			}
			if wrong || right == 0 {
				t.Errorf("%s: %d of %d frames right, then wrong: %v", f.Note, right, len(f.Frames), wrong)
			}
		})
	}
}

// A fixture whose truth is changed is found wrong.
func TestFixtureCanFail(t *testing.T) {
	files, _ := filepath.Glob("testdata/fixtures/*.json.gz")
	if len(files) == 0 {
		t.Fatal("no fixtures")
	}
	f, err := LoadFixture(files[0])
	if err != nil {
		t.Fatal(err)
	}
	f.Frames[0].SP += 8
	if _, wrong, err := f.Replay(); err != nil || !wrong {
		t.Errorf("wrong %v, error %v", wrong, err)
	}
}

// Once its functions are known, Analysis walks without allocating.
func TestAnalysisDoesNotAllocate(t *testing.T) {
	files, _ := filepath.Glob("testdata/fixtures/analysis-*.json.gz")
	if len(files) == 0 {
		t.Fatal("no fixtures")
	}
	f, err := LoadFixture(files[0])
	if err != nil {
		t.Fatal(err)
	}
	w, regs, err := f.walker()
	if err != nil {
		t.Fatal(err)
	}
	pcs, _ := w.WalkPCs(make([]unwind.PC, 0, 64), regs)
	if len(pcs) < 2 {
		t.Fatalf("%d frames", len(pcs))
	}
	if n := testing.AllocsPerRun(100, func() { pcs, _ = w.WalkPCs(pcs[:0], regs) }); n != 0 {
		t.Errorf("%v allocations a walk", n)
	}
}
