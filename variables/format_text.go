package variables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/swbpf/swbpf/symbols"
)

// textual is a type whose arrays are strings.
type textual struct {
	width  int    // of a unit in bytes: UTF-8, UTF-16 or UTF-32
	prefix string // of a literal in C
}

// textOf tells how arrays of a type are written as strings; ok is false when
// they are not.
func textOf(t *symbols.Type) (text textual, ok bool) {
	prefixes := map[string]string{"char8_t": "", "wchar_t": "L", "char16_t": "u", "char32_t": "U"}
	at := t
	for range maxNames {
		prefix, named := prefixes[at.Name]
		switch at.Kind {
		case symbols.KindTypedef, symbols.KindConst, symbols.KindVolatile, symbols.KindOther:
			if !named {
				at = at.Elem()
				continue
			}
		case symbols.KindBase:
		default:
			return text, false
		}
		n, _ := at.Size()
		base := at.Strip()
		chars := base.Encoding == symbols.EncodingSignedChar || base.Encoding == symbols.EncodingUnsignedChar
		text = textual{int(n), prefix}
		return text, base.GoKind == 0 && (n == 1 && chars || (n == 1 || n == 2 || n == 4) && (named || base.Encoding == symbols.EncodingUTF))
	}
	return text, false
}

// maxNames bounds the names and qualifiers that stand before a type: one of a
// damaged file can stand before itself.
const maxNames = 16

// element is a character of a string, or a unit that belongs to none.
type element struct {
	raw  []byte
	char rune // -1: none
	cut  bool // the string ends within the character
}

// next returns the first character of b, which is not empty.
func (x textual) next(b []byte) element {
	le := binary.LittleEndian
	switch x.width {
	case 1:
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			return element{b[:n], r, false}
		}
		if b[0] >= 0xc0 && !utf8.FullRune(b) {
			return element{b, -1, true}
		}
	case 2:
		r := rune(le.Uint16(b))
		if !utf16.IsSurrogate(r) {
			return element{b[:2], r, false}
		}
		if len(b) >= 4 {
			if r = utf16.DecodeRune(r, rune(le.Uint16(b[2:]))); r != utf8.RuneError {
				return element{b[:4], r, false}
			}
		} else if r < 0xdc00 {
			return element{b, -1, true}
		}
	case 4:
		if r := le.Uint32(b); r <= unicode.MaxRune && !utf16.IsSurrogate(rune(r)) {
			return element{b[:4], rune(r), false}
		}
	}
	return element{b[:x.width], -1, false}
}

