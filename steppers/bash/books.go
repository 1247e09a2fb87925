package bash

import (
	"bytes"
	"encoding/binary"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// books are how what bash keeps of a process is read, as of a moment.
type books struct {
	*image
	bias     uint64
	listHead uint64
	read     vmread.Reader
	buf      [contextBytes]byte // for a structure
	word     [8]byte
}

// Limits on what is read.
const (
	maxCalls   = 1 << 13 // functions and scopes of variables,
	maxName    = 256     // bytes of a name,
	maxPath    = 4 << 10 // of one of a file,
	maxTexts   = 1 << 20 // and of those of a list
	maxChain   = 1 << 10 // entries of a table under one hash
	maxTables  = 1 << 20 // hashes
	maxDefined = 1 << 13 // functions whose names are looked through,
	maxInner   = 16      // commands in one another of which the first is looked for
	maxLine    = 1 << 28
)

// begin reads which version it is, and reports whether that could be read and is known.
func (b *books) begin() (isRead, ok bool) {
	at, isRead := b.wordAt(b.version + b.bias)
	if isRead = isRead && b.read(at, b.word[:4]); isRead {
		b.listHead, ok = isKnown(b.word[:4])
	}
	return isRead, ok
}

// wordAt reads a word.
func (b *books) wordAt(addr uint64) (uint64, bool) {
	if addr%8 != 0 || !b.read(addr, b.word[:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b.word[:]), true
}

// text appends a text of at most so many bytes, which a zero ends, and reports whether it is whole. Allocated memory has
// whole words.
func (b *books) text(to []byte, at uint64, most int) ([]byte, bool) {
	for n := 0; at != 0 && n < most; n += len(b.word) {
		if !b.read(at+uint64(n), b.word[:]) {
			return to, false
		}
		if i := bytes.IndexByte(b.word[:], 0); i >= 0 {
			return append(to, b.word[:i]...), true
		}
		to = append(to, b.word[:]...)
	}
	return to, false
}

// context is a VAR_CONTEXT.
type context struct {
	name, table, down uint64
	isFunction        bool
}

// context reads one.
func (b *books) context(at uint64) (c context, ok bool) {
	if at == 0 || at%8 != 0 || !b.read(at, b.buf[:contextBytes]) {
		return c, false
	}
	le := binary.LittleEndian
	return context{
		name: le.Uint64(b.buf[contextName:]), table: le.Uint64(b.buf[contextTable:]), down: le.Uint64(b.buf[contextDown:]),
		isFunction: le.Uint32(b.buf[contextFlags:])&ofFunction != 0,
	}, true
}

// hash is what a table has a key under (hash_string), where char has a sign.
func hash(key string) uint32 {
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	for i := range len(key) {
		h *= prime
		h ^= uint32(int8(key[i]))
	}
	return h
}

// lookup returns what a table has under a key, 0 where there is nothing.
func (b *books) lookup(table uint64, key string) (data uint64) {
	le := binary.LittleEndian
	if table == 0 || table%8 != 0 || !b.read(table, b.buf[:tableBytes]) {
		return 0
	}
	buckets, n := le.Uint64(b.buf[tableBuckets:]), le.Uint32(b.buf[tableCount:])
	if n == 0 || n&(n-1) != 0 || n > maxTables {
		return 0
	}
	h := hash(key)
	at, _ := b.wordAt(buckets + 8*uint64(h&(n-1)))
	for range maxChain {
		if at == 0 || at%8 != 0 || !b.read(at, b.buf[:bucketBytes]) {
			return 0
		}
		next, name, data := le.Uint64(b.buf[bucketNext:]), le.Uint64(b.buf[bucketKey:]), le.Uint64(b.buf[bucketData:])
		if le.Uint32(b.buf[bucketHash:]) == h {
			if is, ok := b.text(nil, name, len(key)+1); ok && string(is) == key {
				return data
			}
		}
		at = next
	}
	return 0
}

// list returns the address of the first element of a list of the global variables, which is none of it.
func (b *books) list(name string) uint64 {
	globals, _ := b.wordAt(b.globals + b.bias)
	c, ok := b.context(globals)
	if !ok {
		return 0
	}
	variable := b.lookup(c.table, name)
	if variable == 0 {
		return 0
	}
	array, ok := b.wordAt(variable + variableValue)
	if !ok || array == 0 {
		return 0
	}
	head, _ := b.wordAt(array + b.listHead)
	return head
}

// element reads an element of a list.
func (b *books) element(at uint64) (value, next, prev uint64, ok bool) {
	if at == 0 || at%8 != 0 || !b.read(at, b.buf[:elementBytes]) {
		return 0, 0, 0, false
	}
	le := binary.LittleEndian
	return le.Uint64(b.buf[elementValue:]), le.Uint64(b.buf[elementNext:]), le.Uint64(b.buf[elementPrev:]), true
}

// entry is what a list says of a function that runs, or of a file that does.
type entry struct{ function, file string }

// entries appends what FUNCNAME and BASH_SOURCE have, innermost first; none where they do not fit each other.
func (b *books) entries(to []entry) []entry {
	names, files := b.list("FUNCNAME"), b.list("BASH_SOURCE")
	_, name, _, ok1 := b.element(names)
	_, file, _, ok2 := b.element(files)
	all, bytes := to, 0
	for ok1 && ok2 && len(all)-len(to) < maxCalls && name != names && file != files {
		at, next, _, ok := b.element(name)
		if !ok {
			return to
		}
		name = next
		function, ok1 := b.text(nil, at, maxName)
		if at, next, _, ok = b.element(file); !ok {
			return to
		}
		file = next
		path, ok2 := b.text(nil, at, maxPath)
		if bytes += len(function) + len(path); !ok1 || !ok2 || bytes > maxTexts {
			return to
		}
		all = append(all, entry{string(function), string(path)})
	}
	if !ok1 || !ok2 || name != names || file != files {
		return to
	}
	return all
}

// script returns the file of the script that runs, "" where it is none: the last of the entries.
func (b *books) script() string {
	names, files := b.list("FUNCNAME"), b.list("BASH_SOURCE")
	_, _, name, ok1 := b.element(names)
	_, _, file, ok2 := b.element(files)
	if !ok1 || !ok2 || name == names || file == files {
		return ""
	}
	at, _, _, ok := b.element(name)
	if is, whole := b.text(nil, at, maxName); !ok || !whole || string(is) != topLevel {
		return ""
	}
	at, _, _, ok = b.element(file)
	path, whole := b.text(nil, at, maxPath)
	if !ok || !whole {
		return ""
	}
	return string(path)
}

// topLevel is how FUNCNAME has a script.
const topLevel = "main"

// definition reads where a function of a name is defined.
func (b *books) definition(name string) (file string, line int) {
	table, _ := b.wordAt(b.defs + b.bias)
	at := b.lookup(table, name)
	if at == 0 || at%8 != 0 || !b.read(at, b.buf[:definitionBytes]) {
		return "", 0
	}
	le := binary.LittleEndian
	line = int(int32(le.Uint32(b.buf[definitionLine:])))
	path, ok := b.text(nil, le.Uint64(b.buf[definitionFile:]), maxPath)
	if !ok || line <= 0 || line > maxLine {
		return "", 0
	}
	return string(path), line
}

// defined appends the names of the functions that are defined.
func (b *books) defined(to []string) []string {
	le := binary.LittleEndian
	table, _ := b.wordAt(b.defs + b.bias)
	if table == 0 || table%8 != 0 || !b.read(table, b.buf[:tableBytes]) {
		return to
	}
	buckets, n := le.Uint64(b.buf[tableBuckets:]), le.Uint32(b.buf[tableCount:])
	for i := range uint64(min(n, maxDefined)) {
		at, _ := b.wordAt(buckets + 8*i)
		for at != 0 && at%8 == 0 && len(to) < maxDefined && b.read(at, b.buf[:bucketBytes]) {
			key, next := le.Uint64(b.buf[bucketKey:]), le.Uint64(b.buf[bucketNext:])
			name, _ := b.text(nil, key, maxName)
			to = append(to, string(name))
			at = next
		}
	}
	return to
}

// line returns the line in which a COMMAND is, or begins; 0 where that is not known or it is none.
func (b *books) line(at uint64) int {
	le := binary.LittleEndian
	for range maxInner {
		if at == 0 || at%8 != 0 || !b.read(at, b.buf[:commandBytes]) {
			return 0
		}
		is, value := le.Uint32(b.buf[commandType:]), le.Uint64(b.buf[commandValue:])
		if is >= uint32(len(kinds)) || value == 0 || value%8 != 0 || !b.read(value, b.buf[:valueBytes]) {
			return 0
		}
		switch kinds[is] {
		case hasLine:
			line := int32(le.Uint32(b.buf[valueLine:]))
			if line <= 0 || line > maxLine {
				return 0
			}
			return int(line)
		case hasFirst:
			at = le.Uint64(b.buf[valueCommand:])
		case hasCoproc:
			at = le.Uint64(b.buf[coprocInner:])
		}
	}
	return 0
}
