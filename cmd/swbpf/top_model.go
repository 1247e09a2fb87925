package main

import (
	"cmp"
	"slices"

	"github.com/swbpf/swbpf/profile"
)

// topRow is a line of a list: a function, a process or a thread.
type topRow struct {
	fn       uint32 // of functions
	pid, tid int32  // of processes (pid alone) and threads
	comm     string
	threads  int    // of processes
	hottest  uint32 // function with most samples of its own; of processes and threads
	self     int64  // samples, or their value
	total    int64  // of functions: with what they call
}

// leaf returns where in a stack it is told that a sample was taken: at its first
// function that is no remark and, in user space only, none of the kernel where
// there is another one. It is the stack's length when there is no function.
func (n *topNames) leaf(at [][]uint32, stack []uint32, userOnly bool) int {
	first := len(stack)
	for i, place := range stack {
		switch n.funcs[at[place][0]].kind {
		case profile.Marker:
			continue
		case profile.Kernel:
			if userOnly {
				first = min(first, i)
				continue
			}
		}
		return i
	}
	return first
}

// topFunctions counts samples by function, where they were taken and with
// callers: a stack counts once however often a function is in it.
func topFunctions(s *topSnapshot, names *topNames, userOnly bool) []topRow {
	rows := make([]topRow, len(names.funcs))
	counted := make([]uint32, len(names.funcs)) // the last stack for which total was counted, from 1
	stack := uint32(0)
	for _, slot := range s.slots {
		at := names.at[slot.places]
		for i := range slot.stacks {
			k := &slot.stacks[i]
			stack++
			frames := slot.frames[k.first : k.first+k.n]
			leaf := names.leaf(at, frames, userOnly)
			for depth, place := range frames {
				for inlined, fn := range at[place] {
					if depth == leaf && inlined == 0 {
						rows[fn].self += k.count
					}
					if counted[fn] != stack {
						counted[fn] = stack
						rows[fn].total += k.count
					}
				}
			}
		}
	}
	out := rows[:0]
	for fn := range rows {
		if r := rows[fn]; r.total > 0 && names.funcs[fn].kind != profile.Marker {
			r.fn = uint32(fn)
			out = append(out, r)
		}
	}
	return out
}

// topTasks counts samples by thread, or by process.
func topTasks(s *topSnapshot, names *topNames, byThread, userOnly bool) []topRow {
	type task struct {
		topRow
		comms map[[16]byte]int64
		tids  map[int32]bool
		funcs map[uint32]int64
	}
	tasks := map[int32]*task{}
	for _, slot := range s.slots {
		at := names.at[slot.places]
		for i := range slot.stacks {
			k := &slot.stacks[i]
			id := k.thread.PID
			if byThread {
				id = k.thread.TID
			}
			t := tasks[id]
			if t == nil {
				t = &task{comms: map[[16]byte]int64{}, tids: map[int32]bool{}, funcs: map[uint32]int64{}}
				t.pid, t.tid = k.thread.PID, k.thread.TID
				tasks[id] = t
			}
			t.self += k.count
			t.tids[k.thread.TID] = true
			// A process goes by the name of its first thread, where that was met.
			weight := k.count
			if !byThread && k.thread.TID == k.thread.PID {
				weight += 1 << 40
			}
			t.comms[k.thread.Comm] += weight
			frames := slot.frames[k.first : k.first+k.n]
			if i := names.leaf(at, frames, userOnly); i < len(frames) {
				t.funcs[at[frames[i]][0]] += k.count
			}
		}
	}
	rows := make([]topRow, 0, len(tasks))
	for _, t := range tasks {
		t.threads, t.total = len(t.tids), t.self
		th := profile.Thread{Comm: mostOf(t.comms, func(a, b [16]byte) int { return slices.Compare(a[:], b[:]) })}
		t.comm = printable(th.CommString())
		t.hottest = mostOf(t.funcs, cmp.Compare[uint32])
		if !byThread {
			t.tid = t.pid
		}
		rows = append(rows, t.topRow)
	}
	return rows
}

// mostOf returns the key with the largest count, and of equals the first.
func mostOf[K comparable](counts map[K]int64, compare func(a, b K) int) K {
	var best K
	var most int64
	for k, n := range counts {
		if n > most || n == most && compare(k, best) < 0 {
			best, most = k, n
		}
	}
	return best
}

// topNode is a function in a tree of callers or callees.
type topNode struct {
	fn       uint32
	count    int64
	children []uint32 // in the tree
}

