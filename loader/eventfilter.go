package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// Filter says which occurrences of a tracepoint or probe are sampled: those of which all conditions hold, or all of
// an alternative. Make one with ParseFilter; the zero Filter is none.
type Filter struct {
	event      string // whose it is, by its name
	conditions []condition
}

// condition is what has to hold of a number.
type condition struct {
	numbers
	condition gen.SamplerCondition // but for where the number is
}

const maxConditions = int(gen.SamplerLimitsMAX_CONDITIONS)

var termText = lazy(`^\s*(\w+)\s*(==|!=|<=|>=|<|>|&)\s*(.*?)\s*$`)

// ParseFilter reads a filter for an event, in the kernel's notation for those of tracepoints, without its
// parentheses: NAME OPERATOR VALUE, more of these behind &&, and what will do as well behind ||. NAME is a field of
// the tracepoint, or what ParseWeight takes of a probe. The operators are ==, !=, <, <=, >, >= and &, which asks for
// any of some bits. VALUE is a number, which may be an error's, as -ENOENT; or, with == and !=, text: that of a field
// of characters, that where a system call's argument points to, or, in quotes, where the argument of a function or
// static probe does that is in a register. An empty text is the zero Filter.
func ParseFilter(e Event, text string) (Filter, error) {
	f := Filter{event: e.Name}
	if text == "" {
		return Filter{}, nil
	}
	if !e.hasNumbers() {
		return Filter{}, fmt.Errorf("event %s: only tracepoints and probes have a filter", e.Name)
	}
	var alternatives [][]term
	for _, alternative := range splitFilter(text, "||") {
		var terms []term
		for _, term := range splitFilter(alternative, "&&") {
			m := termText().FindStringSubmatch(term)
			if m == nil {
				return Filter{}, fmt.Errorf("filter %q: should be NAME OPERATOR VALUE, with ==, !=, <, <=, >, >= or &, and more of these behind && or ||", strings.TrimSpace(term))
			}
			t, err := parseTerm(e, m[1], m[2], m[3])
			if err != nil {
				return Filter{}, err
			}
			terms = append(terms, t)
		}
		alternatives = append(alternatives, terms)
	}
	if f.link(alternatives); len(f.conditions) > maxConditions {
		return Filter{}, fmt.Errorf("filter %q: more than %d numbers, or eight characters of text, to compare", text, maxConditions)
	}
	return f, nil
}

// Where a filter goes on instead of at a condition (bpf/config.h).
const filterPasses, filterFails = maxConditions, maxConditions + 1

// link makes f the alternatives, one after the other, each of terms that all have to hold.
func (f *Filter) link(alternatives [][]term) {
	for i, terms := range alternatives {
		otherwise := len(f.conditions)
		for _, t := range terms {
			otherwise += len(t.conditions)
		}
		if i == len(alternatives)-1 {
			otherwise = filterFails
		}
		for k, t := range terms {
			behind := len(f.conditions) + len(t.conditions)
			if k == len(terms)-1 {
				behind = filterPasses
			}
			for n, c := range t.conditions {
				next, isLast := len(f.conditions)+1, n == len(t.conditions)-1
				holds, not := next, otherwise
				switch {
				case t.any && isLast:
					holds = behind
				case t.any:
					holds, not = behind, next
				case isLast:
					holds = behind
				}
				c.condition.IfHolds, c.condition.IfNot = uint8(holds), uint8(not)
				f.conditions = append(f.conditions, c)
			}
		}
	}
}

// term is what has to hold of one number or text: all of the conditions or, with any, one of them.
type term struct {
	conditions []condition
	any        bool
}

// splitFilter splits a filter where a separator is that is not part of text in quotes, which begins behind an operator.
func splitFilter(text, separator string) (parts []string) {
	var quote byte
	begin, last := 0, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case (c == '"' || c == '\'') && strings.IndexByte("=<>&", last) >= 0 && last != 0:
			quote = c
		case strings.HasPrefix(text[i:], separator):
			parts = append(parts, text[begin:i])
			begin, i = i+len(separator), i+len(separator)-1
		}
		if c != ' ' && c != '\t' {
			last = c
		}
	}
	return append(parts, text[begin:])
}

// parseTerm reads a term.
func parseTerm(e Event, name, operator, value string) (term, error) {
	if at, isText, err := charactersOf(e, name, value); err != nil || isText {
		switch {
		case err != nil:
			return term{}, err
		case operator != "==" && operator != "!=":
			return term{}, fmt.Errorf("event %s: %s is text, which is compared by == and !=", e.Name, name)
		}
		return textTerm(e, name, at, operator == "!=", value)
	}
	n, err := findNumber(e, name)
	if err != nil {
		return term{}, err
	}
	number, err := parseValue(value)
	if err != nil {
		return term{}, fmt.Errorf("event %s: %s %s %s: %w", e.Name, name, operator, value, err)
	}
	isOrder := operator[0] == '<' || operator[0] == '>'
	if number, err = n.operands[0].fit(number, isOrder); err != nil {
		return term{}, fmt.Errorf("event %s: %s %s %s: %w", e.Name, name, operator, value, err)
	}
	c := gen.SamplerCondition{Mask: ^uint64(0), Value: number}
	switch operator {
	case "<", ">=":
		c.Comparison = uint8(gen.SamplerComparisonKindCOMPARE_LESS)
	case "<=", ">":
		c.Comparison = uint8(gen.SamplerComparisonKindCOMPARE_AT_MOST)
	case "&":
		c.Mask, c.Value = number, 0
	}
	c.IsNegated = operator == "!=" || operator == ">=" || operator == ">" || operator == "&"
	return term{conditions: []condition{{n, c}}}, nil
}

