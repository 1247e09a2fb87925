package unwind

import (
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

	mu     sync.RWMutex
	tables []*Table // by Image.Index
}

// NewTables makes an empty Tables with the default budget.
func NewTables() *Tables { return NewTablesWithBudget(DefaultTableBudget) }

// NewTablesWithBudget makes an empty Tables that keeps about as many bytes at
// most.
func NewTablesWithBudget(budget int64) *Tables { return &Tables{budget: budget} }

// For returns the Table of an image.
func (ts *Tables) For(img *procstate.Image) *Table {
	ts.mu.RLock()
	var t *Table
	if uint64(img.Index) < uint64(len(ts.tables)) {
		t = ts.tables[img.Index]
	}
	ts.mu.RUnlock()
	if t == nil {
		t = ts.add(img)
	}
	t.lastUse.Store(ts.clock.Load())
	return t
}

func (ts *Tables) add(img *procstate.Image) *Table {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for uint64(len(ts.tables)) <= uint64(img.Index) {
		ts.tables = append(ts.tables, nil)
	}
	if ts.tables[img.Index] == nil {
		t := &Table{img: img, windows: &ts.windows, owner: ts}
		ts.tables[img.Index] = t
	}
	return ts.tables[img.Index]
}

// Used returns the memory in use, in bytes.
func (ts *Tables) Used() int64 { return ts.used.Load() }

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
	ts.mu.RLock()
	var oldest *Table
	for _, t := range ts.tables {
		if t == nil || t == keep || t.used.Load() == 0 {
			continue
		}
		if oldest == nil || t.lastUse.Load() < oldest.lastUse.Load() {
			oldest = t
		}
	}
	ts.mu.RUnlock()
	if oldest == nil {
		oldest = keep
	}
	return oldest.forget()
}

// forget drops everything that the Table keeps and returns its size.
func (t *Table) forget() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = rows{}
	t.sources = nil
	t.opened = 0
	t.prog, t.fde = program{}, fde{}
	return t.used.Swap(0)
}
