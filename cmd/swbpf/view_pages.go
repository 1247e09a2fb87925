package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/profile"
)

//go:embed web
var viewFiles embed.FS

// topPageRows is the most rows that a table of functions has.
const topPageRows = 500

// viewPages renders the pages about functions.
type viewPages struct {
	profile  *profile.Profile
	typeName string             // of samples, as links tell it; "" if there is no choice
	top      []profile.TopEntry // by self
	whole    int64
	unit     string
	template *template.Template
	style    string
	policy   string
	sources  sources
}

func newViewPages(p *profile.Profile) (*viewPages, error) {
	v := &viewPages{profile: p, top: p.Top(-1), sources: sources{named: p.SourceFiles()}}
	v.whole, v.unit = p.Whole()
	shared, err := profile.Style()
	if err != nil {
		return nil, err
	}
	own, err := viewFiles.ReadFile("web/view.css")
	if err != nil {
		return nil, err
	}
	v.style = shared + string(own)
	sum := sha256.Sum256([]byte(v.style))
	v.policy = "default-src 'none'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; style-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
	v.template, err = template.ParseFS(viewFiles, "web/*.html")
	return v, err
}

// frame is what all pages have.
type viewFrame struct {
	Title, Heading, Facts string
	Type                  string // of samples; "" if there is one
	Style                 template.CSS
	Icon                  template.URL
	Links, Types          []profile.Link
}

// frame is that of a page, whose path is here and whose query is q.
func (v *viewPages) frame(heading, here string, q url.Values) viewFrame {
	target := printable(cmp.Or(v.profile.Meta.Target, "profile"))
	facts := v.profile.Amount(v.whole) + " " + v.unit
	if v.profile.Meta.Event != "" && v.profile.Meta.Event != v.unit {
		facts = v.profile.Meta.Event + " · " + facts
	}
	return viewFrame{Title: printable(heading) + " – " + target, Heading: target, Facts: facts, Type: v.typeName,
		Style: template.CSS(v.style), Icon: profile.IconAddress(), Links: v.links(here), Types: v.types(here, q)}
}

// setTypes gives the choice between types of samples if there is one: those
// of a profile of samples that each stand for as much are the same.
func (v *viewPages) setTypes(read *profile.Profile) {
	if t := read.Types; len(t) > 2 || len(t) == 2 && (read.Meta.ByValue || t[0].Type != "samples") {
		v.typeName = v.profile.Type
	}
}

// address is that of a page for the type of samples that is shown.
func (v *viewPages) address(path string, q url.Values) string { return addressOf(path, q, v.typeName) }

