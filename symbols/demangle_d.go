package symbols

import "strings"

// demangleD returns the qualified name in a mangled name of D, "std.array.Appender.put"
// of "_D3std5array__T8AppenderTAyaZQo3putMFAyaZv", without parameters and template
// arguments; ok is false when the name is not one of D throughout. The grammar is
// "Name Mangling" in the specification of D's ABI.
func demangleD(name string) (out string, ok bool) {
	if name == "_Dmain" {
		return "D main", true
	}
	base, suffix := name, ""
	if i := strings.IndexAny(name, ".@"); i > 0 {
		base, suffix = name[:i], name[i:]
	}
	p := dParser{s: base, at: len("_D"), steps: 16 * len(base)}
	if !strings.HasPrefix(base, "_D") || !p.whole(&p.out) || p.at != len(base) {
		return "", false
	}
	return string(p.out) + suffix, true
}

// dParser reads a mangled name. Its methods report whether there is what they are
// named after, and move past it.
type dParser struct {
	s     string
	at    int
	steps int // that may be made: alternatives are tried, and names stand for others
	depth int
	out   []byte
}

// next is the next byte; 0 at the end.
func (p *dParser) next() byte {
	if p.at < len(p.s) {
		return p.s[p.at]
	}
	return 0
}

func (p *dParser) take(c byte) bool {
	if p.next() != c {
		return false
	}
	p.at++
	return true
}

// takeAny takes one byte of set.
func (p *dParser) takeAny(set string) bool {
	if p.at >= len(p.s) || strings.IndexByte(set, p.s[p.at]) < 0 {
		return false
	}
	p.at++
	return true
}

func (p *dParser) takeWord(w string) bool {
	if !strings.HasPrefix(p.s[p.at:], w) {
		return false
	}
	p.at += len(w)
	return true
}

// enter bounds the work and the depth of the one who asks; leave undoes it.
func (p *dParser) enter() bool {
	p.steps--
	p.depth++
	return p.steps > 0 && p.depth < 256
}

func (p *dParser) leave() { p.depth-- }

// digits takes bytes of a set, one at least.
func (p *dParser) digits(set string) bool {
	from := p.at
	for p.takeAny(set) {
	}
	return p.at > from
}

const (
	decimal = "0123456789"
	hexes   = "0123456789ABCDEFabcdef"
)

func (p *dParser) number() (n int, ok bool) {
	for ; p.at < len(p.s) && p.s[p.at] >= '0' && p.s[p.at] <= '9' && n < 1<<24; p.at++ {
		n, ok = 10*n+int(p.s[p.at]-'0'), true
	}
	return n, ok
}

// backRef takes a Q and a number in base 26, whose last digit is a small letter,
// and returns where that points to.
func (p *dParser) backRef() (to int, ok bool) {
	from := p.at
	if !p.take('Q') {
		return 0, false
	}
	for n := 0; n < 1<<24; {
		switch c := p.next(); {
		case c >= 'A' && c <= 'Z':
			n = 26*n + int(c-'A')
		case c >= 'a' && c <= 'z':
			p.at++
			n = 26*n + int(c-'a')
			return from - n, n > 0 && n <= from
		default:
			return 0, false
		}
		p.at++
	}
	return 0, false
}

// namesFollow reports whether a part of a qualified name comes next.
func (p *dParser) namesFollow() bool {
	switch c := p.next(); {
	case c >= '0' && c <= '9':
		return true
	case c == '_':
		return p.template()
	case c == 'Q': // else it stands for a type
		q := *p
		to, ok := q.backRef()
		return ok && strings.IndexByte(decimal, p.s[to]) >= 0
	}
	return false
}

func (p *dParser) template() bool {
	return strings.HasPrefix(p.s[p.at:], "__T") || strings.HasPrefix(p.s[p.at:], "__U")
}

