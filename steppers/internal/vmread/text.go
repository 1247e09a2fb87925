package vmread

import (
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// IsPrintable reports whether a name is one.
func IsPrintable(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r == '\ufffd' }) < 0
}

// ValidText replaces what is no UTF-8.
func ValidText(b []byte) string { return strings.ToValidUTF8(string(b), "\ufffd") }

// Latin1 makes a string of characters of 8 bits (ISO 8859-1).
func Latin1(chars []byte) string {
	var s strings.Builder
	for _, c := range chars {
		s.WriteRune(rune(c))
	}
	return s.String()
}

// UTF16LE makes a string of characters of 16 bits.
func UTF16LE(raw []byte) string {
	units := make([]uint16, len(raw)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return string(utf16.Decode(units))
}

// What is told of JavaScript, whatever executes it: its CodeFunction.Runtime, and what stands for
// the name of a function that has none.
const (
	JavaScript            = "javascript"
	JavaScriptWithoutName = "(anonymous)"
)
