package symbols

// These are the operators of what Swift's compiler makes besides what is in the source.

// global makes what is in no source.
func (p *swiftParser) global(name string) { p.push(swiftNode{kind: swiftGlobal, name: name}) }

// named takes a declaration, a type of which there is one or what is made of either, and returns its name.
func (p *swiftParser) named() string {
	n := p.need(swiftEntity, swiftGlobal, swiftType)
	if n.kind == swiftType && !n.nominal {
		return "type"
	}
	return n.name
}

// conformer takes the conformance of a type to a protocol, and returns their names.
func (p *swiftParser) conformer() string {
	p.has(swiftSignature)
	p.module()
	protocol := p.protocol()
	return p.need(swiftType).shown() + " : " + protocol
}

// shown is the name of a type, if it has one.
func (n swiftNode) shown() string {
	if n.name == "" {
		return "type"
	}
	return n.name
}

// conformance runs the operators of conformances that are arguments.
func (p *swiftParser) conformance() {
	inner := func() { p.need(swiftConformance) }
	switch p.char() {
	case 'P', 'p':
		p.protocol()
		p.push(swiftNode{kind: swiftConformanceRef})
		return
	case 'C':
		p.list(inner)
		if !p.has(swiftConformanceRef) {
			p.module()
			p.protocol()
		}
		p.needType()
	case 'D':
		p.index()
		p.protocol()
		p.needType()
	case 'I':
		p.index()
		p.protocol()
		inner()
	case 'A':
		p.index()
		p.protocol()
		p.needType()
		inner()
	case 'O':
		p.needType()
		inner()
	case 'X':
		p.list(inner)
	default:
		p.fail()
	}
	p.push(swiftNode{kind: swiftConformance})
}

func (p *swiftParser) valueWitness() {
	if p.at+2 > len(p.s) {
		p.fail()
		return
	}
	what := map[string]string{
		"al": "allocateBuffer", "ca": "assignWithCopy", "ta": "assignWithTake", "de": "deallocateBuffer", "xx": "destroy", "XX": "destroyBuffer",
		"Xx": "destroyArray", "CP": "initializeBufferWithCopyOfBuffer", "Cp": "initializeBufferWithCopy", "cp": "initializeWithCopy",
		"TK": "initializeBufferWithTakeOfBuffer", "Tk": "initializeBufferWithTake", "tk": "initializeWithTake", "pr": "projectBuffer",
		"xs": "storeExtraInhabitant", "xg": "getExtraInhabitantIndex", "Cc": "initializeArrayWithCopy", "Tt": "initializeArrayWithTakeFrontToBack",
		"tT": "initializeArrayWithTakeBackToFront", "ug": "getEnumTag", "up": "destructiveProjectEnumData", "ui": "destructiveInjectEnumTag",
		"et": "getEnumTagSinglePayload", "st": "storeEnumTagSinglePayload",
	}[p.s[p.at:p.at+2]]
	if p.at += 2; what == "" {
		p.fail()
	}
	p.global(what + " value witness for " + p.need(swiftType).shown())
}

func (p *swiftParser) metadata() {
	what := map[byte]string{
		'a': "type metadata accessor for ", 'b': "canonical specialized generic type metadata accessor for ",
		'i': "type metadata instantiation function for ", 'r': "type metadata completion function for ", 'u': "method lookup function for ",
	}[p.char()]
	if what == "" {
		p.fail()
	}
	p.global(what + p.need(swiftType).shown())
}

func (p *swiftParser) witness() {
	switch c := p.char(); c {
	case 'l':
		protocol := p.conformer()
		p.global("lazy protocol witness table accessor for type " + p.need(swiftType).shown() + " and conformance " + protocol)
	case 'I':
		p.global("instantiation function for generic protocol witness table for " + p.conformer())
	case 'a':
		p.global("protocol witness table accessor for " + p.conformer())
	case 'b':
		protocol := p.protocol()
		p.global("base witness table accessor for " + protocol + " in " + p.conformer())
	case 't':
		name := p.need(swiftIdentifier).name
		p.global("associated type metadata accessor for " + name + " in " + p.conformer())
	case 'T':
		protocol := p.protocol()
		p.assocPath()
		p.global("associated type witness table accessor for " + protocol + " in " + p.conformer())
	case 'O':
		what := map[byte]string{
			'y': "copy", 'e': "consume", 'r': "retain", 's': "release", 'B': "init with take of", 'b': "init with take of", 'c': "init with copy of",
			'C': "init with copy of", 'd': "assign with take of", 'D': "assign with take of", 'f': "assign with copy of", 'F': "assign with copy of",
			'h': "destroy of", 'H': "destroy of", 'i': "store enum tag of", 'j': "enum destructive project of", 'g': "enum get tag of",
		}[p.char()]
		if what == "" {
			p.fail()
		}
		if what == "copy" || what == "consume" {
			what += " of"
		}
		p.has(swiftSignature)
		p.global("outlined " + what + " " + p.need(swiftType).shown())
	case 'Z', 'z':
		name := ""
		for first := false; !first && !p.bad; {
			first = p.has(swiftFirst)
			name = p.declName()
		}
		what := map[byte]string{'Z': "function", 'z': "token"}[c]
		p.global("one-time initialization " + what + " for " + member(p.context(), name))
	default:
		p.fail()
	}
}

