package main

import (
	"strings"
	"unicode"

	"github.com/swbpf/swbpf/profile"
)

// style is how text looks. Colours are of the first eight, by which the
// terminal's owner can tell them from the ground.
type style string

const (
	plain    style = ""
	bold     style = "1"
	dim      style = "2"
	reversed style = "7"
	warning  style = "1;31"

	colourKernel style = "35"
	colourGo     style = "36"
	colourJIT    style = "33"
	colourMarker style = "31"
)

// kindStyles are the colours of functions.
var kindStyles = map[profile.Kind]style{
	profile.Kernel: colourKernel, profile.Go: colourGo, profile.JIT: colourJIT, profile.Marker: colourMarker,
}

// isColour reports whether NO_COLOR is against a style.
func (s style) isColour() bool {
	return strings.HasPrefix(string(s), "3") || strings.Contains(string(s), ";3")
}

// screenLine is one line of the screen, built from the left.
type screenLine struct {
	b       strings.Builder
	width   int // columns that there are
	used    int
	base    style // of the whole line
	colours bool
}

// add appends text in a style, as far as there is room.
func (l *screenLine) add(st style, text string) {
	if l.base == reversed || st.isColour() && !l.colours {
		st = plain
	}
	text, n := fit(text, l.width-l.used)
	if text == "" {
		return
	}
	l.used += n
	codes := string(l.base)
	if st != plain {
		codes = strings.Trim(codes+";"+string(st), ";")
	}
	if codes == "" {
		l.b.WriteString(text)
		return
	}
	l.b.WriteString("\x1b[" + codes + "m" + text + "\x1b[0m")
}

// column goes on at a column, and at least one after what is there.
func (l *screenLine) column(n int) {
	if l.used > 0 {
		n = max(n, l.used+1)
	}
	if n > l.used {
		l.add(plain, strings.Repeat(" ", n-l.used))
	}
}

// string ends the line. One with a style of its own is as wide as the screen.
func (l *screenLine) string() string {
	if l.base != plain && l.used < l.width {
		l.add(plain, strings.Repeat(" ", l.width-l.used))
	}
	return l.b.String()
}

// ellipsis stands for what had no room.
const ellipsis = ".."

// fit returns the part of text that n columns hold, with an ellipsis when it
// is not all, and the columns it takes.
func fit(text string, n int) (string, int) {
	used := 0
	for _, r := range text {
		used += runeWidth(r)
	}
	if used <= n {
		return text, used
	}
	if n <= 0 {
		return "", 0
	}
	used = 0
	for i, r := range text {
		w := runeWidth(r)
		if used+w > n-len(ellipsis) {
			return text[:i] + ellipsis[:min(len(ellipsis), n-used)], min(n, used+len(ellipsis))
		}
		used += w
	}
	return text, used
}

// runeWidth is the number of columns of a printable rune.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.In(r, unicode.Han, unicode.Hangul, unicode.Hiragana, unicode.Katakana), r >= 0xff01 && r <= 0xff60, r >= 0x1f300 && r <= 0x1faff:
		return 2
	}
	return 1
}
