package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
)

// A function's bounds are those that the file tells, also where these lie far apart;
// what is too far from the first one is left out, and then not all are known.
func TestFunctionBounds(t *testing.T) {
	const first, far = 1 << 40, 1<<40 + 1<<32
	for _, c := range []struct {
		starts            []uint64
		vaddr, start, end uint64
		whole             bool
	}{
		{nil, first, 0, first + maxFuncCode, true},
		{[]uint64{first, first + 32}, first - 1, 0, first, true},
		{[]uint64{first, first + 32}, first, first, first + 32, true},
		{[]uint64{first, first + 32}, first + 31, first, first + 32, true},
		{[]uint64{first, first + 32}, first + 32, first + 32, first + 32 + maxFuncCode, true},
		{[]uint64{first, far - 1}, far - 2, 0, far - 1, true},
		{[]uint64{first, far - 1}, far + 6, far - 1, far + 6 + maxFuncCode, true},
		{[]uint64{first, far}, far + 7, 0, far + 7 + maxFuncCode, false},
	} {
		im := &imageFrames{whole: true}
		im.setStarts(c.starts)
		if start, end := im.bounds(c.vaddr); start != c.start || end != c.end || im.whole != c.whole {
			t.Errorf("starts %#x: at %#x [%#x, %#x), whole %t; want [%#x, %#x), %t",
				c.starts, c.vaddr, start, end, im.whole, c.start, c.end, c.whole)
		}
	}
}

// TestFewLooks: what is looked up in a file for an address is what all its functions
// tell, and after some looks these are known.
func TestFewLooks(t *testing.T) {
	static := steptest.Compile(t, []string{"gcc", "-O2", "-static"}, "x.c", "#include <stdio.h>\nint main(void) { return puts(\"x\"); }\n")
	for _, path := range []string{"/bin/bash", static} {
		img := steptest.OpenImage(t, path)
		starts := img.FuncStarts()
		var pcs []uint64
		for i := 0; i < len(starts); i += 1 + len(starts)/30 {
			pcs = append(pcs, starts[i], starts[i]+5)
		}
		for part, want := range coldParts(img) {
			pcs = append(pcs, part)
			if f, isPart, known := coldPart(img, part); f != want || !isPart || !known {
				t.Errorf("%s: %#x is a part: %t, of %#x, known: %t; want of %#x", path, part, isPart, f, known, want)
			}
		}
		known := NewFrameAnalyzer()
		known.framesOf(img).looks = fewLooks
		a := NewFrameAnalyzer()
		a.framesOf(img).looks = fewLooks - 3 // these files are small: one look finds many functions
		set := 0
		for i, pc := range pcs {
			got, want := a.analyzeFile(img, pc, false), known.analyzeFile(img, pc, false)
			if got != want {
				t.Errorf("%s: at %#x %+v, want %+v", path, pc, got, want)
			}
			if want.State != UnknownState {
				set++
			}
			if i == 0 && a.framesOf(img).starts != nil {
				t.Errorf("%s: all functions are known after one look", path)
			}
		}
		near := NewFrameAnalyzer().framesOf(img)
		for _, pc := range pcs {
			start, end := near.bounds(pc)
			if s, e := known.framesOf(img).bounds(pc); s != start || e != end {
				t.Errorf("%s: %#x is in [%#x, %#x), want [%#x, %#x)", path, pc, start, end, s, e)
			}
		}
		if near.starts != nil || near.looks > 12 {
			t.Errorf("%s: %d looks at where functions begin", path, near.looks)
		}
		if set < len(pcs)/4 || a.framesOf(img).starts == nil {
			t.Errorf("%s: %d of %d addresses have a layout; %d looks", path, set, len(pcs), a.framesOf(img).looks)
		}
	}
}