// topTree is made of nodes; the first is the root, which is the function whose
// stacks these are, or none.
type topTree struct {
	nodes []topNode
	child map[[2]uint32]uint32 // by parent and function
}

// topSubject is what stacks are shown of: a function, a process or a thread.
type topSubject struct {
	tab topTab
	id  uint32 // function, PID or TID
}

// has tells whether a stack of a thread is one of a process' or thread's.
func (s topSubject) has(t *profile.Thread) bool {
	return s.tab == topTabThreads && uint32(t.TID) == s.id || s.tab == topTabProcesses && uint32(t.PID) == s.id
}

// topStacks makes the tree of the stacks of a subject. Of a function, each
// branch begins with what it calls, or with what calls it; where it calls
// itself, its outermost frame counts. Of processes and threads, branches begin
// at the root of the stacks, or, for callers, at their leaves.
func topStacks(s *topSnapshot, names *topNames, subject topSubject, callers bool) *topTree {
	t := &topTree{nodes: make([]topNode, 1), child: map[[2]uint32]uint32{}}
	if subject.tab == topTabFunctions {
		t.nodes[0].fn = subject.id
	}
	var stack []uint32 // functions, leaf first
	for _, slot := range s.slots {
		at := names.at[slot.places]
		for i := range slot.stacks {
			k := &slot.stacks[i]
			if subject.tab != topTabFunctions && !subject.has(&k.thread) {
				continue
			}
			stack = stack[:0]
			for _, place := range slot.frames[k.first : k.first+k.n] {
				stack = append(stack, at[place]...)
			}
			part := stack
			if subject.tab == topTabFunctions {
				j := lastIndex(stack, subject.id)
				if j < 0 {
					continue
				}
				part = stack[:j]
				if callers {
					part = stack[j+1:]
				}
			}
			t.add(part, callers, k.count)
		}
	}
	return t
}

func lastIndex(s []uint32, v uint32) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == v {
			return i
		}
	}
	return -1
}

// add adds a stack, leaf first or, when its root comes first in the tree, last.
func (t *topTree) add(stack []uint32, leafFirst bool, count int64) {
	node := uint32(0)
	t.nodes[0].count += count
	for i := range stack {
		fn := stack[len(stack)-1-i]
		if leafFirst {
			fn = stack[i]
		}
		key := [2]uint32{node, fn}
		c, ok := t.child[key]
		if !ok {
			c = uint32(len(t.nodes))
			t.nodes = append(t.nodes, topNode{fn: fn})
			t.child[key] = c
			t.nodes[node].children = append(t.nodes[node].children, c)
		}
		t.nodes[c].count += count
		node = c
	}
}

// topTreeRow is a line of a tree.
type topTreeRow struct {
	fn    uint32
	count int64
	self  int64 // samples that end here
	depth int   // of branches: a lone child is as deep as its parent
	lone  bool  // it is the only child
	same  bool  // it has all samples of the row before, its parent
}

// minTreeShare is the share of all samples below which branches are left out.
const minTreeShare = 0.005

// rows lists the tree depth first, the largest branch first. withRoot says
// that the root stands for a function.
func (t *topTree) rows(names *topNames, withRoot bool) []topTreeRow {
	var rows []topTreeRow
	if t.nodes[0].count == 0 {
		return nil
	}
	least := int64(minTreeShare * float64(t.nodes[0].count))
	type level struct {
		node uint32
		row  topTreeRow
	}
	todo := []level{{row: topTreeRow{lone: true}}}
	for len(todo) > 0 {
		l := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := &t.nodes[l.node]
		shown := l.node != 0 || withRoot
		children := slices.Clone(n.children)
		l.row.fn, l.row.count, l.row.self = n.fn, n.count, n.count
		for _, c := range children {
			l.row.self -= t.nodes[c].count
		}
		if shown {
			rows = append(rows, l.row)
		}
		children = slices.DeleteFunc(children, func(c uint32) bool { return t.nodes[c].count <= least })
		slices.SortFunc(children, func(a, b uint32) int {
			x, y := &t.nodes[a], &t.nodes[b]
			return cmp.Or(cmp.Compare(x.count, y.count), cmp.Compare(names.funcs[y.fn].name, names.funcs[x.fn].name), cmp.Compare(y.fn, x.fn))
		})
		for _, c := range children { // the last is taken first
			row := topTreeRow{depth: l.row.depth, lone: len(children) == 1 && shown}
			row.same = row.lone && t.nodes[c].count == n.count
			if shown && !row.lone {
				row.depth++
			}
			todo = append(todo, level{c, row})
		}
	}
	return rows
}
