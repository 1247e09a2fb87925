package profile

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Measures of the SVG in pixels.
const (
	svgWidth    = 1200
	svgRow      = 16
	svgMargin   = 10
	svgHead     = 44   // title and what was sampled
	svgFoot     = 26   // legend
	svgMinWidth = 0.3  // of a frame; narrower ones are left out
	svgMinRow   = 12   // of the frames of a row together; rows above the last such are left out...
	svgMinRows  = 5    // ...if there are as many of them
	svgChar     = 6.05 // advance of a character of the labels, 10 px high
)

// looks are the things that frames are coloured by, as the flame graph's page
// has them, and what they are called in the legend.
var looks = []struct{ name, label string }{
	{"native", "native"}, {"inlined", "inlined"}, {"go", "Go"}, {"jit", "JIT"}, {"kernel", "kernel"},
	{"unknown", "no name"}, {"state", "waiting"}, {"marker", "incomplete"}, {"process", ""},
}

func (f *flameFunction) look() string {
	switch {
	case f.process:
		return "process"
	case f.inlined:
		return "inlined"
	case f.kind == Marker && waits(f.name):
		return "state"
	}
	return f.kind.String()
}

// fills returns the colours of looks in the page's light theme.
var fills = sync.OnceValue(func() map[string]string {
	css, _ := webFiles.ReadFile("web/style.css") // embedded: it is there
	light, _, _ := strings.Cut(string(css), "}")
	colours := map[string]string{}
	for _, m := range regexp.MustCompile(`--([\w-]+): (#\w+);`).FindAllStringSubmatch(light, -1) {
		colours[m[1]] = m[2]
	}
	return colours
})

// WriteSVG writes the flame graph as a picture for documents: frames grow
// upward, and viewers show what a frame is when it is pointed at.
func (p *Profile) WriteSVG(w io.Writer) error {
	return p.writeSVG(w, p.flameTree(), nil)
}

// writeSVG draws a flame graph, or that of a diff.
func (p *Profile) writeSVG(w io.Writer, t *flameTree, diff *svgDiff) error {
	out := svgWriter{w: bufio.NewWriter(w), p: p, t: t, diff: diff, place: make([]float64, len(t.nodes)), depth: make([]int, len(t.nodes))}
	out.layOut()
	out.head()
	for i := range t.nodes {
		if out.depth[i] >= 0 {
			out.frame(i)
		}
	}
	out.legend()
	out.print("</svg>\n")
	if err := out.w.Flush(); err != nil {
		return fmt.Errorf("writing SVG: %w", err)
	}
	return nil
}

type svgWriter struct {
	w     *bufio.Writer
	p     *Profile
	t     *flameTree
	diff  *svgDiff  // or nil
	scale float64   // pixels per weight
	place []float64 // left edges by node
	depth []int     // by node; -1 for those too narrow
	rows  int
	above int // rows that are left out
}

func (s *svgWriter) print(format string, args ...any) { fmt.Fprintf(s.w, format, args...) }

// layOut places the nodes, which come in preorder.
func (s *svgWriter) layOut() {
	nodes := s.t.nodes
	if nodes[0].weight > 0 {
		s.scale = (svgWidth - 2*svgMargin) / float64(nodes[0].weight)
	}
	next := make([]float64, len(nodes)) // left edge of the next child
	s.place[0], next[0], s.rows = svgMargin, svgMargin, 1
	for i := 1; i < len(nodes); i++ {
		parent := nodes[i].parent
		width := float64(nodes[i].weight) * s.scale
		s.place[i], next[i] = next[parent], next[parent]
		next[parent] += width
		if width < svgMinWidth || s.depth[parent] < 0 {
			s.depth[i] = -1
			continue
		}
		s.depth[i] = s.depth[parent] + 1
		s.rows = max(s.rows, s.depth[i]+1)
	}
	s.cut()
}

// cut leaves out the rows of a deep stack that nothing else is as deep as.
func (s *svgWriter) cut() {
	widths := make([]float64, s.rows)
	for i, depth := range s.depth {
		if depth >= 0 {
			widths[depth] += float64(s.t.nodes[i].weight) * s.scale
		}
	}
	rows := s.rows
	for rows > 1 && widths[rows-1] < svgMinRow {
		rows--
	}
	if s.above = s.rows - rows; s.above < svgMinRows {
		s.above = 0
		return
	}
	s.rows = rows
	for i, depth := range s.depth {
		if depth >= rows {
			s.depth[i] = -1
		}
	}
}

func (s *svgWriter) height() int { return svgHead + s.rows*svgRow + svgFoot }

