package profile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Where the page's parts are in a window of testWidth x testHeight.
const (
	testWidth, testHeight = 1200, 700
	rowHeight             = 19
)

// writeHTML writes a profile's flame graph to a file and returns its path.
func writeHTML(t *testing.T, p *Profile) string {
	t.Helper()
	var buf bytes.Buffer
	if err := p.WriteHTML(&buf); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "flame.html")
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// row returns the middle of a row of the graph, the root's being 0.
func (b *browser) row(n int) float64 {
	b.T.Helper()
	var top float64
	b.Eval("document.getElementById('canvas').getBoundingClientRect().top - document.getElementById('graph').scrollTop", &top)
	return top + float64(n)*rowHeight + rowHeight/2
}

// at returns what the tooltip says of the frame in a row at a share of the
// width from the left, as lines; none if there is no tooltip.
func (b *browser) at(row int, share float64) string {
	b.T.Helper()
	b.Mouse("mouseMoved", share*testWidth, b.row(row), 0)
	b.Settle()
	return b.Text(`(() => {
		const tip = document.getElementById('tooltip');
		if (tip.hidden) return '';
		const lines = [tip.querySelector('strong').textContent];
		tip.querySelectorAll('dt').forEach((dt) => lines.push(dt.textContent + ': ' + dt.nextSibling.textContent));
		return lines.join('\n');
	})()`)
}

func (b *browser) wantAt(row int, share float64, want ...string) {
	b.T.Helper()
	if got := b.at(row, share); got != strings.Join(want, "\n") {
		b.T.Errorf("row %d at %.2f:\n%s\nwant\n%s", row, share, got, strings.Join(want, "\n"))
	}
}

func (b *browser) hash() string {
	b.T.Helper()
	return b.Text("location.hash")
}

