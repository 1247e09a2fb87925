package profile

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Colours seen with missing cones: linear RGB to linear RGB, from Machado,
// Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
// Color Vision Deficiency" (2009), severity 1.
var visions = map[string][3][3]float64{
	"normal": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia": {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216},
		{-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413},
		{-0.011820, 0.042940, 0.968881}},
	"tritanopia": {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602},
		{0.004733, 0.691367, 0.303900}},
}

type rgb [3]float64 // linear

func parseColour(t *testing.T, s string) (c rgb) {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "#"), 16, 32)
	if err != nil || len(s) != 7 {
		t.Fatalf("colour %q: %v", s, err)
	}
	for i := range c {
		v := float64(n>>(16-8*i)&255) / 255
		if v <= 0.04045 {
			c[i] = v / 12.92
		} else {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return c
}

func (c rgb) seen(m [3][3]float64) (out rgb) {
	for i := range out {
		v := m[i][0]*c[0] + m[i][1]*c[1] + m[i][2]*c[2]
		out[i] = min(1, max(0, v))
	}
	return out
}

func (c rgb) luminance() float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// lab returns CIELAB coordinates for a white of D65.
func (c rgb) lab() [3]float64 {
	f := func(v float64) float64 {
		if v > 0.008856 {
			return math.Cbrt(v)
		}
		return 7.787*v + 16./116
	}
	x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.95047)
	y := f(c.luminance())
	z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

func contrast(a, b rgb) float64 {
	x, y := a.luminance(), b.luminance()
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

// themes returns the colours of the style sheet, with and without the dark
// theme's.
func themes(t *testing.T) map[string]map[string]string {
	t.Helper()
	css, err := webFiles.ReadFile("web/style.css")
	if err != nil {
		t.Fatal(err)
	}
	colours := func(selector string, into map[string]string) map[string]string {
		_, block, ok := strings.Cut(string(css), selector+" {")
		if !ok {
			t.Fatalf("no %s in the style sheet", selector)
		}
		block, _, _ = strings.Cut(block, "}")
		for _, m := range regexp.MustCompile(`--([\w-]+): (#[0-9a-f]{6});`).FindAllStringSubmatch(block, -1) {
			into[m[1]] = m[2]
		}
		return into
	}
	light := colours(":root", map[string]string{})
	dark := colours(`:root[data-theme="dark"]`, colours(":root", map[string]string{}))
	system := colours(`:root:not([data-theme="light"])`, colours(":root", map[string]string{}))
	for name, value := range dark {
		if system[name] != value {
			t.Errorf("--%s is %s when dark is chosen, %s when the system is dark", name, value, system[name])
		}
	}
	return map[string]map[string]string{"light": light, "dark": dark}
}

// shades are the shades of a colour that the page draws.
func shades(t *testing.T, colour string) (out []rgb) {
	t.Helper()
	js, err := webFiles.ReadFile("web/canvas.js")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`const SHADES = \[(.*)\];`).FindSubmatch(js)
	if m == nil {
		t.Fatal("no shades in the script")
	}
	var bytes [3]int
	if _, err := fmt.Sscanf(colour, "#%02x%02x%02x", &bytes[0], &bytes[1], &bytes[2]); err != nil {
		t.Fatal(err)
	}
	for text := range strings.SplitSeq(string(m[1]), ", ") {
		amount, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		var shaded [3]int
		for i, b := range bytes {
			to := 0.0
			if amount > 0 {
				to = 255
			}
			shaded[i] = int(math.Round(float64(b) + (to-float64(b))*math.Abs(amount)))
		}
		out = append(out, parseColour(t, fmt.Sprintf("#%02x%02x%02x", shaded[0], shaded[1], shaded[2])))
	}
	return out
}

// TestColoursApart: the fills of frames, in all shades, differ by at least 17 units
// of CIELAB for everyone, of which about 2 can be told apart side by side.
// Of processes, which their place tells too, and of markers, which are hatched, it
// is the first shade.
func TestColoursApart(t *testing.T) {
	looks := []string{"native", "inlined", "go", "jit", "kernel", "unknown", "state", "marker", "process"}
	for theme, colours := range themes(t) {
		fills := map[string][]rgb{}
		for _, look := range looks {
			fills[look] = shades(t, colours[look])
			if look == "marker" || look == "process" {
				fills[look] = fills[look][:1]
			}
		}
		for vision, m := range visions {
			least, where := math.Inf(1), ""
			for i, a := range looks {
				for _, b := range looks[:i] {
					for _, ca := range fills[a] {
						for _, cb := range fills[b] {
							la, lb := ca.seen(m).lab(), cb.seen(m).lab()
							d := math.Sqrt(math.Pow(la[0]-lb[0], 2) + math.Pow(la[1]-lb[1], 2) + math.Pow(la[2]-lb[2], 2))
							if d < least {
								least, where = d, a+" and "+b
							}
						}
					}
				}
			}
			if t.Logf("%s theme, %s: %s are %.1f apart", theme, vision, where, least); least < 17 {
				t.Error("that is too near")
			}
		}
	}
}

// TestTextContrast: texts have the contrast that WCAG 2.1 asks for (1.4.3).
func TestTextContrast(t *testing.T) {
	for theme, colours := range themes(t) {
		for _, pair := range [][2]string{
			{"frame-text", "native"}, {"frame-text", "inlined"}, {"frame-text", "go"}, {"frame-text", "jit"},
			{"frame-text", "kernel"}, {"frame-text", "unknown"}, {"frame-text", "marker"}, {"frame-text", "state"}, {"frame-text", "process"},
			{"frame-text", "root"}, {"faint-text", "faint"}, {"hit-text", "hit"},
			{"foreground", "background"}, {"foreground", "surface"}, {"foreground", "share"},
			{"quiet", "background"}, {"quiet", "surface"}, {"quiet", "share"}, {"accent", "background"},
			{"warning", "background"}, {"warning", "surface"},
		} {
			c := contrast(parseColour(t, colours[pair[0]]), parseColour(t, colours[pair[1]]))
			if c < 4.5 {
				t.Errorf("%s theme: %s on %s has a contrast of %.1f", theme, pair[0], pair[1], c)
			}
		}
	}
}
