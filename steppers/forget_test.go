package steppers

import (
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/dataflow"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/unwind"
)

// TestForgetImages checks that each stepper lets go of what it knows of a file, and of no
// other.
func TestForgetImages(t *testing.T) {
	gone, stays := &procstate.Image{Index: 3}, &procstate.Image{Index: 5}
	tables := unwind.NewTables()
	g := Default(tables)
	for _, s := range []unwind.FrameStepper{NewWanderer(&codeHelper{}, NewFrameAnalyzer()), NewDyninstInstr()} {
		if err := g.AddStepper(s); err != nil {
			t.Fatal(err)
		}
	}
	known := map[string]func(im *procstate.Image) bool{}
	for _, im := range []*procstate.Image{gone, stays} {
		table := tables.For(im)
		if im == stays {
			known["tables"] = func(im *procstate.Image) bool { return im != stays || tables.For(im) == table }
		}
		for _, s := range g.Steppers() {
			switch s := s.(type) {
			case *Bottom:
				s.entries.Put(im, &mcode.Range{})
				known["bottom"] = func(im *procstate.Image) bool { return s.entries.Get(im) != nil }
			case *Analysis:
				s.code.Put(im, &analysedImage{})
				s.kept.images.Put(im, &map[uint64]*dataflow.Callee{})
				known["analysis"] = func(im *procstate.Image) bool { return s.code.Get(im) != nil && s.kept.images.Get(im) != nil }
			case *Debug:
				s.kept.images.Put(im, &map[uint64]*dataflow.Callee{})
				known["debug"] = func(im *procstate.Image) bool { return s.kept.images.Get(im) != nil }
			case *Go:
				s.images.Put(im, &goImage{})
				known["go"] = func(im *procstate.Image) bool { return s.images.Get(im) != nil }
			case *SBCL:
				s.images.Put(im, new(bool))
				known["sbcl"] = func(im *procstate.Image) bool { return s.images.Get(im) != nil }
			case *FrameFunc:
				a := NewFrameAnalyzer()
				if s.helper != nil {
					a = s.helper.(*FrameAnalyzer)
				}
				s.helper = a
				a.images.Put(im, &imageFrames{kept: 100})
				a.kept += 100
				s.kept.images.Put(im, &map[uint64]*dataflow.Callee{})
				known["frame"] = func(im *procstate.Image) bool {
					return a.images.Get(im) != nil && s.kept.images.Get(im) != nil && (im == stays) == (a.kept == 100)
				}
			case *Wanderer:
				h, a := s.helper.(*codeHelper), s.frames.(*FrameAnalyzer)
				h.images.Put(im, &imageStarts{})
				a.images.Put(im, &imageFrames{})
				known["wanderer"] = func(im *procstate.Image) bool { return h.images.Get(im) != nil && a.images.Get(im) != nil }
			case *DyninstInstr:
				s.tramps.Put(im, &[]baseTramp{})
				known["dyninst"] = func(im *procstate.Image) bool { return s.tramps.Get(im) != nil }
			}
		}
	}
	before := tables.For(gone)
	g.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if len(known) != 9 {
		t.Errorf("%d places where something is known", len(known))
	}
	for name, knows := range known {
		if !knows(stays) {
			t.Errorf("%s: nothing is known of a file that is kept", name)
		}
		if name != "tables" && knows(gone) {
			t.Errorf("%s: something is known of a file that is not", name)
		}
	}
	if tables.For(gone) == before {
		t.Error("the table of a file that is not kept is")
	}
	for _, s := range []unwind.ImageForgetter{&Bottom{}, &Analysis{}, &Debug{}, &Go{}, &SBCL{}, &FrameFunc{}, &FrameAnalyzer{}, &Wanderer{}, &DyninstInstr{}} {
		s.ForgetImages(func(uint32) bool { return false }) // and nothing is known
	}
}