// The fixture's frames, by row and place:
//
//	0 all 99
//	1 app 83                                          gosrv 16
//	2 __libc_start_main 77 ... [stack-cut] 5 [no-mapping] 1   runtime.goexit 16
//	3 main 77                  app+0x2345 5                   main.handle 12, [jit] 4
//	4 fill(int) 57  read 20    fill(int) 5                    .., hashCode 4
//	5 push_back 57  do_syscall push_back
//	6               vfs_read
func TestFlameGraph(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, fixture())
	b.Open(file, "")

	t.Run("head", func(t *testing.T) {
		b.T = t
		b.WantText("h1", "whole machine")
		b.WantText(".title p", "cpu-clock at 99 Hz for 10 s on 2 CPUs · 99 samples")
		b.WantText("#legend", "native 0 %inlined 62.6 %Go 12.1 %JIT 4.0 %kernel 20.2 %no name 1.0 %incomplete 6.1 %")
		b.WantText("#lost", "3 lost")
		b.WantText("#about", "99 samples · 93.9 % with complete stacks · 3 lost · swbpf test")
		if got := b.Text("document.title"); got != "whole machine – flame graph" {
			t.Errorf("title %q", got)
		}
	})

	t.Run("hover", func(t *testing.T) {
		b.T = t
		b.Open(file, "")
		b.wantAt(0, 0.5, "all", "Total: 99 samples, ≈ 1.00 s, 100 %")
		b.wantAt(1, 0.1, "app", "Total: 83 samples, ≈ 838 ms, 83.8 %")
		b.wantAt(3, 0.1, "main", "Code: native · /usr/bin/app", "Source: /src/app.cc:42",
			"Total: 77 samples, ≈ 778 ms, 77.8 %", "Of parent: 100 %")
		b.wantAt(5, 0.1, "std::vector<int>::push_back(int const&)", "Code: inlined, native · /usr/bin/app",
			"Source: /usr/include/stl_vector.h:900", "Total: 57 samples, ≈ 576 ms, 57.6 %", "Of parent: 100 %")
		b.wantAt(6, 65./99, "vfs_read", "Code: kernel · [kernel.kallsyms]",
			"Total: 20 samples, ≈ 202 ms, 20.2 %", "Of parent: 100 %")
		b.wantAt(2, 79./99, "[truncated: stack-cut]", "Code: marker", "Total: 5 samples, ≈ 50.5 ms, 5.1 %", "Of parent: 6.0 %")
		b.wantAt(3, 97./99, "[jit]+0x7f0000002000", "Code: no name · [jit]", "Total: 4 samples, ≈ 40.4 ms, 4.0 %", "Of parent: 25.0 %")
		b.wantAt(6, 0.1)
	})

	t.Run("zoom", func(t *testing.T) {
		b.T = t
		b.Open(file, "")
		b.Click(testWidth*0.6, b.row(4)) // read
		if got := b.Text("document.getElementById('crumbs').innerText.replace(/\\s+/g, ' ')"); got != "all app __libc_start_main main read" {
			t.Errorf("crumbs %q", got)
		}
		b.wantAt(6, 0.05, "vfs_read", "Code: kernel · [kernel.kallsyms]",
			"Total: 20 samples, ≈ 202 ms, 20.2 %", "Of parent: 100 %")
		zoomed := b.hash()
		b.Click(testWidth*0.5, b.row(3)) // main, a caller above
		b.wantAt(6, 0.05)
		b.wantAt(4, 0.05, "fill(int)", "Code: native · /usr/bin/app", "Source: /src/app.cc:12",
			"Total: 57 samples, ≈ 576 ms, 57.6 %", "Of parent: 74.0 %")
		b.Eval("history.back()", nil)
		b.Wait(fmt.Sprintf("location.hash === %q && document.querySelector('#crumbs li:last-child').textContent.trim() === 'read'", zoomed))
		b.Open(file, zoomed) // a deep link
		b.WantText("#crumbs li:last-child", "read")
		b.Press("Escape")
		b.WantText("#crumbs", "all")
		b.Open(file, "#zoom=zz.1.2") // of no frame
		b.WantText("#crumbs", "all")
	})

	t.Run("search", func(t *testing.T) {
		b.T = t
		b.Open(file, "")
		for _, test := range []struct{ query, want string }{
			{"push_back", "62.6 % matched"},
			{"push_back(int", "62.6 % matched"}, // no regular expression
			{"^(read|fill)", "82.8 % matched"},
			{"MAIN", "no match"}, // capitals matter when there are some
			{"main", "89.9 % matched"},
			{"kind:kernel", "20.2 % matched"},
			{"kind:marker", "6.1 % matched"},
			{"module:libc", "77.8 % matched"},
			{"file:srv.go", "12.1 % matched"},
			{"nothing at all", "no match"},
			{"", ""},
		} {
			b.Press("/")
			b.TypeText(test.query)
			if test.query == "" {
				b.Press("Backspace")
			}
			b.WantText("#matched", test.want)
			b.Eval("document.activeElement.blur()", nil)
		}
		b.Open(file, "#search=push_back")
		b.WantText("#matched", "62.6 % matched")
		b.Click(testWidth*0.6, b.row(3))
		b.WantText("#matched", "62.6 % matched, here 74.0 %")
		b.Press("Escape")
		b.WantText("#matched", "")
		b.WantText("#crumbs li:last-child", "main") // the next Escape zooms out
	})

	t.Run("keys", func(t *testing.T) {
		b.T = t
		b.Open(file, "#search=push_back")
		status := func(want string) { t.Helper(); b.WantText("#status", want) }
		b.Press("n")
		status("57.6 % 57 samples std::vector<int>::push_back(int const&)")
		b.Press("n")
		status("5.1 % 5 samples std::vector<int>::push_back(int const&)")
		b.Press("n", "N", "N")
		status("57.6 % 57 samples std::vector<int>::push_back(int const&)")
		b.Press("ArrowUp")
		status("57.6 % 57 samples fill(int)")
		b.Press("ArrowRight")
		status("20.2 % 20 samples read")
		b.Press("ArrowDown", "Enter")
		b.WantText("#crumbs li:last-child", "do_syscall_64")
		b.Press("Backspace")
		b.WantText("#crumbs li:last-child", "read")
		b.Press("Home")
		b.WantText("#crumbs", "all")
		b.Press("f")
		if got := b.hash(); got != "#grow=up&search=push_back" {
			t.Errorf("address %s", got)
		}
		b.Press("ArrowUp") // now towards the callees
		status("20.2 % 20 samples vfs_read")
		b.Press("?")
		b.Wait("document.getElementById('help').open")
		b.Press("Escape")
		b.Wait("!document.getElementById('help').open")
		b.Press("d")
		b.Wait("document.body.classList.contains('details')")
		b.Press("Escape")
		b.Wait("!document.body.classList.contains('details')")
	})

	t.Run("callers", func(t *testing.T) {
		b.T = t
		b.Open(file, "")
		b.Press("c")
		b.wantAt(1, 0.1, "std::vector<int>::push_back(int const&)", "Code: inlined, native · /usr/bin/app",
			"Source: /usr/include/stl_vector.h:900", "Total: 62 samples, ≈ 626 ms, 62.6 %")
		b.wantAt(2, 0.1, "fill(int)", "Code: native · /usr/bin/app", "Source: /src/app.cc:12",
			"Total: 62 samples, ≈ 626 ms, 62.6 %", "Of parent: 100 %")
		b.wantAt(3, 0.1, "main", "Code: native · /usr/bin/app", "Source: /src/app.cc:42",
			"Total: 57 samples, ≈ 576 ms, 57.6 %", "Of parent: 91.9 %")
		b.wantAt(3, 60./99, "app+0x2345", "Code: no name · /usr/bin/app",
			"Total: 5 samples, ≈ 50.5 ms, 5.1 %", "Of parent: 8.1 %")
		b.wantAt(1, 70./99, "vfs_read", "Code: kernel · [kernel.kallsyms]", "Total: 20 samples, ≈ 202 ms, 20.2 %")
	})

	t.Run("filter", func(t *testing.T) {
		b.T = t
		b.Open(file, "")
		b.Press("p")
		b.WantText("#process-list", "▸apppid 10083.8 %gosrvpid 20016.2 %")
		b.ClickOn("#process-list .expand")
		b.WantText("#process-list", "▾apppid 10083.8 %tid 100 app70.7 %tid 101 app worker13.1 %gosrvpid 20016.2 %")
		b.ClickOn("#process-list li:nth-child(3) label")
		b.wantAt(0, 0.2, "all", "Total: 13 samples, ≈ 131 ms, 100 % of the filtered")
		if got := b.hash(); got != "#only=app%2F100%2F101" {
			t.Errorf("address %s", got)
		}
		b.Press("Escape")
		b.WantText("#processes", "tid 101 ▾")
		b.WantText("#legend", "native 0 %inlined 92.3 %no name 7.7 %incomplete 46.2 %")
		b.Open(file, "#only=gosrv")
		b.wantAt(1, 0.5, "gosrv", "Total: 16 samples, ≈ 162 ms, 100 % of the filtered")
		b.Open(file, "#only=nobody")
		b.wantAt(0, 0.5, "all", "Total: 99 samples, ≈ 1.00 s, 100 %")
	})

	b.T = t
	b.NoErrors()
}

