package symbols

import (
	"strconv"
	"strings"
)

// demangleSwift returns the qualified name in a mangled name of Swift, "app.Counter.add" of
// "$s3app7CounterC3addyS2iF", without parameters, labels, generic arguments and what
// extensions are of. What the compiler makes of a function (specialized, merged, a part
// that goes on after an await) has its name, but thunks and accessors say what they are,
// in the words of swift-demangle. ok is false when the name is not one of Swift
// throughout. The grammar is docs/ABI/Mangling.rst of Swift: a name is a program for a
// stack, whose operators take what they are about from there.
func demangleSwift(name string) (out string, ok bool) {
	base := strings.TrimPrefix(name, "_")
	if !strings.HasPrefix(base, "$s") && !strings.HasPrefix(base, "$S") && !strings.HasPrefix(base, "$e") {
		return "", false
	}
	base, suffix := base[len("$s"):], ""
	if i := strings.IndexAny(base, ".@"); i >= 0 {
		base, suffix = base[:i], base[i:]
	}
	p := swiftParser{s: base}
	for p.at < len(p.s) && !p.bad && len(p.stack) < maxSwiftNodes && len(p.known) < maxSwiftNodes {
		p.operator(p.char())
	}
	if p.bad || p.at < len(p.s) || len(p.stack) == 0 || len(p.stack) > 1 && !p.specialized {
		return "", false
	}
	n := p.stack[0] // specializations leave behind it what they are for
	switch {
	case n.name == "":
	case n.kind == swiftEntity, n.kind == swiftGlobal, n.kind == swiftType && n.nominal, n.kind == swiftIdentifier && p.made:
		return p.prefix + n.name + suffix, true
	}
	return "", false
}

const (
	maxSwiftNodes   = 1 << 12 // on the stack, and to stand for others
	maxSwiftWords   = 26
	maxSwiftLetters = 26 // substitutions that have one
)

// swiftKind is what a node of the stack is.
type swiftKind uint8

const (
	swiftIdentifier swiftKind = iota // a module, label or name
	swiftName                        // of a private, local or related declaration
	swiftOperator                    // a name of signs
	swiftModule
	swiftType
	swiftEntity // what else declarations may be in
	swiftGlobal // what is in no source
	swiftEmpty  // marks
	swiftFirst
	swiftVariadic
	swiftAnnotation  // of the type of a function
	swiftSignature   // of generic parameters,
	swiftRequirement // and a part of it
	swiftConformanceRef
	swiftConformance
	swiftRetroactive
)

// swiftNode is a node of the stack.
type swiftNode struct {
	kind     swiftKind
	nominal  bool // a type that is declared,
	class    bool // as a class,
	protocol bool // or as a protocol
	isFunc   bool // a type of functions with so many parameters
	isTuple  bool // a type of so many elements
	params   int
	name     string // qualified; types that are not declared have none
}

// swiftParser runs a mangled name.
type swiftParser struct {
	s           string
	at          int
	bad         bool
	made        bool // from a function that is named before
	specialized bool // with arguments that are left on the stack
	stack       []swiftNode
	known       []swiftNode // what substitutions stand for
	words       []string    // the same of parts of identifiers
	prefix      string      // what is made of the function
}

func (p *swiftParser) fail() { p.bad = true }

// char takes the next character; 0 at the end.
func (p *swiftParser) char() byte {
	if p.at >= len(p.s) {
		p.at++
		return 0
	}
	p.at++
	return p.s[p.at-1]
}

func (p *swiftParser) peek() byte {
	if p.at >= len(p.s) {
		return 0
	}
	return p.s[p.at]
}

func (p *swiftParser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.at++
	return true
}

// takeAny takes a character of a set.
func (p *swiftParser) takeAny(set string) bool {
	if c := p.peek(); c == 0 || strings.IndexByte(set, c) < 0 {
		return false
	}
	p.at++
	return true
}

