package profile

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// lineText is visible for a name as a line of text can have it, with other characters for
// some.
func lineText(name string, others *strings.Replacer) string { return visible(others.Replace(name)) }

// visible is a name with "?" for each character that is not to be seen, and for each byte
// that is not UTF-8. The names of threads, files and functions are by anybody: a terminal
// would take some for a command, and some reverse what follows.
func visible(name string) string {
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