// TestFlameGraphThemes looks at pixels: the background follows the system's
// preference and the switch, and each frame has its kind's colour.
func TestFlameGraphThemes(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, fixture())
	pixel := func(x, y float64) (rgb [3]int) {
		t.Helper()
		b.Settle()
		b.Eval(fmt.Sprintf("[...document.getElementById('canvas').getContext('2d').getImageData(%f, %f, 1, 1).data].slice(0, 3)", x, y), &rgb)
		return rgb
	}
	bright := func(rgb [3]int) bool { return rgb[0]+rgb[1]+rgb[2] > 3*128 }
	for _, dark := range []bool{false, true} {
		b.Dark(dark)
		b.Open(file, "")
		if bright(pixel(600, 400)) == dark {
			t.Errorf("dark %v: background %v", dark, pixel(600, 400))
		}
		b.Press("t")
		if bright(pixel(600, 400)) != dark {
			t.Errorf("dark %v and switched: background %v", dark, pixel(600, 400))
		}
		b.Screenshot(fmt.Sprintf("fixture-%v", dark))
	}
	b.Dark(false)
	b.Open(file, "")
	seen := map[[3]int]string{}
	for name, at := range map[string][2]float64{
		"native": {0.2, 3}, "inlined": {0.2, 5}, "kernel": {65. / 99, 6}, "go": {90. / 99, 2},
		"jit": {98.5 / 99, 4}, "unknown": {81.7 / 99, 3}, "process": {0.5, 1},
	} {
		// Near a frame's right end, where there is no text.
		rgb := pixel(at[0]*testWidth, at[1]*rowHeight+2)
		if other, ok := seen[rgb]; ok || rgb == [3]int{255, 255, 255} {
			t.Errorf("%s and %s are both %v", name, other, rgb)
		}
		seen[rgb] = name
	}
	b.NoErrors()
}