func (p *swiftParser) push(n swiftNode) {
	if len(n.name) > 1<<demangledLimit { // names may stand for names
		p.fail()
	}
	p.stack = append(p.stack, n)
}

// add pushes a node that substitutions may stand for.
func (p *swiftParser) add(n swiftNode) {
	p.known = append(p.known, n)
	p.push(n)
}

// pop takes the top of the stack, if it is of one of these kinds.
func (p *swiftParser) pop(kinds ...swiftKind) (n swiftNode, ok bool) {
	if len(p.stack) == 0 {
		return n, false
	}
	n = p.stack[len(p.stack)-1]
	for _, k := range kinds {
		if n.kind == k {
			p.stack = p.stack[:len(p.stack)-1]
			return n, true
		}
	}
	return swiftNode{}, false
}

// need is pop of what has to be there.
func (p *swiftParser) need(kinds ...swiftKind) swiftNode {
	n, ok := p.pop(kinds...)
	if !ok {
		p.fail()
	}
	return n
}

// has is pop of a mark that may be there.
func (p *swiftParser) has(k swiftKind) bool {
	_, ok := p.pop(k)
	return ok
}

// list takes what is between a mark for the first and the top, or a mark for none.
func (p *swiftParser) list(element func()) (n int) {
	if p.has(swiftEmpty) {
		return 0
	}
	for first := false; !first && !p.bad; n++ {
		first = p.has(swiftFirst)
		element()
	}
	return n
}

func (p *swiftParser) needType() { p.need(swiftType) }

// natural reads a number; 0 is none.
func (p *swiftParser) natural() (n int) {
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		if n = 10*n + int(c-'0'); n > maxMangled {
			p.fail()
			return 0
		}
		p.at++
	}
	return n
}

func (p *swiftParser) index() int {
	if p.take('_') {
		return 0
	}
	from := p.at
	n := p.natural()
	if p.at == from || !p.take('_') {
		p.fail()
	}
	return n + 1
}

// paramIndex reads which generic parameter is meant.
func (p *swiftParser) paramIndex() {
	switch {
	case p.take('d'):
		p.index()
		p.index()
	case p.takeAny("zs"):
	default:
		p.index()
	}
}

// context takes what a declaration is in, and returns its name.
func (p *swiftParser) context() string {
	n := p.need(swiftIdentifier, swiftModule, swiftType, swiftEntity)
	if n.kind == swiftType && !n.nominal {
		p.fail()
	}
	return n.name
}

func (p *swiftParser) declName() string {
	return p.need(swiftIdentifier, swiftName, swiftOperator).name
}

func (p *swiftParser) module() { p.need(swiftIdentifier, swiftModule) }

// member is the name of what is declared in a context.
func member(context, name string) string { return context + "." + name }

// nominal makes a declared type.
func (p *swiftParser) nominal(operator byte) {
	name := p.declName()
	p.add(swiftNode{kind: swiftType, nominal: true, class: operator == 'C', protocol: operator == 'P', name: member(p.context(), name)})
}

// protocol takes a protocol, declared or not, and returns its name.
func (p *swiftParser) protocol() string {
	if n, ok := p.pop(swiftType); ok {
		return n.name
	}
	name := p.declName()
	return member(p.context(), name)
}

// assocName takes the name of an associated type, with its protocol.
func (p *swiftParser) assocName() {
	p.pop(swiftType)
	p.need(swiftIdentifier)
}

func (p *swiftParser) assocPath() {
	for first := false; !first && !p.bad; {
		first = p.has(swiftFirst)
		p.assocName()
	}
}

// functionType takes what the type of a function consists of.
func (p *swiftParser) functionType() swiftNode {
	for p.has(swiftAnnotation) {
	}
	n := swiftNode{kind: swiftType, isFunc: true, params: 1}
	if p.has(swiftEmpty) {
		n.params = 0
	} else if t := p.need(swiftType); t.isTuple {
		n.params = t.params
	}
	if !p.has(swiftEmpty) {
		p.needType()
	}
	return n
}

