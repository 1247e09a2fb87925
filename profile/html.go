package profile

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"maps"
	"strings"
	"sync"
)

//go:embed web
var webFiles embed.FS

// scripts are the parts of the page's program, in order. They share a scope.
var scripts = []string{
	"inflate.js", "model.js", "names.js", "format.js", "diff.js", "trees.js", "layout.js",
	"canvas.js", "search.js", "filter.js", "tooltip.js", "link.js", "controls.js", "stage.js", "keys.js", "app.js",
}

var styles = []string{"style.css", "panels.css"}

// topRows is the length of the page's table of functions.
const topRows = 30

// page is what does not depend on the profile.
type page struct {
	template      *template.Template
	style, script string
}

var flamePage = sync.OnceValues(func() (*page, error) {
	read := func(name string) (string, error) {
		text, err := webFiles.ReadFile("web/" + name)
		return string(text), err
	}
	body, err := read("page.html")
	if err != nil {
		return nil, err
	}
	t, err := template.New("page").Parse(body)
	if err != nil {
		return nil, err
	}
	var style, script strings.Builder
	for _, name := range styles {
		part, err := read(name)
		if err != nil {
			return nil, err
		}
		style.WriteString(part)
	}
	script.WriteString("(() => {\n\"use strict\";\n")
	for _, name := range scripts {
		part, err := read(name)
		if err != nil {
			return nil, err
		}
		script.WriteString(part)
	}
	script.WriteString("main();\n})();\n")
	return &page{t, style.String(), script.String()}, nil
})

// policy is the page's content security policy: no network at all, and no
// program or style but the page's own.
func (p *page) policy() string {
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; img-src data:; style-src " + hash(p.style) + "; script-src " + hash(p.script)
}

// tallyRow is a reason with its share of a whole.
type tallyRow struct {
	Name, Count, Share, Help string
}

type topRow struct {
	Function, Module, Kind             string
	Self, SelfShare, Total, TotalShare string
}

type fact struct{ Name, Text string }

// WriteHTML writes an interactive flame graph: one file that needs nothing
// else and asks no network. Without scripts, and in print, it shows the facts
// of the profile and a table of its functions.
func (p *Profile) WriteHTML(w io.Writer) error { return p.WriteHTMLWithin(w, nil) }

// Links are those that a flame graph has when it is a page of several.
type Links struct {
	Pages []Link
	Types []Link // this page, for each type of samples; none if there is one
	// Function is the address of the page about a function, to which the page
	// appends "name=...&module=...", after "?", or "&" if there is a query.
	Function string
}

// Link is a place to go to.
type Link struct {
	Text, Address string
	Here          bool // it is the page itself
}

// Icon is the icon of the pages: an SVG.
//
//go:embed web/icon.svg
var Icon string