// Names are text, whatever is in them.
func TestFlameGraphHostileNames(t *testing.T) {
	names := []string{
		"</script><script>document.title='owned'</script>",
		"</pre><img src=x onerror=\"document.title='owned'\">",
		"<!--", "]]>", "{{.}}", "${document.title='owned'}", "'\"&amp;<b>", "\x00\xff\xfe bytes",
		"\u2028\u2029\u202e", strings.Repeat("very_long_", 5000),
	}
	build := func() *Profile {
		bld := NewBuilder()
		syms := symbols{}
		m := bld.Module(Module{Path: "/tmp/<script>document.title='owned'</script>"})
		for i, name := range names {
			loc := Loc{m, uint64(i)}
			syms[loc] = []Line{{Function: name, File: name, Line: 1}}
			bld.Add(Thread{PID: 1, TID: int32(i), Comm: Comm("</pre><script>")}, []Loc{loc}, "</pre>", 10-int64(i)/2, 1)
		}
		meta := fixtureMeta()
		meta.Target, meta.Event, meta.Tool, meta.Kernel = names[0], names[1], names[2], names[6]
		meta.Notes = names
		meta.Lost = []Tally{{names[0], 3}}
		meta.Help = map[string]string{names[0]: names[1], "</pre>": names[0]}
		return bld.Finish(meta, syms)
	}
	b := newBrowser(t, testWidth, testHeight)
	b.Open(writeHTML(t, build()), "#search="+"%3C%2Fscript%3E&only=%3C%2Fpre%3E%3Cscript%3E")
	if got := b.Text("document.title"); got != names[0]+" – flame graph" {
		t.Errorf("title is %q", got)
	}
	b.WantText("h1", names[0])
	if got, want := b.at(3, 0.01), names[1]+"\n"; !strings.HasPrefix(got, want) {
		t.Errorf("tooltip says %q", got)
	}
	if got := b.Text("document.scripts.length"); got != "1" {
		t.Errorf("%s scripts in the page", got)
	}
	b.Press("p")
	b.Press("Escape", "d")
	b.NoErrors()
}

// On a phone the page is no wider than the screen, and the field of the search has room for
// what it says.
func TestFlameGraphFitsPhone(t *testing.T) {
	b := newBrowser(t, 375, 500)
	file := writeHTML(t, fixture())
	for _, width := range []int{320, 375} {
		b.Resize(width, 500)
		b.Open(file, "")
		if got := b.Text("document.documentElement.scrollWidth"); got != strconv.Itoa(width) {
			t.Errorf("of %d pixels the page takes %s", width, got)
		}
		const room = `(() => {
			const c = document.createElement("canvas").getContext("2d"), input = document.getElementById("search");
			const style = getComputedStyle(input), icon = 16; // that of a search field's end
			c.font = style.font;
			return input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - icon - c.measureText(input.placeholder).width;
		})()`
		if got, err := strconv.ParseFloat(b.Text(room), 64); err != nil || got < 0 {
			t.Errorf("%d pixels: the placeholder lacks %v (%v)", width, -got, err)
		}
		b.ClickOn("#search")
		b.TypeText("fill")
		b.Wait("document.getElementById('matched').textContent !== ''")
		const rows = `new Set(["processes", "theme", "keys"].map((id) => document.getElementById(id).getBoundingClientRect().top)).size`
		if got := b.Text(rows); width >= 375 && got != "1" {
			t.Errorf("%d pixels: the buttons are in %s rows", width, got)
		}
		if got := b.Text("document.documentElement.scrollWidth"); got != strconv.Itoa(width) {
			t.Errorf("of %d pixels the page takes %s with matches", width, got)
		}
	}
}