// labels takes the labels of the parameters of a type.
func (p *swiftParser) labels(t swiftNode) {
	if p.has(swiftEmpty) || !t.isFunc {
		return
	}
	for range t.params {
		p.need(swiftIdentifier, swiftFirst)
	}
}

// entity makes an entity in the context on the stack.
func (p *swiftParser) entity(name string) {
	p.push(swiftNode{kind: swiftEntity, name: member(p.context(), name)})
}

// about makes an entity that is named by what it is of.
func (p *swiftParser) about(what string) {
	p.push(swiftNode{kind: swiftEntity, name: what + p.context()})
}

// operator runs the operator that begins with c.
func (p *swiftParser) operator(c byte) {
	switch c {
	case 'A':
		p.substitutions()
	case 'B':
		p.builtin()
	case 'C', 'O', 'P', 'V', 'a':
		p.nominal(c)
	case 'E': // an extension
		p.has(swiftSignature)
		p.module()
		if n := p.need(swiftType); n.nominal {
			p.push(swiftNode{kind: swiftEntity, name: n.name})
		} else {
			p.fail()
		}
	case 'F':
		p.has(swiftSignature)
		p.labels(p.functionType())
		name := p.declName()
		p.entity(name)
	case 'G':
		p.bound()
	case 'H':
		p.conformance()
	case 'I':
		p.implFunction()
	case 'K':
		p.push(swiftNode{kind: swiftAnnotation})
	case 'L':
		p.localName()
	case 'M':
		p.metadata()
	case 'Q':
		p.archetype()
	case 'R':
		p.requirement()
	case 'S':
		p.standard()
	case 'T':
		p.thunk()
	case 'W':
		p.witness()
	case 'X':
		p.specialType()
	case 'Y':
		p.annotation()
	case 'Z': // static
		if len(p.stack) == 0 || p.stack[len(p.stack)-1].kind != swiftEntity {
			p.fail()
		}
	case 'c':
		p.push(p.functionType())
	case 'd':
		p.push(swiftNode{kind: swiftVariadic})
	case 'f':
		p.functionEntity()
	case 'g':
		p.index()
		p.need(swiftConformance)
		p.push(swiftNode{kind: swiftRetroactive})
	case 'h', 'n', 'z': // shared, owned and inout parameters
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'i':
		p.has(swiftName)
		p.labels(p.need(swiftType))
		p.accessor("subscript")
	case 'l', 'r':
		for c == 'r' && !p.take('l') && !p.bad {
			if !p.take('z') {
				p.index()
			}
		}
		for p.has(swiftRequirement) {
		}
		p.push(swiftNode{kind: swiftSignature})
	case 'm':
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'o':
		p.operatorName()
	case 'p':
		n := swiftNode{kind: swiftType}
		if p.list(func() { p.protocol() }) == 0 {
			n.name = "Any"
		}
		p.push(n)
	case 'q':
		p.paramIndex()
		p.push(swiftNode{kind: swiftType})
	case 's':
		p.push(swiftNode{kind: swiftModule, name: "Swift"})
	case 't':
		n := p.list(func() {
			p.has(swiftVariadic)
			p.has(swiftIdentifier)
			p.needType()
		})
		p.push(swiftNode{kind: swiftType, isTuple: true, params: n})
	case 'u':
		p.need(swiftSignature)
		p.push(p.need(swiftType))
	case 'v':
		p.labels(p.need(swiftType))
		name := p.declName()
		p.accessor(name)
	case 'w':
		p.valueWitness()
	case 'x':
		p.push(swiftNode{kind: swiftType})
	case 'y':
		p.push(swiftNode{kind: swiftEmpty})
	case '_':
		p.push(swiftNode{kind: swiftFirst})
	case '$':
		p.take('n')
		p.index()
		p.push(swiftNode{kind: swiftType})
	default:
		p.at--
		p.identifier()
	}
}