func addressOf(path string, q url.Values, typeName string) string {
	q = maps.Clone(q)
	if typeName != "" {
		if q == nil {
			q = url.Values{}
		}
		q.Set("type", typeName)
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// links are the pages, of which one is here.
func (v *viewPages) links(here string) []profile.Link {
	return []profile.Link{
		{Text: "Flame graph", Address: v.address("/", nil), Here: here == "/"},
		{Text: "Functions", Address: v.address("/top", nil), Here: here == "/top"},
		{Text: "pprof", Address: "/pprof/"},
	}
}

// types are the page that is here for each type of samples.
func (v *viewPages) types(here string, q url.Values) (links []profile.Link) {
	if v.typeName == "" {
		return nil
	}
	for _, t := range v.profile.Types {
		if t.CountsAnother(v.profile.Types) {
			continue // that has the samples of an event, of several, shows them as well
		}
		links = append(links, profile.Link{Text: t.Type, Address: addressOf(here, q, t.Type), Here: t.Type == v.typeName})
	}
	return links
}

func (v *viewPages) render(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := v.template.ExecuteTemplate(&b, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", v.policy)
	w.WriteHeader(status)
	w.Write(b.Bytes())
}

// functionRow is a line of a table of functions. Bars are in 100ths.
type functionRow struct {
	Function, Module, ModulePath, Kind, Address string
	Self, SelfShare, Total, TotalShare          string
	SelfBar, TotalBar                           float64
}

func (v *viewPages) row(e *profile.TopEntry) functionRow {
	r := functionRow{
		Function: printable(e.Function), Module: printable(e.Module[strings.LastIndexByte(e.Module, '/')+1:]), ModulePath: printable(e.Module), Kind: e.Kind.String(),
		Self: v.profile.Amount(e.Self), SelfShare: profile.Share(e.Self, v.whole), SelfBar: barOf(e.Self, v.whole),
		Total: v.profile.Amount(e.Total), TotalShare: profile.Share(e.Total, v.whole), TotalBar: barOf(e.Total, v.whole),
	}
	if e.Kind != profile.Marker {
		r.Address = v.address("/function", url.Values{"name": {e.Function}, "module": {e.Module}})
	}
	return r
}

func barOf(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

type topPage struct {
	viewFrame
	Query, Sort, Unit string
	BySelf, ByTotal   string // addresses
	Rows              []functionRow
	Found, All        int
	Shown             bool // that not all are
	SelfSum           string
}

// serveTop shows the functions, those with most self weight first or, by
// ?sort=total, those with most weight in all; ?q= selects by text.
func (v *viewPages) serveTop(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page := topPage{viewFrame: v.frame("Functions", "/top", q), Query: q.Get("q"), Sort: q.Get("sort"), Unit: v.unit, All: len(v.top)}
	page.BySelf = v.address("/top", url.Values{"q": {page.Query}, "sort": {"self"}})
	page.ByTotal = v.address("/top", url.Values{"q": {page.Query}, "sort": {"total"}})
	entries := v.top
	if wanted := strings.ToLower(page.Query); wanted != "" {
		entries = nil
		for i := range v.top {
			if e := &v.top[i]; strings.Contains(strings.ToLower(e.Function), wanted) || strings.Contains(strings.ToLower(e.Module), wanted) {
				entries = append(entries, *e)
			}
		}
	}
	if page.Sort == "total" {
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(x, y profile.TopEntry) int { return cmp.Compare(y.Total, x.Total) })
	} else {
		page.Sort = "self"
	}
	page.Found = len(entries)
	var self int64
	for i := range entries {
		self += entries[i].Self
	}
	page.SelfSum = profile.Share(self, v.whole)
	if len(entries) > topPageRows {
		entries, page.Shown = entries[:topPageRows], true
	}
	for i := range entries {
		page.Rows = append(page.Rows, v.row(&entries[i]))
	}
	v.render(w, http.StatusOK, "top.html", page)
}

type functionPage struct {
	viewFrame
	functionRow
	Unit             string
	Callers, Callees []functionRow
	Sources          []sourceSection
	Missing          bool // the profile has no such function
	FlameAddress     string
}

func (v *viewPages) serveFunction(w http.ResponseWriter, r *http.Request) {
	name, module := r.URL.Query().Get("name"), r.URL.Query().Get("module")
	page := functionPage{viewFrame: v.frame(name, "/function", r.URL.Query()), Unit: v.unit}
	f, ok := v.profile.Function(name, module)
	if !ok {
		page.Missing = true
		page.functionRow.Function = printable(name)
		v.render(w, http.StatusNotFound, "function.html", page)
		return
	}
	page.functionRow = v.row(&f.TopEntry)
	page.FlameAddress = v.address("/", nil) + "#" + url.Values{"search": {printable(name)}}.Encode()
	page.Callers, page.Callees = v.edgeRows(f.Callers), v.edgeRows(f.Callees)
	for i := range f.Sources {
		if s := &f.Sources[i]; s.File != "" {
			page.Sources = append(page.Sources, v.sourceSection(s))
		}
	}
	v.render(w, http.StatusOK, "function.html", page)
}

func (v *viewPages) edgeRows(edges []profile.TopEntry) []functionRow {
	var rows []functionRow
	for i := range edges[:min(len(edges), topPageRows)] {
		rows = append(rows, v.row(&edges[i]))
	}
	return rows
}

// sourceSection is a part of a source file, with what ran in its lines.
type sourceSection struct {
	File, Problem string
	Lines         []sourceLine
}

type sourceLine struct {
	Number      int
	Text        string
	Self, Total string
	SelfBar     float64
	Hot         bool
	Gap         bool // lines are left out before this one
}

// Lines of context around those in which something ran.
const sourceContext = 6

func (v *viewPages) sourceSection(s *profile.SourceView) sourceSection {
	out := sourceSection{File: printable(s.File)}
	text, err := v.sources.lines(s.File)
	if err != nil {
		out.Problem = printable(err.Error())
	}
	byLine := map[int]*profile.LineView{}
	shown := map[int]bool{}
	for i := range s.Lines {
		l := &s.Lines[i]
		byLine[l.Line] = l
		shown[l.Line] = true
		for n := l.Line - sourceContext; l.Line > 0 && n <= l.Line+sourceContext; n++ {
			if n >= max(s.StartLine, 1) && n <= len(text) {
				shown[n] = true
			}
		}
	}
	if s.StartLine > 0 && s.StartLine <= len(text) {
		shown[s.StartLine] = true
	}
	numbers := make([]int, 0, len(shown))
	for n := range shown {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	last := 0
	for _, n := range numbers {
		line := sourceLine{Number: n, Gap: last != 0 && n > last+1}
		last = n
		if n > 0 && n <= len(text) {
			line.Text = printableSource(text[n-1])
		}
		if l := byLine[n]; l != nil {
			line.Hot = true
			line.Total, line.SelfBar = v.profile.Amount(l.Total), barOf(l.Total, max(s.Total, 1))
			if l.Self > 0 {
				line.Self = v.profile.Amount(l.Self)
			}
		}
		out.Lines = append(out.Lines, line)
	}
	return out
}

// LineText is the line's number, or what stands for none.
func (l sourceLine) LineText() string {
	if l.Number == 0 {
		return "?"
	}
	return strconv.Itoa(l.Number)
}
