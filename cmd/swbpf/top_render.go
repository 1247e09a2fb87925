package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Lines of the screen around the list: status, tabs and columns above, keys
// below.
const (
	topAbove = 3
	topBelow = 1
)

func decimal(n int32) string { return strconv.Itoa(int(n)) }

// listLines is the height of the list on a screen of some height.
func listLines(height int) int { return max(1, height-topAbove-topBelow) }

// render draws the screen.
func (v *topView) render(width, height int) []string {
	r := topRenderer{v: v, width: width}
	samples, complete := v.samples()
	r.status(samples, complete)
	r.tabs()
	body := listLines(height)
	switch v.mode {
	case topModeHelp:
		r.help(body)
	case topModeStacks:
		r.stacks(body)
	default:
		r.list(body, v.weight())
	}
	for len(r.lines) < height-topBelow {
		r.lines = append(r.lines, "")
	}
	r.lines = r.lines[:max(0, min(len(r.lines), height-topBelow))]
	r.keys()
	return r.lines[:min(len(r.lines), height)]
}

// topRenderer builds the lines of the screen.
type topRenderer struct {
	v     *topView
	width int
	lines []string
}

func (r *topRenderer) line(base style) *screenLine {
	return &screenLine{width: r.width, base: base, colours: r.v.colours}
}

func (r *topRenderer) end(l *screenLine) { r.lines = append(r.lines, l.string()) }

func (r *topRenderer) status(samples, complete int64) {
	v, l := r.v, r.line(plain)
	rate := ""
	if v.status.frequency > 0 {
		rate = fmt.Sprintf(" %d Hz", v.status.frequency)
	}
	l.add(bold, "swbpf")
	l.add(plain, fmt.Sprintf(" %s, %s%s, %.0f s: %d samples", v.status.target, v.status.event, rate, v.now.span().Seconds(), samples))
	if samples > 0 {
		l.add(plain, fmt.Sprintf(", %.1f%% complete", percent(uint64(complete), uint64(samples))))
	}
	if v.status.lost > 0 {
		l.add(plain, ", ")
		l.add(warning, fmt.Sprintf("%d lost", v.status.lost))
	}
	r.end(l)
}

func (r *topRenderer) tabs() {
	v, l := r.v, r.line(plain)
	for t := range numTopTabs {
		st := plain
		if t == v.tab {
			st = bold
		}
		l.add(st, fmt.Sprintf("%s%d %s%s ", mark(t == v.tab, "["), t+1, topTabNames[t], mark(t == v.tab, "]")))
	}
	if v.paused {
		l.add(reversed, " PAUSED ")
		l.add(plain, " ")
	}
	if v.mode == topModeStacks {
		l.add(plain, " stacks of ")
		l.add(bold, v.label)
		r.end(l)
		return
	}
	l.add(plain, fmt.Sprintf(" by %s", topSortNames[v.sorts[v.tab]]))
	if f := v.filters[v.tab]; f != "" && v.mode != topModeFilter {
		l.add(plain, "  filter: ")
		l.add(bold, f)
	}
	r.end(l)
}

// mark is a bracket, or the room for one.
func mark(on bool, s string) string {
	if on {
		return s
	}
	return " "
}

func (r *topRenderer) list(lines int, samples int64) {
	v := r.v
	heads := [numTopTabs]string{
		"  SELF%  TOTAL%  FUNCTION",
		" SHARE%    CPU%      PID THREADS  COMMAND         HOTTEST FUNCTION",
		" SHARE%    CPU%      TID     PID  COMMAND         HOTTEST FUNCTION",
	}
	if v.status.byTime {
		for i := range heads {
			heads[i] = strings.Replace(heads[i], " CPU%", "TIME%", 1)
		}
	}
	head := r.line(reversed)
	head.add(plain, heads[v.tab])
	if v.tab == topTabFunctions && r.width >= 60 {
		head.column(r.moduleColumn())
		head.add(plain, "MODULE")
	}
	r.end(head)
	if len(v.rows) == 0 {
		l := r.line(plain)
		l.add(dim, emptyText(v, samples))
		r.end(l)
		return
	}
	sel := &v.selected[v.tab]
	first, end := sel.window(len(v.rows), lines)
	for i := first; i < end; i++ {
		l := r.line(plain)
		if i == sel.index {
			l = r.line(reversed)
		}
		if v.tab == topTabFunctions {
			r.function(l, &v.rows[i], samples)
		} else {
			r.task(l, &v.rows[i], samples)
		}
		r.end(l)
	}
}

// emptyText says why a list is empty.
func emptyText(v *topView, samples int64) string {
	switch {
	case v.filters[v.tab] != "":
		return "  nothing matches the filter; Esc clears it"
	case samples > 0:
		return "  nothing"
	case v.now.span() < 2*time.Second:
		return "  sampling ..."
	}
	return "  no samples: nothing ran"
}

// moduleColumn is where modules begin.
func (r *topRenderer) moduleColumn() int { return max(r.width-max(18, r.width/4), 45) }