// substitutions pushes what there was before.
func (p *swiftParser) substitutions() {
	for !p.bad {
		from := p.at
		n := p.natural()
		counted := p.at > from
		if p.take('_') { // one beyond those that have letters
			if counted {
				n++
			}
			p.again(maxSwiftLetters+n, 1)
			return
		}
		if !counted {
			n = 1
		}
		c := p.char()
		p.again(int(c|0x20)-'a', n)
		if c < 'a' {
			return
		}
	}
}

// again pushes one of those, so many times.
func (p *swiftParser) again(i, times int) {
	if i < 0 || i >= len(p.known) || times == 0 || times > maxSwiftNodes {
		p.fail()
		return
	}
	for range times {
		p.push(p.known[i])
	}
}

// identifier reads an identifier, of which parts may be words of others.
func (p *swiftParser) identifier() {
	inWords, coded := false, false
	switch {
	case p.peek() < '0' || p.peek() > '9':
		p.fail()
		return
	case p.take('0'):
		coded = p.take('0')
		inWords = !coded
	}
	var b strings.Builder
	for more := true; more && !p.bad; more = inWords {
		for c := p.peek(); inWords && (c|0x20) >= 'a' && (c|0x20) <= 'z'; c = p.peek() {
			p.at++
			i := int(c|0x20) - 'a'
			if i >= len(p.words) {
				p.fail()
				return
			}
			inWords = c >= 'a'
			b.WriteString(p.words[i])
		}
		if b.Len() > 1<<demangledLimit {
			p.fail()
			return
		}
		if b.Len() > 0 && p.take('0') {
			break
		}
		n := p.natural()
		if coded {
			p.take('_')
		}
		if n == 0 || n > len(p.s)-p.at {
			p.fail()
			return
		}
		part := p.s[p.at : p.at+n]
		p.at += n
		b.WriteString(part)
		if !coded {
			p.addWords(part)
		}
	}
	p.add(swiftNode{kind: swiftIdentifier, name: b.String()})
}

// addWords keeps the words of an identifier.
func (p *swiftParser) addWords(s string) {
	isUpper := func(c byte) bool { return c >= 'A' && c <= 'Z' }
	start := -1
	for i := 0; i <= len(s); i++ {
		var c, before byte
		if i < len(s) {
			c = s[i]
		}
		if i > 0 {
			before = s[i-1]
		}
		if start >= 0 && (c == '_' || c == 0 || !isUpper(before) && isUpper(c)) {
			if i-start >= 2 && len(p.words) < maxSwiftWords {
				p.words = append(p.words, s[start:i])
			}
			start = -1
		}
		if start < 0 && c != '_' && c != 0 && (c < '0' || c > '9') {
			start = i
		}
	}
}

func (p *swiftParser) operatorName() {
	const signs = "& @/= >    <*!|+?%-~   ^ ."
	name := []byte(p.need(swiftIdentifier).name)
	for i, c := range name {
		if c >= 'a' && c <= 'z' {
			name[i] = signs[c-'a']
		}
	}
	if !p.takeAny("pPi") {
		p.fail()
	}
	p.push(swiftNode{kind: swiftOperator, name: string(name)})
}

func (p *swiftParser) localName() {
	switch {
	case p.take('L'):
		p.need(swiftIdentifier) // the file's
		p.push(swiftNode{kind: swiftName, name: p.declName()})
	case p.take('l'):
		p.need(swiftIdentifier)
		p.push(swiftNode{kind: swiftName})
	default:
		if c := p.peek(); !p.take('_') && (c|0x20) >= 'a' && (c|0x20) <= 'j' {
			p.at++
		} else if c != '_' {
			p.index()
		}
		p.push(swiftNode{kind: swiftName, name: p.declName()})
	}
}

func (p *swiftParser) builtin() {
	switch {
	case p.takeAny("bBcDedIjPOoptwATMW"):
	case p.takeAny("fi"):
		p.index()
	case p.take('v'):
		p.index()
		p.needType()
	case p.take('V'):
		p.needType()
		p.needType()
	default:
		p.fail()
	}
	p.push(swiftNode{kind: swiftType, nominal: true, name: "Builtin"})
}