// IconAddress is an address that has Icon in it. A page's policy must allow
// images of the scheme "data".
func IconAddress() template.URL {
	return template.URL("data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(Icon)))
}

// Style returns the style sheet of the flame graph's page, for pages that go
// with it.
func Style() (string, error) {
	page, err := flamePage()
	if err != nil {
		return "", fmt.Errorf("preparing pages: %w", err)
	}
	return page.style, nil
}

// WriteHTMLWithin is WriteHTML for a page that others go with. links may be
// nil.
func (p *Profile) WriteHTMLWithin(w io.Writer, links *Links) error {
	return p.writePage(w, map[string]any{
		"How":       p.Meta.how(),
		"Samples":   thousands(p.Samples),
		"Lost":      p.Meta.LostTotal(),
		"LostText":  thousands(p.Meta.LostTotal()),
		"Facts":     p.facts(),
		"Truncated": p.tallyRows(p.Truncated, p.Samples),
		"LostRows":  p.tallyRows(p.Meta.Lost, p.Samples+p.Meta.LostTotal()),
		"Notes":     p.Meta.Notes,
		"Top":       p.topTable(),
		"Weight":    p.weightName(),
		"Links":     links,
		"Value":     p.valueName(),
		"Footer":    p.footer(),
	})
}

// writePage writes the page with what is about the profile and not of it.
func (p *Profile) writePage(w io.Writer, about map[string]any) error {
	page, err := flamePage()
	if err != nil {
		return fmt.Errorf("preparing flame graph: %w", err)
	}
	data, err := p.flameData()
	if err != nil {
		return err
	}
	title := p.Meta.Target
	if title == "" {
		title = "profile"
	}
	maps.Copy(about, map[string]any{
		"Policy":  page.policy(),
		"Icon":    IconAddress(),
		"Style":   template.CSS(page.style),
		"Script":  template.JS(page.script),
		"Data":    template.HTML(data), // base64
		"Title":   visible(title),
		"Counted": p.Meta.counted(),
	})
	err = page.template.Execute(w, about)
	if err != nil {
		return fmt.Errorf("writing flame graph: %w", err)
	}
	return nil
}

// tellsComplete reports whether it is known which stacks are complete: other
// tools do not say.
func (p *Profile) tellsComplete() bool { return p.Meta.Tool != "" || len(p.Truncated) > 0 }

// footer says in short how much there is and how much is missing.
func (p *Profile) footer() string {
	parts := []string{thousands(p.Samples) + " " + p.Meta.counted()}
	if p.tellsComplete() {
		parts = append(parts, share(p.Complete, p.Samples)+" with complete stacks")
	}
	if p.Meta.ByValue {
		parts[0] = p.Amount(p.Value) + " " + p.weightName() + " in " + parts[0]
	}
	if lost := p.Meta.LostTotal(); lost > 0 {
		parts = append(parts, thousands(lost)+" lost")
	} else if p.Meta.Tool != "" { // others do not tell
		parts = append(parts, "none lost")
	}
	if p.Meta.Tool != "" {
		parts = append(parts, p.Meta.Tool)
	}
	return strings.Join(parts, " · ")
}

// valueName is what values are called where widths show them, or "".
func (p *Profile) valueName() string {
	if !p.Meta.ByValue {
		return ""
	}
	return p.Meta.Value.Type
}

func (p *Profile) weightName() string {
	v := p.Meta.Value
	switch {
	case !p.Meta.ByValue:
		return p.Meta.counted()
	case v.Unit == "nanoseconds" || v.Unit == "bytes" || v.Unit == "count" || v.Unit == "":
		return v.Type // Amount tells the unit, if there is one
	}
	return v.Type + " " + v.Unit
}

// counted returns what a profile counts, in the plural.
func (m *Meta) counted() string { return cmp.Or(m.Counted, "samples") }

func (p *Profile) facts() []fact {
	m := &p.Meta
	facts := []fact{{"Sampled", visible(m.Target)}, {"How", m.how()}}
	if !m.Start.IsZero() {
		facts = append(facts, fact{"Start", m.Start.UTC().Format("2006-01-02 15:04:05 UTC")})
	}
	complete := ""
	if p.tellsComplete() {
		complete = share(p.Complete, p.Samples)
	}
	facts = append(facts,
		fact{"Samples", thousands(p.Samples)},
		fact{"Complete stacks", complete},
		fact{"Processes", thousands(int64(p.tasks(func(t *Thread) int32 { return t.PID })))},
		fact{"Threads", thousands(int64(p.tasks(func(t *Thread) int32 { return t.TID })))},
		fact{"Kernel", m.Kernel}, fact{"Recorded by", m.Tool})
	shown := facts[:0]
	for _, f := range facts {
		if f.Text != "" {
			shown = append(shown, f)
		}
	}
	return shown
}

// tasks returns the number of different IDs, process by process.
func (p *Profile) tasks(id func(*Thread) int32) int {
	type task struct{ pid, id int32 }
	seen := map[task]bool{}
	for i := range p.threads {
		seen[task{p.threads[i].PID, id(&p.threads[i])}] = true
	}
	return len(seen)
}

func (p *Profile) tallyRows(tallies []Tally, total int64) []tallyRow {
	var rows []tallyRow
	for _, t := range tallies {
		if t.N != 0 {
			rows = append(rows, tallyRow{t.Name, thousands(t.N), share(t.N, total), p.Meta.Help[t.Name]})
		}
	}
	return rows
}

func (p *Profile) topTable() []topRow {
	var rows []topRow
	total := p.Samples
	if p.Meta.ByValue {
		total = p.Value
	}
	for _, e := range p.Top(topRows) {
		rows = append(rows, topRow{
			Function: visible(e.Function), Module: visible(baseName(e.Module)), Kind: e.Kind.String(),
			Self: p.Amount(e.Self), SelfShare: share(e.Self, total),
			Total: p.Amount(e.Total), TotalShare: share(e.Total, total),
		})
	}
	return rows
}

// thousands prints n in groups of three digits.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
