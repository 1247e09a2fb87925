package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// printable replaces what a terminal might take for a command. The names of
// processes, files and functions are by anybody.
func printable(s string) string { return strings.Map(printableRune, s) }

// printableLines does so for a text of several lines.
func printableLines(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return printableRune(r)
	}, s)
}

// printableSource does so for a line of source text, which may have tabs.
func printableSource(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return printableRune(r)
	}, s)
}

func printableRune(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// errWriter writes text until a first error, which it keeps.
type errWriter struct {
	w      io.Writer
	err    error
	column int
}

func (e *errWriter) printf(format string, args ...any) {
	s := printableLines(fmt.Sprintf(format, args...))
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		e.column = len(s) - i - 1
	} else {
		e.column += len(s)
	}
	if e.err == nil {
		_, e.err = io.WriteString(e.w, s)
	}
}

// text writes words from the current column on and ends the line; lines after
// the first are indented.
func (e *errWriter) text(indent int, s string) {
	for i, word := range strings.Fields(s) {
		switch {
		case e.column > indent && e.column+1+len(word) > doctorWidth:
			e.printf("\n%*s%s", indent, "", word)
		case i == 0:
			e.printf("%s", word)
		default:
			e.printf(" %s", word)
		}
	}
	e.printf("\n")
}