// whole takes a qualified name and its type, which data of the compiler's lacks; M
// is for methods.
func (p *dParser) whole(out *[]byte) bool {
	if !p.qualified(out) {
		return false
	}
	if p.take('Z') {
		return true
	}
	p.take('M')
	return p.typ()
}

// qualified takes a qualified name. Its parts are added to out, if that is not nil.
func (p *dParser) qualified(out *[]byte) bool {
	if !p.enter() {
		return false
	}
	defer p.leave()
	if !p.namesFollow() {
		return false
	}
	last := ""
	for first := true; p.namesFollow(); {
		id, instance, ok := p.symbol()
		p.steps -= 1 + len(id)/16
		if !ok || p.steps < 0 || out != nil && len(*out) > 1<<demangledLimit {
			return false
		}
		// What a template of the same name declares is meant by the template's name;
		// "__S1" and so on only number the scopes within a function.
		if id != "" && id != last && !(strings.HasPrefix(id, "__S") && strings.Trim(id[3:], decimal) == "") && out != nil {
			if !first {
				*out = append(*out, '.')
			}
			*out = append(*out, dIdentifier(id)...)
			first = false
		}
		if last = ""; instance {
			last = id
		}
		// A function around the rest of the name has its type here, without result.
		mark := *p
		if p.take('M') {
			p.modifiers()
		}
		if !p.function() || !p.namesFollow() {
			p.at = mark.at
		}
	}
	return true
}

// dIdentifier is how D's source has a name that the compiler gives.
func dIdentifier(id string) string {
	switch id {
	case "__ctor":
		return "this"
	case "__dtor":
		return "~this"
	case "__postblit":
		return "this(this)"
	}
	return id
}

// symbol takes a part of a qualified name; instance tells that it is of a template.
func (p *dParser) symbol() (id string, instance, ok bool) {
	if p.next() == 'Q' {
		to, ok := p.backRef()
		if !ok {
			return "", false, false
		}
		q := dParser{s: p.s, at: to}
		id, ok = q.identifier()
		return id, false, ok
	}
	if p.template() {
		id, ok = p.instance()
		return id, true, ok
	}
	id, ok = p.identifier()
	if strings.HasPrefix(id, "__T") || strings.HasPrefix(id, "__U") { // until 2017 an instance had its length before it
		q := dParser{s: p.s[:p.at], at: p.at - len(id), steps: p.steps, depth: p.depth}
		if name, is := q.instance(); is && q.at == p.at {
			p.steps = q.steps
			return name, true, true
		}
	}
	return id, false, ok
}

// identifier takes a length and so many bytes; 0 is that of nobody.
func (p *dParser) identifier() (id string, ok bool) {
	n, ok := p.number()
	if !ok || n > len(p.s)-p.at {
		return "", false
	}
	id = p.s[p.at : p.at+n]
	p.at += n
	for i := range len(id) {
		if c := id[i]; c != '_' && c < 0x80 && !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' && i > 0) {
			return "", false
		}
	}
	return id, true
}

// instance takes an instance of a template and returns the template's name.
func (p *dParser) instance() (name string, ok bool) {
	if !p.enter() {
		return "", false
	}
	defer p.leave()
	p.at += len("__T")
	if !p.namesFollow() || p.template() {
		return "", false
	}
	if name, _, ok = p.symbol(); !ok {
		return "", false
	}
	for !p.take('Z') {
		p.take('H')
		switch {
		case p.take('T'):
			ok = p.typ()
		case p.take('V'):
			ok = p.typ() && p.value()
		case p.take('S'):
			ok = p.argument()
		case p.take('X'):
			n, is := p.number()
			ok = is && n <= len(p.s)-p.at
			p.at += n
		default:
			ok = false
		}
		if !ok {
			return "", false
		}
	}
	return name, true
}