// fit returns a number as the operand has it, which is -1 where all bits of one with a sign are set. isOrder is
// set where it matters which of two is greater.
func (o *operand) fit(v uint64, isOrder bool) (uint64, error) {
	bits := 8 * o.size
	if bits == 0 {
		bits = 64 // constant
	}
	low := v << (64 - bits) >> (64 - bits)
	extended := uint64(int64(v<<(64-bits)) >> (64 - bits))
	switch {
	case v != low && v != extended:
		return 0, fmt.Errorf("it has %d bits alone", bits)
	case o.signed:
		return extended, nil
	case isOrder && int64(v) < 0 && bits < 64:
		return 0, errors.New("it is never negative")
	}
	return low, nil
}

// parseValue reads a whole number, or that of an error, as the 64 bits that it is.
func parseValue(s string) (uint64, error) {
	n, err := parseNumber(s)
	if err == nil {
		return n, nil
	}
	name, isNegative := strings.CutPrefix(s, "-")
	for errno := unix.Errno(1); errno < 256 && name != ""; errno++ {
		if unix.ErrnoName(errno) != name {
			continue
		}
		if isNegative {
			return -uint64(errno), nil
		}
		return uint64(errno), nil
	}
	return 0, err
}

// characterLine is what the format of a tracepoint says of a field of so many characters, and pointerLine of an
// argument of a system call that points to some.
var (
	characterLine = lazy(`(?m)^\s*field:char (\w+)\[\d+\];\s*offset:(\d+);\s*size:(\d+);`)
	pointerLine   = lazy(`(?m)^\s*field:(?:const )?char (?:__user )?\* ?(\w+);\s*offset:(\d+);\s*size:8;`)
)

// characters are where a text is: in the context of a program, which is filled up with zero bytes; or in user memory.
type characters struct {
	numbers     // the first characters
	size    int // in the context, 0: not there
}

// charactersOf looks for text that is compared with value. ok is false where it is a number that is.
func charactersOf(e Event, name, value string) (at characters, ok bool, err error) {
	if !e.IsTracepoint() {
		if len(value) < 2 || value[0] != '"' && value[0] != '\'' || value[len(value)-1] != value[0] {
			return at, false, nil
		}
		n, err := findNumber(e, name)
		if err == nil {
			at.numbers, err = pointedToBy(e, name, n)
		}
		return at, true, err
	}
	format, err := formatOf(e)
	if err != nil {
		return at, false, err
	}
	for _, m := range characterLine().FindAllStringSubmatch(format, -1) {
		if m[1] == name {
			offset, _ := strconv.Atoi(m[2])
			at.numbers = everywhere(operand{offset: offset})
			at.size, _ = strconv.Atoi(m[3])
			return at, true, nil
		}
	}
	if !strings.HasPrefix(e.Name, "syscalls:sys_enter_") {
		return at, false, nil
	}
	for _, m := range pointerLine().FindAllStringSubmatch(format, -1) {
		if m[1] == name {
			offset, _ := strconv.Atoi(m[2])
			at.numbers = everywhere(operand{inMemory: true, base: register{offset: offset, bits: 64}})
			return at, true, nil
		}
	}
	return at, false, nil
}

// pointedToBy is what is in user memory where a number points to.
func pointedToBy(e Event, name string, n numbers) (numbers, error) {
	if strings.HasPrefix(e.Name, "kprobe:") || strings.HasPrefix(e.Name, "kretprobe:") {
		return n, fmt.Errorf("event %s: text is compared of system calls, of functions of programs and of static probes alone", e.Name)
	}
	there := numbers{at: n.at}
	for _, o := range n.operands {
		if o.inMemory || o.size == 0 || o.size < e.arch.AddressWidth {
			return n, fmt.Errorf("event %s: %s is no address in a register, so that no text can be compared", e.Name, name)
		}
		there.operands = append(there.operands, operand{
			inMemory: true, base: register{offset: o.offset, bits: 8 * o.size}, address32: e.arch.AddressWidth == 4,
		})
	}
	return there, nil
}

// textTerm compares a text up to the zero byte behind it, in pieces: negated, one of them has to be another.
func textTerm(e Event, name string, at characters, negated bool, text string) (term, error) {
	if n := len(text); n >= 2 && text[0] == text[n-1] && (text[0] == '"' || text[0] == '\'') {
		text = text[1 : n-1]
	}
	if at.size > 0 && len(text) >= at.size {
		return term{}, fmt.Errorf("event %s: %s has %d characters at most", e.Name, name, at.size-1)
	}
	if strings.Contains(text, "\x00") {
		return term{}, fmt.Errorf("event %s: %s: text has no zero byte", e.Name, name)
	}
	var all []condition
	for off, b := 0, []byte(text+"\x00"); off < len(b); off += 8 {
		var value, mask [8]byte
		n := copy(value[:], b[off:])
		for i := range n {
			mask[i] = 0xff
		}
		piece := numbers{operands: slices.Clone(at.operands), at: at.at}
		for i := range piece.operands {
			o := &piece.operands[i]
			o.size = n
			if o.inMemory {
				o.displacement += uint64(off)
			} else {
				o.offset += off
			}
		}
		all = append(all, condition{piece, gen.SamplerCondition{
			Mask: binary.NativeEndian.Uint64(mask[:]), Value: binary.NativeEndian.Uint64(value[:]), IsNegated: negated,
		}})
	}
	return term{all, negated}, nil
}
