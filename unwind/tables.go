package unwind

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/swbpf/swbpf/procstate"
)

// DefaultTableBudget is the memory that Tables keep unless told otherwise, in
// bytes.
const DefaultTableBudget = 64 << 20

// Tables shares the Table of each image between all processes and goroutines,
// and bounds the memory of all by a budget: when it is exceeded, the tables
// that were used least recently are forgotten and compiled again when needed.
type Tables struct {
	budget  int64
	used    atomic.Int64
	clock   atomic.Uint64
	windows windows // of all of them
	rules   rulePool

	mu     sync.Mutex               // of who adds one
	tables atomic.Pointer[[]*Table] // by Image.Index; what it points to stays as it is
}

// NewTables makes an empty Tables with the default budget.
func NewTables() *Tables { return NewTablesWithBudget(DefaultTableBudget) }

// NewTablesWithBudget makes an empty Tables that keeps about as many bytes at
// most.
func NewTablesWithBudget(budget int64) *Tables { return &Tables{budget: budget} }

// For returns the Table of an image.
func (ts *Tables) For(img *procstate.Image) *Table {
	t := ts.find(img)
	if t == nil {
		t = ts.add(img)
	}
	if now := ts.clock.Load(); t.lastUse.Load() != now {
		t.lastUse.Store(now)
	}
	return t
}

// all returns the tables by Image.Index, nil where there is none.
func (ts *Tables) all() []*Table {
	if p := ts.tables.Load(); p != nil {
		return *p
	}
	return nil
}

// find returns the Table of an image, nil when there is none yet.
func (ts *Tables) find(img *procstate.Image) *Table {
	if all := ts.all(); uint64(img.Index) < uint64(len(all)) {
		return all[img.Index]
	}
	return nil
}

func (ts *Tables) add(img *procstate.Image) *Table {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.find(img)
	if t == nil {
		t = &Table{img: img, windows: &ts.windows, owner: ts, kept: rows{all: &ts.rules}}
		old := ts.all()
		all := make([]*Table, max(len(old), int(img.Index)+1))
		copy(all, old)
		all[img.Index] = t
		ts.tables.Store(&all)
	}
	return t
}

// ForgetImages forgets the Tables of images, but for those whose Image.Index is kept. No
// other may use them meanwhile.
func (ts *Tables) ForgetImages(isKept func(index uint32) bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	all := slices.Clone(ts.all())
	for i, t := range all {
		if t != nil && !isKept(uint32(i)) {
			ts.used.Add(-t.forget())
			all[i] = nil
		}
	}
	ts.tables.Store(&all)
}

// grow accounts for memory of a Table and forgets others when there is too
// much.
func (ts *Tables) grow(t *Table, n int64) {
	ts.clock.Add(1)
	used := ts.used.Add(n)
	for used > ts.budget {
		freed := ts.evict(t)
		if freed == 0 {
			return
		}
		used = ts.used.Add(-freed)
	}
}

// evict forgets the contents of the Table that was used least recently, that
// of keep only when it is the only one. It returns the bytes freed.
func (ts *Tables) evict(keep *Table) int64 {
	var oldest *Table
	for _, t := range ts.all() {
		if t == nil || t == keep || t.used.Load() == 0 {
			continue
		}
		if oldest == nil || t.lastUse.Load() < oldest.lastUse.Load() {
			oldest = t
		}
	}
	if oldest == nil {
		oldest = keep
	}
	return oldest.forget()
}

// forget drops everything that the Table keeps and returns its size.
func (t *Table) forget() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = rows{all: t.kept.all}
	t.sources = nil
	t.opened = 0
	t.fde = fde{}
	return t.used.Swap(0)
}