// Types of the standard library that have a letter, and those of its concurrency.
var (
	swiftStandard = map[byte]string{
		'A': "AutoreleasingUnsafeMutablePointer", 'a': "Array", 'B': "BinaryFloatingPoint", 'b': "Bool", 'D': "Dictionary", 'd': "Double",
		'E': "Encodable", 'e': "Decodable", 'F': "FloatingPoint", 'f': "Float", 'G': "RandomNumberGenerator", 'H': "Hashable", 'h': "Set",
		'I': "DefaultIndices", 'i': "Int", 'J': "Character", 'j': "Numeric", 'K': "BidirectionalCollection", 'k': "RandomAccessCollection",
		'L': "Comparable", 'l': "Collection", 'M': "MutableCollection", 'm': "RangeReplaceableCollection", 'N': "ClosedRange", 'n': "Range",
		'O': "ObjectIdentifier", 'P': "UnsafePointer", 'p': "UnsafeMutablePointer", 'Q': "Equatable", 'q': "Optional", 'R': "UnsafeBufferPointer",
		'r': "UnsafeMutableBufferPointer", 'S': "String", 's': "Substring", 'T': "Sequence", 't': "IteratorProtocol", 'U': "UnsignedInteger",
		'u': "UInt", 'V': "UnsafeRawPointer", 'v': "UnsafeMutableRawPointer", 'W': "UnsafeRawBufferPointer", 'w': "UnsafeMutableRawBufferPointer",
		'X': "RangeExpression", 'x': "Strideable", 'Y': "RawRepresentable", 'y': "StringProtocol", 'Z': "SignedInteger", 'z': "BinaryInteger",
	}
	swiftStandard2 = map[byte]string{
		'A': "Actor", 'C': "CheckedContinuation", 'c': "UnsafeContinuation", 'E': "CancellationError", 'e': "UnownedSerialExecutor",
		'F': "Executor", 'f': "SerialExecutor", 'G': "TaskGroup", 'g': "ThrowingTaskGroup", 'h': "TaskExecutor", 'I': "AsyncIteratorProtocol",
		'i': "AsyncSequence", 'J': "UnownedJob", 'M': "MainActor", 'P': "TaskPriority", 'S': "AsyncStream", 's': "AsyncThrowingStream",
		'T': "Task", 't': "UnsafeCurrentTask",
	}
)

// swiftProtocols are the letters of those that are protocols.
const swiftProtocols = "BEeFGHjKkLlMmQTtUXxYyZz"

func (p *swiftParser) standard() {
	switch {
	case p.take('o'):
		p.push(swiftNode{kind: swiftModule, name: "__C"})
		return
	case p.take('C'):
		p.push(swiftNode{kind: swiftModule, name: "__C_Synthesized"})
		return
	case p.take('g'):
		p.needType()
		p.add(swiftNode{kind: swiftType, nominal: true, name: "Swift.Optional"})
		return
	}
	times := max(1, p.natural())
	kinds, protocols := swiftStandard, swiftProtocols
	if p.take('c') {
		kinds, protocols = swiftStandard2, "AFfhIi"
	}
	c := p.char()
	name, ok := kinds[c]
	if !ok || times > maxSwiftNodes {
		p.fail()
		return
	}
	for range times {
		p.push(swiftNode{kind: swiftType, nominal: true, protocol: strings.IndexByte(protocols, c) >= 0, name: "Swift." + name})
	}
}

// arguments takes generic arguments, and their conformances.
func (p *swiftParser) arguments() {
	for p.has(swiftRetroactive) {
	}
	for !p.bad {
		for p.has(swiftType) {
		}
		if p.has(swiftEmpty) {
			return
		}
		p.need(swiftFirst)
	}
}