// Names that would reverse what follows, or hide, are shown for what they are, wherever they
// stand; links to other pages have them as they are.
func TestFlameGraphInvisibleNames(t *testing.T) {
	const name = "evil\u202egnirts\u2066\u200b"
	p, err := Read(strings.NewReader("app;main;"+name+";leaf 10\n"), ReadOptions{Name: "target\u202e"})
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := p.WriteHTMLWithin(&buf, &Links{Function: "/function"}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "flame.html")
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, testWidth, testHeight)
	b.Open(path, "")
	b.wantAt(3, 0.5, "evil?gnirts??", "Code: native", "Total: 10 samples, 100 %", "Of parent: 100 %")
	b.WantText("h1", "target?")
	b.Click(0.5*testWidth, b.row(3))
	b.WantText("#crumbs li:nth-last-child(2)", "evil?gnirts??")
	if got := b.Text("new URL(document.getElementById('about-function').href).searchParams.get('name')"); got != name {
		t.Errorf("the link is to %q", got)
	}
	if got := b.Text("document.title + document.documentElement.innerText + document.getElementById('details').textContent"); strings.ContainsAny(got, name[4:7]) {
		t.Errorf("%q", got)
	}
	b.NoErrors()
}

// Paper is white and as wide as it is, whatever the screen is.
func TestFlameGraphPrint(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	b.Dark(true)
	b.Open(writeHTML(t, fixture()), "")
	const background = "getComputedStyle(document.body).backgroundColor"
	b.Eval("dispatchEvent(new Event('beforeprint'))", new(bool))
	if got := b.Text(background); got != "rgb(255, 255, 255)" {
		t.Errorf("printed on %s", got)
	}
	var pixel []int
	b.Eval("[...document.getElementById('canvas').getContext('2d').getImageData(600, 400, 1, 1).data]", &pixel)
	if !slices.Equal(pixel, []int{255, 255, 255, 255}) {
		t.Errorf("the graph is printed on %d", pixel)
	}
	b.Eval("dispatchEvent(new Event('afterprint'))", new(bool))
	if got := b.Text(background); got != "rgb(20, 23, 27)" {
		t.Errorf("then the screen is %s", got)
	}
	b.Call("Emulation.setEmulatedMedia", map[string]any{"media": "print"}, nil)
	const width = "(document.getElementById('canvas').style.width = '3000px', document.getElementById('canvas').getBoundingClientRect().width)"
	if got := b.Text(width); got != strconv.Itoa(testWidth) {
		t.Errorf("on paper of %d pixels the graph takes %s", testWidth, got)
	}
}

// Without scripts the page still tells the facts and the hottest functions.
func TestFlameGraphWithoutScripts(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	file := writeHTML(t, fixture())
	b.Call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.Call("Page.navigate", map[string]any{"url": "file://" + file}, nil)
	b.Wait("document.readyState === 'complete'")
	shown := b.Text("document.body.innerText")
	for _, want := range []string{
		"whole machine", "cpu-clock at 99 Hz", "needs JavaScript", "vfs_read", "20.2 %", "stack-cut",
		"raise --stack-bytes", "ring-full", "64 KiB of stack per sample",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not shown in:\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "Callers") {
		t.Error("controls without function are shown")
	}
}