func (s *svgWriter) head() {
	m := &s.p.Meta
	title := m.Target
	if title == "" {
		title = "profile"
	}
	title = visible(title)
	s.print(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="10">`+"\n",
		svgWidth, s.height())
	s.print("<title>%s</title>\n", xmlText(title+" – flame graph"))
	s.print("<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n")
	s.print(`<text x="%d" y="18" font-size="14" font-weight="bold">%s</text>`+"\n", svgMargin, xmlText(title))
	above := ""
	if s.above > 0 {
		above = fmt.Sprintf(" · %d narrow rows above left out", s.above)
	}
	if s.diff != nil {
		s.print(`<text x="%d" y="34" fill="#5b616b">%s</text>`+"\n", svgMargin,
			xmlText("coloured is what changed by more than sampling error; widths are the mean of before and after"+above))
		return
	}
	facts := []string{thousands(s.p.Samples) + " " + m.counted()}
	if s.p.tellsComplete() {
		facts = append(facts, share(s.p.Complete, s.p.Samples)+" complete")
	}
	if how := m.how(); how != "" {
		facts = slices.Insert(facts, 0, how)
	}
	if n := m.LostTotal(); n != 0 {
		facts = append(facts, thousands(n)+" lost")
	}
	s.print(`<text x="%d" y="34" fill="#5b616b">%s</text>`+"\n", svgMargin, xmlText(strings.Join(facts, " · ")+above))
}

func (s *svgWriter) frame(i int) {
	n := &s.t.nodes[i]
	name, fill, about := "all", fills()["root"], ""
	if i > 0 {
		f := &s.t.functions[n.function]
		name, fill = visible(f.name), fills()[f.look()]
		if f.module != "" {
			about = "\n" + visible(f.module)
		}
	}
	weight := fmt.Sprintf("%s %s, %s", s.p.Amount(n.weight), s.p.weightName(), share(n.weight, s.t.nodes[0].weight))
	if s.diff != nil {
		c := s.diff.change(i)
		weight = s.diff.about(&c)
		if i > 0 {
			fill = fills()[s.diff.fill(&c)]
		}
	}
	width := float64(n.weight) * s.scale
	y := svgHead + (s.rows-1-s.depth[i])*svgRow
	gap := 0.0
	if width > 3 {
		gap = 0.5
	}
	s.print(`<g><title>%s</title><rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/>`,
		xmlText(name+about+"\n"+weight),
		s.place[i], y, width-gap, svgRow-1, fill)
	if label := clip(name, int((width-6)/svgChar)); label != "" {
		s.print(`<text x="%.2f" y="%d" fill="#161616">%s</text>`, s.place[i]+3, y+svgRow-5, xmlText(label))
	}
	s.print("</g>\n")
}

// legend names the kinds that occur, with what ran in them.
func (s *svgWriter) legend() {
	if s.diff != nil {
		s.diffLegend()
		return
	}
	t := s.t
	self := map[string]int64{}
	for i := 1; i < len(t.nodes); i++ {
		self[t.functions[t.nodes[i].function].look()] += 0
	}
	for i := range t.samples {
		weight := s.p.weight(&t.samples[i].tally)
		n := t.samples[i].node
		self[t.functions[t.nodes[n].function].look()] += weight
		for n = t.nodes[n].parent; n != 0; n = t.nodes[n].parent {
			if t.functions[t.nodes[n].function].look() == "marker" {
				self["marker"] += weight // though what ran was another
			}
		}
	}
	x, y := float64(svgMargin), s.height()-10
	for _, look := range looks {
		weight, ok := self[look.name]
		if !ok || look.label == "" {
			continue
		}
		text := look.label + " " + share(weight, t.nodes[0].weight)
		s.print(`<rect x="%.2f" y="%d" width="10" height="10" fill="%s"/><text x="%.2f" y="%d">%s</text>`+"\n",
			x, y-9, fills()[look.name], x+14, y, xmlText(text))
		x += 14 + svgChar*float64(len(text)+3)
	}
}

// diffLegend names the colours of a diff.
func (s *svgWriter) diffLegend() {
	x, y := float64(svgMargin), s.height()-10
	for _, e := range []struct {
		label string
		fills []string
	}{{"shrank", []string{"shrank-3", "shrank-2", "shrank-1"}}, {"grew", []string{"grew-1", "grew-2", "grew-3"}}, {"no sure change", []string{"same"}}} {
		for _, fill := range e.fills {
			s.print(`<rect x="%.2f" y="%d" width="10" height="10" fill="%s"/>`, x, y-9, fills()[fill])
			x += 10
		}
		s.print(`<text x="%.2f" y="%d">%s</text>`+"\n", x+4, y, e.label)
		x += svgChar * float64(len(e.label)+4)
	}
}

// clip cuts a name to n characters, the last of which then is an ellipsis. It
// returns "" if little would be left.
func clip(name string, n int) string {
	if utf8.RuneCountInString(name) <= n {
		return name
	}
	if n < 3 {
		return ""
	}
	runes := []rune(name[:min(len(name), n*utf8.UTFMax)])
	return string(runes[:n-1]) + "…"
}

// xmlText escapes text for XML, which cannot hold all characters.
func xmlText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s)) // a Builder has no errors
	return b.String()
}