func (p *swiftParser) bound() {
	p.arguments()
	n := p.need(swiftType)
	if !n.nominal {
		p.fail()
	}
	p.add(swiftNode{kind: swiftType, nominal: true, class: n.class, name: n.name})
}

func (p *swiftParser) archetype() {
	switch c := p.char(); c {
	case 'a':
		p.need(swiftIdentifier)
		p.needType()
		p.add(swiftNode{kind: swiftType})
	case 'x':
		p.assocName()
		p.needType()
		p.add(swiftNode{kind: swiftType})
	case 'X':
		p.assocPath()
		p.needType()
		p.add(swiftNode{kind: swiftType})
	case 'y', 'z':
		if c == 'y' {
			p.paramIndex()
		}
		p.assocName()
		p.add(swiftNode{kind: swiftType})
	case 'Y', 'Z':
		if c == 'Y' {
			p.paramIndex()
		}
		p.assocPath()
		p.add(swiftNode{kind: swiftType})
	case 'O': // an opaque type of a declaration
		p.push(swiftNode{kind: swiftEntity, name: "opaque type of " + p.context()})
	case 'o':
		p.index()
		p.arguments()
		p.need(swiftEntity)
		p.add(swiftNode{kind: swiftType})
	case 'r', 'u':
		p.push(swiftNode{kind: swiftType})
	case 'R', 'U':
		p.index()
		p.push(swiftNode{kind: swiftType})
	case 'e':
		p.index()
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'p':
		p.needType()
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'P', 'S':
		if c == 'S' && !p.takeAny("id") {
			p.fail()
		}
		p.list(p.needType)
		p.push(swiftNode{kind: swiftType})
	default:
		p.fail()
	}
}

func (p *swiftParser) requirement() {
	layout, protocol, plain := false, false, true // what is required; plain: a type
	of := p.paramIndex                            // and of what
	associated := func(name func()) func() {
		return func() { p.paramIndex(); name(); p.known = append(p.known, swiftNode{kind: swiftType}) }
	}
	simple, path := associated(p.assocName), associated(p.assocPath)
	switch c := p.char(); c {
	case 'v':
		p.paramIndex()
		p.push(swiftNode{kind: swiftRequirement})
		return
	case 'V', 'b', 's', 'h':
	case 'c', 't':
		of = simple
	case 'C', 'T':
		of = path
	case 'B', 'S':
		of = p.needType
	case 'l':
		layout, plain = true, false
	case 'm':
		of, layout, plain = simple, true, false
	case 'M':
		of, layout, plain = path, true, false
	case 'L':
		of, layout, plain = p.needType, true, false
	case 'p':
		of, protocol = simple, true
	case 'P':
		of, protocol = path, true
	case 'Q':
		of, protocol = p.needType, true
	case 'i', 'I', 'j', 'J':
		p.index()
		plain = false
		of = map[byte]func(){'i': p.paramIndex, 'I': p.needType, 'j': simple, 'J': path}[c]
	default:
		p.at--
		protocol = true
	}
	of()
	switch {
	case protocol:
		p.protocol()
	case plain:
		p.needType()
	case layout && p.takeAny("NRTCDUBS"):
	case layout && p.takeAny("EM"):
		p.index()
		p.index()
	case layout && p.takeAny("em"):
		p.index()
	case layout:
		p.fail()
	}
	p.push(swiftNode{kind: swiftRequirement})
}

func (p *swiftParser) specialType() {
	switch c := p.char(); c {
	case 'E', 'A', 'K', 'f', 'U', 'L', 'B', 'C', 'O':
		p.push(p.functionType())
	case 'o', 'u', 'w', 'b', 'D', 'p':
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'M', 'm':
		if !p.takeAny("tTo") {
			p.fail()
		}
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'x':
		p.list(p.needType)
		p.push(swiftNode{kind: swiftType})
	case 'X':
		p.need(swiftSignature)
		p.list(p.needType)
		p.list(p.needType)
		p.push(swiftNode{kind: swiftType})
	case 'c', 'l':
		if c == 'c' {
			p.needType()
		}
		p.list(func() { p.protocol() })
		p.push(swiftNode{kind: swiftType})
	case 'P':
		p.list(func() { p.need(swiftRequirement) })
		p.needType()
		p.push(swiftNode{kind: swiftType})
	case 'e':
		p.push(swiftNode{kind: swiftType})
	case 'Y':
		p.nominal('Y')
	default:
		p.fail()
	}
}