func (r *topRenderer) function(l *screenLine, row *topRow, samples int64) {
	f := &r.v.names.funcs[row.fn]
	l.add(plain, fmt.Sprintf("%7.2f %7.2f  ", share(row.self, samples), share(row.total, samples)))
	if r.width < 60 {
		l.add(kindStyles[f.kind], f.name)
		return
	}
	name, _ := fit(f.name, r.moduleColumn()-l.used-1)
	l.add(kindStyles[f.kind], name)
	l.column(r.moduleColumn())
	l.add(dim, f.module)
}

func (r *topRenderer) task(l *screenLine, row *topRow, samples int64) {
	v := r.v
	cpu := "-"
	if c, ok := v.cpu(row.self); ok {
		cpu = fmt.Sprintf("%.1f", c)
	}
	second := strconv.Itoa(row.threads)
	id := row.pid
	if v.tab == topTabThreads {
		id, second = row.tid, decimal(row.pid)
	}
	l.add(plain, fmt.Sprintf("%7.2f %7s %8d %7s  ", share(row.self, samples), cpu, id, second))
	at := l.used
	l.add(bold, row.comm)
	l.column(at + 16)
	f := &v.names.funcs[row.hottest]
	l.add(kindStyles[f.kind], f.name)
}

// share is a part in percent, 0 of nothing.
func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

func (r *topRenderer) stacks(lines int) {
	v := r.v
	head := r.line(reversed)
	what := "  SHARE%   SELF%  CALLEES: what it calls, the largest first"
	switch {
	case v.subject.tab == topTabFunctions && v.callers:
		what = "  SHARE%         CALLERS: what calls it, the largest first"
	case v.callers:
		what = "  SHARE%         LEAVES: where it is, and what calls that"
	case v.subject.tab != topTabFunctions:
		what = "  SHARE%   SELF%  ROOTS: from the bottom of the stack"
	}
	head.add(plain, what)
	r.end(head)
	if len(v.tree) == 0 {
		l := r.line(plain)
		l.add(dim, "  not seen in the last seconds")
		r.end(l)
		return
	}
	first, end := v.treeSel.window(len(v.tree), lines)
	for i := first; i < end; i++ {
		l := r.line(plain)
		if i == v.treeSel.index {
			l = r.line(reversed)
		}
		r.treeRow(l, &v.tree[i])
		r.end(l)
	}
}

func (r *topRenderer) treeRow(l *screenLine, row *topTreeRow) {
	v := r.v
	f := &v.names.funcs[row.fn]
	self := ""
	if s := share(row.self, v.whole); s >= 100*minTreeShare && !v.callers {
		self = fmt.Sprintf("%.1f", s)
	}
	whole := fmt.Sprintf("%.1f", share(row.count, v.whole))
	if row.same {
		whole = ""
	}
	l.add(plain, fmt.Sprintf("%8s %7s  ", whole, self))
	// Deep branches are not pushed out of the screen.
	indent := min(2*row.depth, max(0, r.width-l.used-30))
	bullet := "- "
	if row.lone {
		bullet = "  "
	}
	l.add(plain, strings.Repeat(" ", indent)+bullet)
	l.add(kindStyles[f.kind], f.name)
	if f.module != "" && f.module != f.name {
		l.add(dim, "  "+f.module)
	}
}

var topHelp = []string{
	"Tab 1 2 3        functions, processes, threads",
	"Up Down j k      select a line; PgUp PgDn Home End too",
	"Enter            the stacks of the selected line: what it calls",
	"c                what calls it; again: what it calls",
	"Esc              back; in a list: clear its filter",
	"s                sort by self, total, name",
	"/                show what contains a text; Enter keeps it, Esc clears it",
	"Space p          hold the screen; sampling goes on",
	"? h              this help",
	"q Ctrl-C         leave",
	"",
	"SELF%   samples taken in the function itself",
	"TOTAL%  samples taken in it or in what it called",
	"CPU%    of one CPU, as far as the samples tell",
	"TIME%   with --off-cpu and --wall: of a second, of one thread",
	"        There, SELF% includes the kernel on a function's behalf.",
}

func (r *topRenderer) help(lines int) {
	head := r.line(reversed)
	head.add(plain, "  HELP: any key returns")
	r.end(head)
	for _, text := range topHelp[:min(len(topHelp), lines)] {
		l := r.line(plain)
		l.add(plain, "  "+text)
		r.end(l)
	}
	if lines < len(topHelp)+2 {
		return
	}
	r.end(r.line(plain))
	l := r.line(plain)
	l.add(plain, "  ")
	for _, c := range []struct {
		st   style
		text string
	}{{plain, "native "}, {colourGo, "Go "}, {colourJIT, "generated "}, {colourKernel, "kernel "}, {colourMarker, "[remark]"}} {
		l.add(c.st, c.text)
	}
	r.end(l)
}

// keys is the last line: what can be done, or the filter being typed.
func (r *topRenderer) keys() {
	l := r.line(plain)
	switch r.v.mode {
	case topModeFilter:
		l.add(bold, "/"+r.v.filters[r.v.tab])
		l.add(reversed, " ")
		l.add(dim, "  Enter keeps, Esc clears")
	case topModeStacks:
		l.add(dim, "Esc back  c callers/callees  Space hold  ? help  q quit")
	case topModeHelp:
		l.add(dim, "any key returns")
	default:
		l.add(dim, "Tab list  Enter stacks  c callers  s sort  / filter  Space hold  ? help  q quit")
	}
	r.lines = append(r.lines, l.string())
}
