package unwind

import (
	"sync"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// manyFunctions is an image of n functions of 16 bytes, with one row each of
// its own.
func manyFunctions(t testing.TB, n uint64) *procstate.Image {
	t.Helper()
	var c cfiBuilder
	cie := c.zR()
	for i := range n {
		off := 16 + i*8
		c.fde(cie, codeBase+i*16, 16, cfaDefCFAOffset, byte(off)|0x80, byte(off>>7)|0x80, byte(off>>14))
	}
	return c.image(t, procstate.AMD64, nil)
}

func TestTablesAreShared(t *testing.T) {
	ts := NewTables()
	a, b := manyFunctions(t, 3), manyFunctions(t, 3)
	first := ts.For(a)
	if ts.For(b) == first || ts.For(a) != first {
		t.Error("not one Table for each image")
	}
	if r := ts.For(a).Rule(codeBase + 16); r != ts.For(a).Rule(codeBase+31) || r.cfaOff != 24 {
		t.Errorf("rule CFA+%d", r.cfaOff)
	}
}

// TestTablesBudget fills the budget many times over: what is kept stays
// bounded, what was used last stays, and rules stay right.
func TestTablesBudget(t *testing.T) {
	const budget = 400 << 10
	ts := NewTablesWithBudget(budget)
	var images []*procstate.Image
	for range 8 {
		images = append(images, manyFunctions(t, 2000))
	}
	old := ts.For(images[0]).Rule(codeBase)
	var most int64
	for round := range 3 {
		for _, img := range images {
			for i := range uint64(2000) {
				r := ts.For(img).Rule(codeBase + i*16 + 5)
				if r.Reason() != ReasonNone || r.cfaOff != int32(16+i*8) {
					t.Fatalf("round %d, function %d: %v, CFA+%d", round, i, r.Reason(), r.cfaOff)
				}
				most = max(most, ts.used.Load())
			}
		}
	}
	if most > budget+100<<10 || ts.used.Load() > budget {
		t.Errorf("%d bytes at most, %d at the end, with a budget of %d", most, ts.used.Load(), budget)
	}
	if images[0].Index == 0 && old.cfaOff != 16 {
		t.Error("a rule changed after it was forgotten")
	}
	var sum int64
	for _, img := range images {
		sum += ts.For(img).used.Load()
	}
	if sum != ts.used.Load() {
		t.Errorf("the tables use %d bytes, accounted for are %d", sum, ts.used.Load())
	}
}

func TestTablesConcurrently(t *testing.T) {
	ts := NewTablesWithBudget(100 << 10)
	images := []*procstate.Image{manyFunctions(t, 500), manyFunctions(t, 500), manyFunctions(t, 500)}
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			for i := range uint64(3000) {
				n := (i*7 + g*13) % 500
				if r := ts.For(images[i%3]).Rule(codeBase + n*16); r.cfaOff != int32(16+n*8) {
					t.Errorf("function %d: CFA+%d", n, r.cfaOff)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestKeptRuleDoesNotAllocate(t *testing.T) {
	ts := NewTables()
	img := manyFunctions(t, 500)
	use := func() {
		for i := range uint64(500) {
			if ts.For(img).Rule(codeBase+i*16+1).Reason() != ReasonNone {
				t.Fatal("no rule")
			}
		}
	}
	use()
	if n := testing.AllocsPerRun(10, use); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTooManyRules compiles more distinct rules than a table can number.
func TestTooManyRules(t *testing.T) {
	img := manyFunctions(t, maxRules+100)
	tab := NewTable(img)
	for _, i := range []uint64{0, 1} {
		for j := range uint64(maxRules + 100) {
			if r := tab.Rule(codeBase + j*16); r.cfaOff != int32(16+j*8) {
				t.Fatalf("round %d, function %d: %v, CFA+%d", i, j, r.Reason(), r.cfaOff)
			}
		}
	}
}

// Where IsInside is true, FunctionAt is of an address below; once the rules of a
// function are kept, it is true nearly everywhere in it.
func TestIsInside(t *testing.T) {
	img := openTestImage(t, libraryPath(t, "libc.so.6"))
	table := NewTable(img)
	starts := img.FuncStarts()
	if len(starts) < 1000 {
		t.Fatalf("libc has %d functions", len(starts))
	}
	if table.IsInside(starts[0] + 1) {
		t.Error("something is known of a table that was not asked for anything")
	}
	for _, start := range starts {
		table.Rule(start)
	}
	inside := 0
	for _, start := range starts {
		for vaddr := start; vaddr < start+3; vaddr++ {
			if !table.IsInside(vaddr) {
				continue
			}
			inside++
			if at, _, ok := table.FunctionAt(vaddr); !ok || at >= vaddr {
				t.Fatalf("%#x is taken for the middle of a function: FunctionAt is %#x, %v", vaddr, at, ok)
			}
		}
	}
	if inside < len(starts) {
		t.Errorf("of %d functions, %d addresses are known to be inside", len(starts), inside)
	}
}

// What is compiled tells of the row behind an instruction what the rows
// themselves do, at the ends of pages too.
func TestLook(t *testing.T) {
	const within = 24
	img := openTestImage(t, libraryPath(t, "libc.so.6"))
	tab := NewTable(img)
	nexts, first, only, acrossPages := 0, 0, 0, 0
	last := uint64(0)
	for _, f := range img.FuncStarts() {
		lo, hi, ok := tab.FunctionAt(f)
		if !ok || lo < last {
			continue
		}
		last = hi
		var starts []uint64
		for at := lo; at < hi; {
			row, start, end, err := tab.Row(at)
			if err != nil || row.CFA.isExpression() {
				break // linkage tables have rows of their own
			}
			starts = append(starts, start)
			at = end
		}
		oneRule := true
		for _, start := range starts {
			oneRule = oneRule && tab.Rule(start) == tab.Rule(lo)
		}
		for i, start := range starts {
			end := hi
			if i+1 < len(starts) {
				end = starts[i+1]
			}
			tab.Rule(start)
			for v := max(start, end-min(end, within+2)); v < end; v++ {
				r := tab.Rule(v)
				place := tab.Look(v, within)
				if place.Inside && v+1 >= hi {
					t.Fatalf("%#x: %#x is said to be in the same function, which ends there", v, v+1)
				}
				if !place.Inside && v+1 < hi && (v+1)%(1<<pageBits) != 0 && tab.IsInside(v+1) {
					t.Fatalf("%#x: %#x is not said to be in the same function", v, v+1)
				}
				at, next := place.NextAt, place.Next
				switch {
				case next == nil && v != start && end != hi && end-v <= within && tab.Rule(end) != r:
					t.Fatalf("%#x: no rule follows, but one does at %#x", v, end)
				case next == nil:
				case v == start && (v == lo || tab.Rule(v-1) != r):
					t.Fatalf("%#x: a rule follows at %#x, though one begins here", v, at)
				case at <= v || at-v > within || at >= hi || tab.Rule(at-1) != r || tab.Rule(at) != next:
					t.Fatalf("%#x: a rule follows at %#x", v, at)
				default:
					nexts++
					if v>>pageBits != at>>pageBits {
						acrossPages++
					}
				}
				switch begins, ends, alone, ok := tab.FirstRule(v); {
				case ok && (begins != lo || v >= ends || tab.Rule(ends-1) != r || !alone && tab.Rule(ends) == r):
					t.Fatalf("%#x: the first rule from %#x to %#x, of a function from %#x to %#x with %d rows", v, begins, ends, lo, hi, len(starts))
				case ok && alone != (oneRule && ends == hi):
					t.Fatalf("%#x: the only rule: %t, of a function at %#x with %d rows", v, alone, lo, len(starts))
				case !ok && i == 0:
					t.Fatalf("%#x: not the first rule, of a function at %#x", v, lo)
				case ok && alone:
					only++
				case ok:
					first++
				}
			}
		}
	}
	if nexts < 1000 || first < 1000 || only < 1000 || acrossPages == 0 {
		t.Errorf("%d addresses with a rule behind, %d of them in the next page, %d with the first rule, %d with the only one", nexts, acrossPages, first, only)
	}
}

// FirstRule of functions of several pages, whichever page is asked for first.
func TestFirstRulePages(t *testing.T) {
	const page = 1 << pageBits
	var c cfiBuilder
	cie := c.zR()
	c.fde(cie, codeBase+100, 3*page, cfaDefCFAOffset, 32)
	c.fde(cie, codeBase+8*page+100, 3*page, cfaAdvanceLoc1, 9, cfaDefCFAOffset, 32)
	c.fde(cie, codeBase+16*page+100, 3*page, cfaAdvanceLoc2, 0, 2*page>>8, cfaDefCFAOffset, 32)
	for _, tc := range []struct {
		from, start, end uint64
		only             bool
	}{
		{100, 100, 100 + 3*page, true},
		{8*page + 100, 8*page + 100, 8*page + 109, false},
		{16*page + 100, 16*page + 100, 18*page + 100, false},
	} {
		for i := range uint64(4) {
			tab := NewTable(c.image(t, procstate.AMD64, nil))
			for j := range uint64(4) {
				for _, v := range []uint64{max(tc.from, (tc.from+(i+j)%4*page)&^(page-1)), min(tc.from+(i+j)%4*page+50, tc.from+3*page-1)} {
					start, end, only, ok := tab.FirstRule(codeBase + v)
					if want := v >= tc.start && v < tc.end; ok != want || ok && (start != codeBase+tc.start || end != codeBase+tc.end || only != tc.only) {
						t.Errorf("%#x: %#x to %#x, only %v, %v; want %#x to %#x, only %v, %v", v, start, end, only, ok, codeBase+tc.start, codeBase+tc.end, tc.only, want)
					}
				}
			}
		}
	}
}

// TestTablesForgetImages checks that what tables of other images take is given back, and
// that an image that comes again has its rules.
func TestTablesForgetImages(t *testing.T) {
	ts := NewTables()
	gone, stays := manyFunctions(t, 500), manyFunctions(t, 500)
	for _, img := range []*procstate.Image{gone, stays} {
		for i := range uint64(500) {
			ts.For(img).Rule(codeBase + i*16)
		}
	}
	old, kept := ts.For(gone), ts.For(stays)
	ts.ForgetImages(func(index uint32) bool { return index == stays.Index })
	if used := kept.used.Load(); ts.For(stays) != kept || used == 0 || ts.used.Load() != used {
		t.Errorf("%d bytes are used, %d of them by the table that is kept", ts.used.Load(), used)
	}
	if r := ts.For(gone).Rule(codeBase + 16); ts.For(gone) == old || r.cfaOff != 24 {
		t.Errorf("rule CFA+%d of a table that was there before: %v", r.cfaOff, ts.For(gone) == old)
	}
	new(Tables).ForgetImages(func(uint32) bool { return false })
}
