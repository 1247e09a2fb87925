package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
)

// topTab is one of the lists.
type topTab int

const (
	topTabFunctions topTab = iota
	topTabProcesses
	topTabThreads
	numTopTabs
)

var topTabNames = [numTopTabs]string{"Functions", "Processes", "Threads"}

// topSort is the order of a list.
type topSort int

const (
	topSortSelf topSort = iota
	topSortTotal
	topSortName
	numTopSorts
)

var topSortNames = [numTopSorts]string{"self", "total", "name"}

// topMode is what keys are for.
type topMode int

const (
	topModeList topMode = iota
	topModeStacks
	topModeHelp
	topModeFilter // a filter is being typed
)

// topStatus is what the head of the screen tells besides the samples.
type topStatus struct {
	target    string
	event     string
	frequency int // Hz; 0 without
	isTimer   bool
	byTime    bool   // stacks count by time on and off the CPU, in ns
	lost      uint64 // since the start
}

// topView is what is on the screen, and what keys do with it. It knows no
// terminal.
type topView struct {
	status  topStatus
	names   *topNames
	now     topSnapshot // what is shown
	waiting []topNamed  // names that came while the view was paused
	colours bool

	tab     topTab
	sorts   [numTopTabs]topSort
	filters [numTopTabs]string
	paused  bool
	mode    topMode
	back    topMode // where help returns to

	rows     []topRow // of the tab, filtered and sorted
	selected [numTopTabs]topSelection

	subject topSubject // of the stacks
	label   string     // what they are of
	callers bool
	tree    []topTreeRow
	whole   int64 // samples in the tree
	treeSel topSelection
}

// topSelection is the selected line of a list and the first one shown.
type topSelection struct {
	index, first int
	id           uint32 // what is selected, so that it stays so while the list changes
	pinned       bool   // id counts: someone selected it
}

func newTopView(status topStatus, colours bool) *topView {
	return &topView{status: status, names: newTopNames(), colours: colours}
}

// show takes a new snapshot, and returns what is to be named of it. A paused
// view keeps what it has.
func (v *topView) show(s topSnapshot) []topNameRequest {
	v.waiting = append(v.waiting, s.named...)
	if v.paused {
		return nil
	}
	v.now = s
	generation := v.names.generation
	unnamed := v.names.sync(&s)
	if v.names.generation != generation {
		v.mode, v.back = topModeList, topModeList
		v.selected[topTabFunctions] = topSelection{}
	}
	v.names.learn(v.waiting, &s)
	v.waiting = nil
	v.update()
	return unnamed
}

// samples is the number of samples shown, complete those with all frames.
func (v *topView) samples() (samples, complete int64) {
	for _, slot := range v.now.slots {
		samples += slot.samples
		complete += slot.complete
	}
	return samples, complete
}

// weight is what all stacks shown count.
func (v *topView) weight() (n int64) {
	for _, slot := range v.now.slots {
		n += slot.weight
	}
	return n
}

// id is what tells a row from others of its tab.
func (v *topView) id(r *topRow) uint32 {
	switch v.tab {
	case topTabProcesses:
		return uint32(r.pid)
	case topTabThreads:
		return uint32(r.tid)
	}
	return r.fn
}

// update makes the list and the tree anew.
func (v *topView) update() {
	if v.tab == topTabFunctions {
		v.rows = topFunctions(&v.now, v.names, v.status.byTime)
	} else {
		v.rows = topTasks(&v.now, v.names, v.tab == topTabThreads, v.status.byTime)
	}
	if f := strings.ToLower(v.filters[v.tab]); f != "" {
		v.rows = slices.DeleteFunc(v.rows, func(r topRow) bool { return !strings.Contains(strings.ToLower(v.text(&r)), f) })
	}
	v.sort()
	v.selected[v.tab].follow(len(v.rows), func(i int) uint32 { return v.id(&v.rows[i]) })
	if v.mode == topModeStacks || v.back == topModeStacks {
		t := topStacks(&v.now, v.names, v.subject, v.callers)
		v.tree, v.whole = t.rows(v.names, v.subject.tab == topTabFunctions), t.nodes[0].count
		v.treeSel.pinned = false
		v.treeSel.follow(len(v.tree), nil)
	}
}

// text is what a filter is held against.
func (v *topView) text(r *topRow) string {
	if v.tab == topTabFunctions {
		f := &v.names.funcs[r.fn]
		return f.name + " " + f.module + " " + f.kind.String()
	}
	return r.comm + " " + decimal(r.pid) + " " + decimal(r.tid)
}

// name is what rows are sorted by when it is not their samples.
func (v *topView) name(r *topRow) string {
	if v.tab == topTabFunctions {
		return v.names.funcs[r.fn].name
	}
	return r.comm
}

func (v *topView) sort() {
	order := v.sorts[v.tab]
	slices.SortFunc(v.rows, func(a, b topRow) int {
		first := cmp.Compare(b.self, a.self)
		switch order {
		case topSortTotal:
			first = cmp.Compare(b.total, a.total)
		case topSortName:
			first = strings.Compare(v.name(&a), v.name(&b))
		}
		return cmp.Or(first, cmp.Compare(b.self, a.self), cmp.Compare(b.total, a.total),
			strings.Compare(v.name(&a), v.name(&b)), cmp.Compare(v.id(&a), v.id(&b)))
	})
}

// follow keeps the selection on what is selected, where that is still there.
func (s *topSelection) follow(n int, id func(i int) uint32) {
	if s.pinned {
		for i := range n {
			if id(i) == s.id {
				s.index = i
				break
			}
		}
	}
	s.index = max(0, min(s.index, n-1))
	if n > 0 && id != nil {
		s.id = id(s.index)
	}
}