func (p *swiftParser) annotation() {
	switch c := p.char(); c {
	case 'a', 'b', 'A', 'C', 'T':
		p.push(swiftNode{kind: swiftAnnotation})
	case 'j':
		p.char()
		p.push(swiftNode{kind: swiftAnnotation})
	case 'c', 'K':
		p.needType()
		p.push(swiftNode{kind: swiftAnnotation})
	case 'k', 't', 'i', 'u', 'g':
		p.needType()
		p.push(swiftNode{kind: swiftType})
	default:
		p.fail()
	}
}

// implFunction reads the type of a function as it is called.
func (p *swiftParser) implFunction() {
	if p.take('s') {
		p.arguments()
		p.need(swiftSignature)
	}
	if p.take('I') {
		p.arguments()
	}
	p.has(swiftSignature)
	p.take('P')
	p.take('e')
	p.takeAny("AN")
	p.take('O')
	p.takeAny("dlfr")
	if !p.takeAny("ygxt") {
		p.fail()
	}
	p.takeAny("BCMJKVW")
	p.takeAny("AIG")
	p.take('h')
	p.take('H')
	p.take('T')
	for types := 0; !p.bad; {
		switch {
		case p.take('_'):
			for range types {
				p.needType()
			}
			p.push(swiftNode{kind: swiftType})
			return
		case p.takeAny("Yz"), p.takeAny("wTIL"):
		case p.takeAny("iclbnXxygevpmrodukag"):
			types++
		default:
			p.fail()
		}
	}
}

// accessor makes the accessor of a variable or subscript.
func (p *swiftParser) accessor(name string) {
	full := member(p.context(), name)
	what, ok := map[byte]string{
		'm': "materializeForSet", 's': "setter", 'g': "getter", 'G': "getter", 'w': "willset", 'W': "didset", 'r': "read", 'M': "modify",
		'i': "init", 'x': "modify2", 'y': "read2", 'b': "borrow", 'z': "mutate", 'p': "",
	}[p.peek()]
	switch {
	case p.take('a'):
		p.char()
		what = "unsafeMutableAddressor"
	case p.take('l'):
		p.char()
		what = "unsafeAddressor"
	case ok:
		p.at++
	default:
		p.fail()
	}
	if what != "" {
		full += "." + what
	}
	p.push(swiftNode{kind: swiftEntity, name: full})
}

func (p *swiftParser) functionEntity() {
	switch c := p.char(); c {
	case 'D', 'd', 'Z', 'E', 'e':
		p.entity(map[byte]string{'D': "__deallocating_deinit", 'd': "deinit", 'Z': "__isolated_deallocating_deinit", 'E': "__ivar_destroyer", 'e': "__ivar_initializer"}[c])
	case 'C', 'c':
		p.has(swiftName)
		p.labels(p.need(swiftType))
		name := "init"
		if c == 'C' && len(p.stack) > 0 && p.stack[len(p.stack)-1].class {
			name = "__allocating_init"
		}
		p.entity(name)
	case 'U', 'u':
		n := p.index()
		p.needType()
		p.about(map[byte]string{'U': "closure #", 'u': "implicit closure #"}[c] + strconv.Itoa(n+1) + " in ")
	case 'A':
		n := p.index()
		p.about("default argument " + strconv.Itoa(n) + " of ")
	case 'i':
		p.about("variable initialization expression of ")
	case 'P':
		p.about("property wrapper backing initializer of ")
	case 'W':
		p.about("property wrapper init from projected value of ")
	default:
		p.fail()
	}
}