// escaped writes a character as it stands between two marks. afterHex tells
// that it follows a number of any length, which it could be taken for a part
// of.
func (x textual) escaped(e element, mark rune, afterHex bool) (s string, hex bool) {
	switch i := strings.IndexRune("\a\b\f\n\r\t\v\\", e.char); {
	case e.char >= 0 && i >= 0:
		return `\` + "abfnrtv\\"[i:i+1], false
	case e.char == mark:
		return `\` + string(mark), false
	case e.char >= 0 && unicode.IsPrint(e.char) && !(afterHex && strings.ContainsRune("0123456789abcdefABCDEF", e.char)):
		return string(e.char), false
	}
	for at := 0; at < len(e.raw); at += x.width {
		unit := decode(unsigned, e.raw[at:at+x.width]).bits
		if hex = unit > 0o777; hex {
			s += fmt.Sprintf(`\x%x`, unit)
		} else {
			s += fmt.Sprintf(`\%03o`, unit)
		}
	}
	return s, hex
}

// character writes a character constant.
func (x textual) character(b []byte) string {
	s, _ := x.escaped(element{b, x.next(b).char, false}, '\'', false)
	return x.prefix + "'" + s + "'"
}

// textRead is how many bytes of an array are read first, and maxTextRead how
// many at most.
const (
	textRead    = 1 << 12
	maxTextRead = 1 << 20
)

// chars writes an array of n characters as a string, without the zero at its
// end. It does not when only some of them are known.
func (p *printer) chars(v *Value, x textual, n int64) bool {
	width := int64(x.width)
	if n > maxArray/width {
		return false
	}
	var b []byte
	for size := n * width; int64(len(b)) < size; {
		more, err := v.bytes(uint64(len(b)), int(min(size-int64(len(b)), int64(max(len(b), textRead)))))
		if err != nil {
			return false
		}
		b = append(b, more...)
		if len(b) >= maxTextRead || !x.isRun(b, p.o.Elements, p.o.Repeats) {
			break
		}
	}
	cut := int64(len(b)) < n*width
	if last := len(b) - x.width; !cut && last >= 0 && isZero(b[last:]) {
		b = b[:last]
	}
	p.quoted(x, b, cut)
	return true
}

// isRun reports whether more than what was read of a string may be needed to
// write its first characters: it is short, or ends with many equal units.
func (x textual) isRun(b []byte, elements, repeats int) bool {
	if len(b) < x.width*(elements+1) {
		return true
	}
	last := b[len(b)-x.width:]
	for i := 1; repeats > 0 && i <= repeats+utf8.UTFMax; i++ {
		if at := len(b) - (i+1)*x.width; at < 0 || !bytes.Equal(b[at:at+x.width], last) {
			return false
		}
	}
	return repeats > 0
}

// text writes the string that ends with a zero at an address.
func (p *printer) text(f *frame, x textual, addr uint64) {
	s, ended, err := f.stringAt(addr, x.width, p.o.Elements+1)
	if err == nil && !ended {
		s = s[:p.o.Elements*x.width]
	}
	if err == nil || len(s) > 0 {
		p.quoted(x, s, err == nil && !ended)
	}
	if err != nil {
		p.b.WriteString(Unknown(err))
	}
}

// stringAt reads the string at an address, but no more than limit units of it.
// ended tells that it read as far as the zero at its end.
func (f *frame) stringAt(addr uint64, width, limit int) (s []byte, ended bool, err error) {
	const page = 4096
	for units := 0; len(s) < limit*width; {
		// Up to the end of the page: the next need not be readable.
		at := addr + uint64(len(s))
		b := make([]byte, min(uint64(limit*width-len(s)), page-at%page))
		if err := f.r.read(at, b); err != nil {
			return s[:units], false, err
		}
		s = append(s, b...)
		for ; units+width <= len(s); units += width {
			if isZero(s[units : units+width]) {
				return s[:units], true, nil
			}
		}
	}
	return s, false, nil
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// quoted writes a string, up to the limit: equal characters in a row once.
// more tells that it goes on.
func (p *printer) quoted(x textual, s []byte, more bool) {
	p.b.WriteString(x.prefix)
	if len(s) == 0 {
		p.b.WriteString(`""`)
	}
	shown, open, hex := 0, false, false
	closeQuote := func() {
		if open {
			p.b.WriteByte('"')
		}
		open = false
	}
	for first := true; len(s) > 0; first = false {
		if shown >= p.o.Elements {
			more = true
			break
		}
		e := x.next(s)
		run := 1
		for n := len(e.raw); p.o.Repeats > 0 && (run+1)*n <= len(s) && bytes.Equal(s[run*n:(run+1)*n], e.raw); {
			run++
		}
		if p.o.Repeats <= 0 || run <= p.o.Repeats && !e.cut {
			run = 1
		}
		s = s[run*len(e.raw):]
		shown += run
		if !first && (run > 1 || e.cut || !open) {
			closeQuote()
			p.b.WriteString(", ")
		}
		switch {
		case e.cut:
			text, _ := x.escaped(e, 0, false)
			p.b.WriteString("<incomplete sequence " + text + ">")
		case run > 1:
			text, _ := x.escaped(e, '\'', false)
			fmt.Fprintf(&p.b, "'%s' <repeats %d times>", text, run)
		default:
			if !open {
				p.b.WriteByte('"')
				open, hex = true, false
			}
			var text string
			text, hex = x.escaped(e, '"', hex)
			p.b.WriteString(text)
		}
	}
	closeQuote()
	if more {
		p.b.WriteString("...")
	}
}