// move moves the selection by lines; it does not leave the list.
func (s *topSelection) move(by, n int) {
	s.index = max(0, min(s.index+by, n-1))
	s.pinned = true
}

// window returns the part of a list of n that is shown on some lines.
func (s *topSelection) window(n, lines int) (first, end int) {
	s.first = max(min(s.first, s.index, n-lines), s.index-lines+1, 0)
	return s.first, min(s.first+lines, n)
}

// press does what a key is for; quit says that it is to leave. lines is the
// height of the list.
func (v *topView) press(k key, lines int) (quit bool) {
	if k == keyInterrupt {
		return true
	}
	switch v.mode {
	case topModeHelp:
		v.mode = v.back
		v.back = topModeList
		v.update()
		return k == 'q' && v.mode == topModeList
	case topModeFilter:
		v.pressFilter(k)
		return false
	case topModeStacks:
		return v.pressStacks(k, lines)
	}
	sel := &v.selected[v.tab]
	switch k {
	case 'q', 'Q':
		return true
	case keyTab, keyRight:
		v.switchTo((v.tab + 1) % numTopTabs)
	case keyBackTab, keyLeft:
		v.switchTo((v.tab + numTopTabs - 1) % numTopTabs)
	case '1', '2', '3':
		v.switchTo(topTab(k - '1'))
	case 's':
		v.nextSort()
	case '/':
		v.mode = topModeFilter
	case keyEscape:
		v.filters[v.tab] = ""
		*sel = topSelection{}
		v.update()
	case keyEnter:
		v.openStacks(false)
	case 'c':
		v.openStacks(true)
	default:
		if v.pressCommon(k) {
			return false
		}
		if by, ok := movement(k, lines, len(v.rows)); ok {
			sel.move(by, len(v.rows))
			if len(v.rows) > 0 {
				sel.id = v.id(&v.rows[sel.index])
			}
		}
	}
	return false
}

// pressCommon does what keys are for in lists and stacks alike.
func (v *topView) pressCommon(k key) bool {
	switch k {
	case ' ', 'p':
		v.paused = !v.paused
	case '?', 'h':
		v.mode, v.back = topModeHelp, v.mode
	default:
		return false
	}
	return true
}

func (v *topView) pressStacks(k key, lines int) (quit bool) {
	switch k {
	case 'q', 'Q':
		return true
	case keyEscape, keyBackspace, keyEnter:
		v.mode = topModeList
		v.tree = nil
	case 'c', keyTab:
		v.callers = !v.callers
		v.treeSel = topSelection{}
		v.update()
	default:
		if v.pressCommon(k) {
			return false
		}
		if by, ok := movement(k, lines, len(v.tree)); ok {
			v.treeSel.move(by, len(v.tree))
		}
	}
	return false
}

// movement is how far a key moves in a list of n of which some lines are shown.
func movement(k key, lines, n int) (by int, ok bool) {
	switch k {
	case keyUp, 'k':
		return -1, true
	case keyDown, 'j':
		return 1, true
	case keyPageUp:
		return -lines, true
	case keyPageDown:
		return lines, true
	case keyHome, 'g':
		return -n, true
	case keyEnd, 'G':
		return n, true
	}
	return 0, false
}

// maxFilter bounds what is typed as a filter.
const maxFilter = 100

func (v *topView) pressFilter(k key) {
	f := []rune(v.filters[v.tab])
	switch {
	case k == keyEnter:
		v.mode = topModeList
	case k == keyEscape:
		v.mode, f = topModeList, nil
	case k == keyBackspace:
		f = f[:max(0, len(f)-1)]
	case k > 0 && len(f) < maxFilter:
		f = append(f, rune(k))
	}
	v.filters[v.tab] = string(f)
	v.selected[v.tab] = topSelection{}
	v.update()
}

func (v *topView) switchTo(t topTab) {
	v.tab = t
	v.update()
}

// nextSort changes the order: processes and threads have one number only.
func (v *topView) nextSort() {
	next := (v.sorts[v.tab] + 1) % numTopSorts
	if v.tab != topTabFunctions && next == topSortTotal {
		next = topSortName
	}
	v.sorts[v.tab] = next
	v.selected[v.tab] = topSelection{}
	v.update()
}

// openStacks shows the stacks of the selected line.
func (v *topView) openStacks(callers bool) {
	sel := v.selected[v.tab].index
	if sel >= len(v.rows) {
		return
	}
	r := &v.rows[sel]
	v.mode, v.callers, v.treeSel = topModeStacks, callers, topSelection{}
	v.subject = topSubject{v.tab, v.id(r)}
	switch v.tab {
	case topTabFunctions:
		v.label = v.names.funcs[r.fn].name
	case topTabProcesses:
		v.label = "process " + decimal(r.pid) + " " + r.comm
		if command := commandText(procstate.CommandLine(int(r.pid)), r.comm); command != "" {
			v.label += ": " + command
		}
	case topTabThreads:
		v.label = "thread " + decimal(r.tid) + " " + r.comm
	}
	v.update()
}

// cpu is the number of CPUs that samples stand for, in percent of one; by time,
// how much of it there was in a second of the clock.
func (v *topView) cpu(samples int64) (float64, bool) {
	span := v.now.span()
	if v.status.byTime && span >= 100*time.Millisecond {
		return 100 * float64(samples) / float64(span), true
	}
	if !v.status.isTimer || v.status.frequency == 0 || span < 100*time.Millisecond {
		return 0, false
	}
	return 100 * float64(samples) / float64(v.status.frequency) / span.Seconds(), true
}
