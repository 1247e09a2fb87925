package profile

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// lineText is a name as a line of text can have it, with other characters for some:
// "?" for each that is not to be seen, and for each byte that is not UTF-8. The names
// of threads, files and functions are by anybody, and a terminal would take some for a
// command.
func lineText(name string, others *strings.Replacer) string {
	name = others.Replace(name)
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.IndexFunc(name, odd) < 0 {
		return name
	}
	var text strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) {
			r = '?'
		}
		text.WriteRune(r)
		i += n
	}
	return text.String()
}

// lineComm is lineText for the name at the beginning of a line, which would be a remark
// if it began with "#".
func lineComm(name string, others *strings.Replacer) string {
	name = lineText(name, others)
	if rest, ok := strings.CutPrefix(name, "#"); ok {
		return "?" + rest
	}
	return name
}