// thunk runs what begins with T: thunks, and what is made of a function.
func (p *swiftParser) thunk() {
	switch c := p.char(); c {
	case 'c':
		p.push(swiftNode{kind: swiftEntity, name: "curry thunk of " + p.need(swiftEntity).name})
	case 'j':
		p.global("dispatch thunk of " + p.named())
	case 'A', 'a':
		p.prefix = "partial apply for "
	case 'm', 'u', 'X', 'x', 'I': // of one that is merged, the pointer to it, a replaceable one
	case 'o', 'O', 'D', 'd', 'E', 'F':
	case 'Q', 'Y': // what goes on after an await
		p.index()
	case 'w':
		if !p.takeAny("bBcdS") {
			p.fail()
		}
	case 'W':
		name := p.named()
		p.global("protocol witness for " + name + " in conformance " + p.conformer())
	case 'S':
		p.global("protocol self-conformance witness for " + p.named())
	case 'V':
		base := p.named()
		p.global("vtable thunk for " + base + " dispatching to " + p.named())
	case 'R', 'r', 'y', 'Z', 'z':
		p.has(swiftSignature)
		p.needType()
		p.needType()
		if c == 'y' {
			p.needType()
		}
		if c == 'z' || c == 'Z' {
			if d := p.peek(); d == '_' || d >= '0' && d <= '9' {
				p.index()
			}
			p.global("completion handler block")
			return
		}
		p.global("reabstraction thunk")
	case 'U':
		p.needType()
	case 'K', 'k':
		for p.has(swiftType) {
		}
		p.has(swiftSignature)
		what := map[byte]string{'K': "getter", 'k': "setter"}[c]
		p.global("key path " + what + " for " + p.named())
	case 'H', 'h':
		p.has(swiftSignature)
		for p.has(swiftType) {
		}
		what := map[byte]string{'H': "equality", 'h': "hash"}[c]
		p.global("key path index " + what + " operator")
	case 'N':
		protocol := p.protocol()
		if n, ok := p.pop(swiftType); !ok || n.protocol { // else a parameter
			if ok {
				p.push(n)
			}
			p.assocPath()
		}
		p.needType()
		p.global("default associated conformance accessor for " + protocol)
	case 'e': // an outlined call of Objective-C
		for p.takeAny("mapnb") {
		}
		if !p.take('_') {
			p.fail()
		}
	case 'g', 'B', 'G', 's', 'i', 't':
		for ; c == 't'; c = p.char() {
			p.natural()
		}
		p.pass()
		p.list(p.needType)
		p.made = true
	case 'J': // a derivative
		p.take('V')
		if !p.takeAny("frdp") {
			p.fail()
		}
		for _, end := range []byte("pr") {
			for p.takeAny("SU") {
			}
			if !p.take(end) {
				p.fail()
			}
		}
		p.has(swiftSignature)
		p.global("derivative of " + p.named())
	case 'p', 'P':
		p.pass()
		p.needType()
	case 'f':
		p.pass()
		p.signature()
	default:
		p.fail()
	}
}

// pass reads which pass of the compiler has specialized a function.
func (p *swiftParser) pass() {
	p.take('q')
	p.takeAny("ar")
	if !p.takeAny("0123456789") {
		p.fail()
	}
}

// signature reads how arguments are specialized. Types and identifiers that some of that needs are
// left on the stack.
func (p *swiftParser) signature() {
	p.made, p.specialized = true, true
	for !p.take('_') && !p.bad {
		p.argument()
	}
	p.argument()
}

func (p *swiftParser) argument() {
	switch c := p.char(); c {
	case 'n', 'c', 'C', 'r', 's', 'i', 'e':
		for c != 'n' && c != 'c' && c != 'C' && p.takeAny("DGOX") {
		}
	case 'd', 'g', 'o', 'x', 'X', 'D', 'G', 'O':
		for p.takeAny("DGOX") {
		}
	case 'p':
		switch p.char() {
		case 'f', 'g', 'k', 'S':
		case 'i', 'd':
			for d := p.peek(); d >= '0' && d <= '9' || d == 'n'; d = p.peek() {
				p.at++
			}
		case 's':
			p.takeAny("bwcU")
		default:
			p.fail()
		}
	default:
		p.fail()
	}
}