// argument takes a symbol given to a template: a qualified name or a mangled one,
// with its length before it until 2017.
func (p *dParser) argument() bool {
	if !p.enter() {
		return false
	}
	defer p.leave()
	if p.mangled() {
		return true
	}
	mark := p.at
	if n, ok := p.number(); ok && n <= len(p.s)-p.at {
		q := dParser{s: p.s[:p.at+n], at: p.at, steps: p.steps, depth: p.depth}
		if (q.mangled() || q.qualified(nil)) && q.at == len(q.s) {
			p.at, p.steps = q.at, q.steps
			return true
		}
		p.steps = q.steps
	}
	p.at = mark
	return p.qualified(nil)
}

// mangled takes a whole mangled name.
func (p *dParser) mangled() bool {
	mark := p.at
	if p.takeWord("_D") && p.whole(nil) {
		return true
	}
	p.at = mark
	return false
}

// modifiers takes shared, const, immutable and inout.
func (p *dParser) modifiers() {
	for {
		switch {
		case p.takeAny("xyO"):
		case p.takeWord("Ng"):
		default:
			return
		}
	}
}

// typ takes a type.
func (p *dParser) typ() bool {
	if !p.enter() {
		return false
	}
	defer p.leave()
	p.modifiers()
	switch {
	case p.takeAny("vghstiklmfdeopjqrcbauwn"):
		return true
	case p.take('z'):
		return p.takeAny("ik")
	case p.take('N'):
		return p.take('n') || p.take('h') && p.typ()
	case p.takeAny("AP"):
		return p.typ()
	case p.take('G'):
		_, ok := p.number()
		return ok && p.typ()
	case p.take('H'):
		if !p.typ() { // of the keys
			return false
		}
		return p.typ()
	case p.takeAny("ICSET"):
		return p.qualified(nil)
	case p.take('D'):
		p.modifiers()
		if p.next() == 'Q' {
			_, ok := p.backRef()
			return ok
		}
		return p.function() && p.typ()
	case p.take('B'):
		n, ok := p.number()
		for ; ok && n > 0; n-- {
			ok = p.typ()
		}
		return ok
	case p.next() == 'Q':
		_, ok := p.backRef()
		return ok
	}
	return p.function() && p.typ()
}

// function takes the type of a function without its result.
func (p *dParser) function() bool {
	if !p.enter() {
		return false
	}
	defer p.leave()
	if !p.takeAny("FUWRY") {
		return false
	}
	for p.next() == 'N' && p.at+1 < len(p.s) && strings.IndexByte("abcdefijlm", p.s[p.at+1]) >= 0 {
		p.at += 2
	}
	for !p.takeAny("XYZ") {
		for p.takeAny("IJKLM") || p.takeWord("Nk") {
		}
		if !p.typ() {
			return false
		}
	}
	return true
}

// value takes a value given to a template.
func (p *dParser) value() bool {
	if !p.enter() {
		return false
	}
	defer p.leave()
	switch {
	case p.take('n'):
		return true
	case p.takeAny("iN"):
		return p.digits(decimal)
	case p.take('e'):
		return p.float()
	case p.take('c'):
		return p.float() && p.take('c') && p.float()
	case p.takeAny("awd"):
		n, ok := p.number()
		if !ok || !p.take('_') || 2*n > len(p.s)-p.at {
			return false
		}
		p.at += 2 * n
		return true
	case p.takeAny("AS"): // an associative array has pairs, and is not followed
		n, ok := p.number()
		for ; ok && n > 0; n-- {
			ok = p.value()
		}
		return ok
	case p.take('f'):
		return p.mangled()
	}
	return p.digits(decimal)
}

// float takes a number in hexadecimal.
func (p *dParser) float() bool {
	for _, word := range []string{"NAN", "INF", "NINF"} {
		if p.takeWord(word) {
			return true
		}
	}
	p.take('N')
	if !p.digits(hexes) || !p.take('P') {
		return false
	}
	p.take('N')
	return p.digits(decimal)
}
