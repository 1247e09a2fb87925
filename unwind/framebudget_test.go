package unwind

import "testing"

func TestFrameBudget(t *testing.T) {
	const def = DefaultMaxFrames
	for _, each := range []int{0, 1, def} {
		if b := (FrameBudget{Each: each, Deep: 100}); b.Limit() != each {
			t.Errorf("of %d frames each: %d", each, b.Limit())
		}
	}
	b := FrameBudget{Each: def + 60, Deep: 100}
	for i, step := range []struct{ keep, limit int }{{def + 60, def + 40}, {def, def + 40}, {def + 40, def}, {def + 1, def}} {
		if b.Keep(step.keep); b.Limit() != step.limit {
			t.Errorf("step %d: %d", i, b.Limit()-def)
		}
	}
	if b.Drop(def + 60); b.Limit() != def+59 {
		t.Errorf("at last: %d", b.Limit()-def)
	}
}
