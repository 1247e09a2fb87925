package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// Filter says which occurrences of a tracepoint or probe are sampled: those of which all conditions hold. Make
// one with ParseFilter; the zero Filter is none.
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

var filterTerm = lazy(`^\s*(\w+)\s*(==|!=|<=|>=|<|>|&)\s*(.*?)\s*$`)

// ParseFilter reads a filter for an event, in the kernel's notation for those of tracepoints: NAME OPERATOR
// VALUE, and more of these behind &&. NAME is a field of the tracepoint, or what ParseWeight takes of a
// uprobe. The operators are ==, !=, <, <=, >, >= and &, which asks for any of some bits. VALUE is a number, which
// may be an error's, as -ENOENT; or, with == and !=, text that a field of characters has. An
// empty text is the zero Filter.
func ParseFilter(e Event, text string) (Filter, error) {
	f := Filter{event: e.Name}
	if text == "" {
		return Filter{}, nil
	}
	if !e.hasNumbers() {
		return Filter{}, fmt.Errorf("event %s: only tracepoints and probes have a filter", e.Name)
	}
	for _, term := range strings.Split(text, "&&") {
		m := filterTerm().FindStringSubmatch(term)
		if m == nil || strings.Contains(term, "||") {
			return Filter{}, fmt.Errorf("filter %q: should be NAME OPERATOR VALUE, with ==, !=, <, <=, >, >= or &, and more of these only behind &&", strings.TrimSpace(term))
		}
		if err := f.add(e, m[1], m[2], m[3]); err != nil {
			return Filter{}, err
		}
	}
	if len(f.conditions) > maxConditions {
		return Filter{}, fmt.Errorf("filter %q: more than %d numbers to compare", text, maxConditions)
	}
	return f, nil
}

// add adds the conditions of a term.
func (f *Filter) add(e Event, name, operator, value string) error {
	if e.IsTracepoint() {
		at, isText, err := charactersOf(e, name)
		switch {
		case err != nil:
			return err
		case isText && operator != "==" && operator != "!=":
			return fmt.Errorf("event %s: %s is text, which is compared by == and !=", e.Name, name)
		case isText:
			return f.addText(e, name, at, operator == "!=", value)
		}
	}
	n, err := findNumber(e, name)
	if err != nil {
		return err
	}
	number, err := parseValue(value)
	if err != nil {
		return fmt.Errorf("event %s: %s %s %s: %w", e.Name, name, operator, value, err)
	}
	isOrder := operator[0] == '<' || operator[0] == '>'
	if number, err = n.operands[0].fit(number, isOrder); err != nil {
		return fmt.Errorf("event %s: %s %s %s: %w", e.Name, name, operator, value, err)
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
	f.conditions = append(f.conditions, condition{n, c})
	return nil
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

// characterLine is what the format of a tracepoint says of a field of so many characters.
var characterLine = lazy(`(?m)^\s*field:char (\w+)\[\d+\];\s*offset:(\d+);\s*size:(\d+);`)

// characters are where a text is in the context of a program, which is filled up with zero bytes.
type characters struct{ offset, size int }

// charactersOf looks for a field of text. ok is false where the tracepoint has none of the name.
func charactersOf(e Event, name string) (at characters, ok bool, err error) {
	format, err := formatOf(e)
	if err != nil {
		return at, false, err
	}
	for _, m := range characterLine().FindAllStringSubmatch(format, -1) {
		if m[1] == name {
			at.offset, _ = strconv.Atoi(m[2])
			at.size, _ = strconv.Atoi(m[3])
			return at, true, nil
		}
	}
	return at, false, nil
}

// addText adds conditions that hold of a text up to the zero byte behind it, or do not.
func (f *Filter) addText(e Event, name string, at characters, negated bool, text string) error {
	if n := len(text); n >= 2 && text[0] == text[n-1] && (text[0] == '"' || text[0] == '\'') {
		text = text[1 : n-1]
	}
	if len(text) >= at.size || strings.Contains(text, "\x00") {
		return fmt.Errorf("event %s: %s has %d characters at most", e.Name, name, at.size-1)
	}
	if negated && len(text) >= 8 { // it takes several, one of which has to fail
		return fmt.Errorf("event %s: %s: text of more than 7 characters is compared by == alone", e.Name, name)
	}
	for b := []byte(text + "\x00"); len(b) > 0; {
		var value, mask [8]byte
		n := copy(value[:], b)
		b = b[n:]
		for i := range n {
			mask[i] = 0xff
		}
		f.conditions = append(f.conditions, condition{everywhere(operand{offset: at.offset, size: n}), gen.SamplerCondition{
			Mask: binary.NativeEndian.Uint64(mask[:]), Value: binary.NativeEndian.Uint64(value[:]), IsNegated: negated,
		}})
		at.offset += n
	}
	return nil
}
