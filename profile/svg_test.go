package profile

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeSVG(t *testing.T, p *Profile) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := p.WriteSVG(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestSVG(t *testing.T) {
	got := writeSVG(t, fixture())
	golden(t, "flame.svg", got)
	for _, turns := range otherTurns {
		if !bytes.Equal(writeSVG(t, fixture(turns...)), got) {
			t.Errorf("differs when samples are added in the order %v", turns)
		}
	}
	if err := fixture().WriteSVG(brokenWriter{}); !errors.Is(err, errBroken) {
		t.Errorf("error %v", err)
	}
}

// TestSVGShown has Chromium draw the picture, and asks it what is where.
func TestSVGShown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flame.svg")
	if err := os.WriteFile(path, writeSVG(t, fixture()), 0o644); err != nil {
		t.Fatal(err)
	}
	b := newBrowser(t, 1240, 300)
	b.Call("Page.navigate", map[string]any{"url": "file://" + path}, nil)
	b.Wait("document.readyState === 'complete' && document.rootElement !== null")
	b.Screenshot("svg")
	for _, test := range []struct {
		x, row float64 // the share of samples at the left; the row from the root
		want   string
	}{
		{1, 0, "all"}, {1, 1, "app"}, {98, 1, "gosrv"}, {60, 6, "vfs_read"},
		{79, 2, "[truncated: stack-cut]"}, {97, 3, "[jit]+0x7f0000002000"}, {60, 7, ""},
	} {
		x, y := svgMargin+test.x/99*(svgWidth-2*svgMargin), svgHead+(6-test.row)*svgRow+3
		got := b.Text(strings.NewReplacer("X", fmt.Sprint(x), "Y", fmt.Sprint(y)).Replace(
			"document.elementFromPoint(X, Y).parentNode.querySelector(':scope > title')?.textContent.split('\\n')[0]"))
		if test.want == "" {
			test.want = "whole machine – flame graph" // of the whole picture
		}
		if got != test.want {
			t.Errorf("at %g, row %g: %q, want %q", test.x, test.row, got, test.want)
		}
	}
	// Labels stay inside of their frames.
	if got := b.Text(`[...document.querySelectorAll('g')].filter((g) => {
		const text = g.querySelector('text');
		return text && text.getBBox().x + text.getBBox().width > g.querySelector('rect').getBBox().x + g.querySelector('rect').getBBox().width;
	}).map((g) => g.querySelector('text').textContent)`); got != "" {
		t.Errorf("labels stick out: %s", got)
	}
	b.NoErrors()
}

func TestSVGHostileNames(t *testing.T) {
	bld := NewBuilder()
	m := bld.Module(Module{Path: "/x/]]><script>"})
	syms := symbols{}
	for i, name := range []string{"</title></g><script>x()</script>", "a&b\x00\xff\u202e", strings.Repeat("ä", 999)} {
		syms[Loc{m, uint64(i)}] = []Line{{Function: name}}
		bld.Add(Thread{Comm: Comm("<&>")}, []Loc{{m, uint64(i)}}, "</svg>", 1, 1)
	}
	svg := writeSVG(t, bld.Finish(Meta{Target: "</title><script>"}, syms))
	if strings.Contains(string(svg), "\u202e") {
		t.Errorf("what follows is reversed in\n%s", svg)
	}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "script" {
			t.Errorf("a script in\n%s", svg)
		}
	}
}

func TestSVGEmpty(t *testing.T) {
	svg := writeSVG(t, NewBuilder().Finish(Meta{}, nil))
	if err := xml.Unmarshal(svg, new(struct{})); err != nil || bytes.Contains(svg, []byte("NaN")) {
		t.Errorf("%v:\n%s", err, svg)
	}
}

func TestClip(t *testing.T) {
	for _, test := range []struct {
		name string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"abcd", 2, ""}, {"", 0, ""}, {"abc", -4, ""}, {"äöüß", 3, "äö…"},
	} {
		if got := clip(test.name, test.n); got != test.want {
			t.Errorf("clip(%q, %d) = %q, want %q", test.name, test.n, got, test.want)
		}
	}
}

// Rows that only a narrow stack reaches are left out, and that is said.
func TestSVGDeep(t *testing.T) {
	b := NewBuilder()
	m := b.Module(Module{Path: "/bin/a", Kind: Native})
	th := Thread{PID: 1, TID: 1, Comm: Comm("a")}
	b.Add(th, []Loc{{m, 1}}, "", 999, 999)
	var deep []Loc
	for i := range uint64(100) {
		deep = append(deep, Loc{m, 2 + i})
	}
	b.Add(th, deep, "", 1, 1)
	var svg bytes.Buffer
	if err := b.Finish(Meta{Target: "deep"}, nil).WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	// The root, the process and the row of the wide function are left.
	if text := svg.String(); !strings.Contains(text, fmt.Sprintf(`height="%d"`, svgHead+3*svgRow+svgFoot)) || !strings.Contains(text, "· 99 narrow rows above left out<") {
		t.Errorf("%.1000s", text)
	}
}