// TestFlameGraphEmpty shows a profile without samples.
func TestFlameGraphEmpty(t *testing.T) {
	b := newBrowser(t, testWidth, testHeight)
	b.Open(writeHTML(t, NewBuilder().Finish(Meta{Target: "nothing"}, nil)), "")
	b.wantAt(0, 0.5, "all", "Total: 0 samples, 0 %")
	b.Press("c", "p", "Escape", "f", "/")
	b.NoErrors()
}

// A profile of values has widths by value, with their unit.
func TestFlameGraphByValue(t *testing.T) {
	bld := NewBuilder()
	m := bld.Module(Module{Path: "a", Kind: Native})
	syms := symbols{{m, 1}: {{Function: "short"}}, {m, 2}: {{Function: "long"}}}
	bld.Add(Thread{PID: 1, TID: 1, Comm: Comm("a")}, []Loc{{m, 1}}, "", 90, 1e9)
	bld.Add(Thread{PID: 1, TID: 1, Comm: Comm("a")}, []Loc{{m, 2}}, "", 10, 3e9)
	p := bld.Finish(Meta{ByValue: true, Value: ValueType{"off-cpu", "nanoseconds"}}, syms)
	b := newBrowser(t, testWidth, testHeight)
	b.Open(writeHTML(t, p), "")
	b.wantAt(2, 0.5, "long", "Code: native · a", "Total: 3.00 s, 10 samples, 75.0 %", "Of parent: 75.0 %")
	b.NoErrors()
}

// What is too narrow to be drawn is said to be there, and search finds it.
func TestFlameGraphNarrow(t *testing.T) {
	bld := NewBuilder()
	m := bld.Module(Module{Path: "a", Kind: Native})
	syms := symbols{{m, 0}: {{Function: "wide"}}, {m, 1}: {{Function: "parent"}}}
	th := Thread{PID: 1, TID: 1, Comm: Comm("a")}
	bld.Add(th, []Loc{{m, 0}}, "", 100_000, 1)
	for i := uint64(2); i < 1002; i++ {
		syms[Loc{m, i}] = []Line{{Function: fmt.Sprintf("narrow_%d", i)}}
		bld.Add(th, []Loc{{m, i}, {m, 1}}, "", 10, 1)
	}
	b := newBrowser(t, testWidth, testHeight)
	b.Open(writeHTML(t, bld.Finish(fixtureMeta(), syms)), "")
	b.wantAt(2, 0.95, "parent", "Code: native · a", "Total: 10,000 samples, ≈ 101 s, 9.1 %", "Of parent: 9.1 %")
	b.wantAt(3, 0.95, "1,000 narrow frames", "Total: 10,000 samples, 9.1 %", ": Zoom to the frame above to see them")
	b.Press("/")
	b.TypeText("narrow_500")
	b.WantText("#matched", "0.009 % matched")
	b.Eval("document.activeElement.blur()", nil)
	b.Press("n")
	b.WantText("#status", "0.009 % 10 samples narrow_500")
	b.WantText("#crumbs li:last-child", "narrow_500")
	b.NoErrors()
}

// TestPageAsksNobody: the page names no other host, and its policy forbids
// all but its own style and program.
func TestPageAsksNobody(t *testing.T) {
	var buf bytes.Buffer
	if err := fixture().WriteHTML(&buf); err != nil {
		t.Fatal(err)
	}
	if urls := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]+|@import|url\(`).FindAllString(buf.String(), -1); urls != nil {
		t.Errorf("the page names %v", urls)
	}
	if !strings.Contains(buf.String(), "default-src &#39;none&#39;") {
		t.Error("the page has no policy")
	}
}

func TestHTMLDeterministic(t *testing.T) {
	var want bytes.Buffer
	if err := fixture().WriteHTML(&want); err != nil {
		t.Fatal(err)
	}
	for _, turns := range otherTurns {
		var got bytes.Buffer
		if err := fixture(turns...).WriteHTML(&got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("bytes differ when samples are added in the order %v", turns)
		}
	}
}
