package hotspot

import (
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/unwind"
)

// An nmethod tells which calls were inlined where (debugInfoRec.hpp): of some of its code
// addresses, those that calls return to and those at which a thread can be stopped, a PcDesc
// tells the scope, and a scope its method, bytecode and the scope that it was inlined into.

// javaCall is a call in a scope: the bytecode of a method, or one of two.
type javaCall struct {
	method  uint64
	bci, or int
}

// Limits on scopes.
const (
	maxScopesBytes = 4 << 20
	maxScopes      = 128 // that are inlined into each other
	maxFlags       = 1 << 14
)

// compiledLines returns what the nmethod b runs at pc: calls that were inlined, innermost
// first, and the method that was compiled. An interrupted frame is somewhere between two
// addresses that are told of, and is known to be in those calls that both are in; and in
// a line, where it is the same.
func (vm *machine) compiledLines(b *codeBlob, pc uint64, interrupted bool) (lines []unwind.CodeLine) {
	calls := vm.callsAt(b, pc, interrupted)
	if len(calls) == 0 {
		calls = []javaCall{{b.method, noBytecode, noBytecode}}
	}
	for _, c := range calls {
		m := vm.methodAt(c.method)
		if m == nil {
			return nil
		}
		l := m.lineAt(c.bci)
		if l != m.lineAt(c.or) {
			l.Line = 0
		}
		lines = append(lines, l)
	}
	return lines
}

// noBytecode stands for a bytecode that is not known.
const noBytecode = -2

// callsAt returns the calls at pc, innermost first; none when there is no telling.
func (vm *machine) callsAt(b *codeBlob, pc uint64, interrupted bool) []javaCall {
	n, f := &vm.names, vm.fields.method
	scopes, ok := vm.scopesOf(b)
	if !ok {
		return nil
	}
	s := scopeReader{data: scopes.data, pointers: scopes.pointers, method: b.method, compressed: vm.compressed()}
	at := int64(pc - b.begin)
	offset := func(d []byte) int64 { return int64(int32(binary.LittleEndian.Uint32(d[f.pcOffset:]))) }
	var before, next []byte
	for d := range slices.Chunk(scopes.descs, int(f.pcBytes)) {
		if uint64(len(d)) < f.pcBytes {
			break
		}
		if o := offset(d); o < 0 {
			continue // the first one, which is none
		} else if o > at {
			next = d
			break
		}
		before = d
	}
	calls := func(i int, d []byte) []javaCall {
		if d == nil || offset(d) > int64(b.end-b.begin) {
			return n.chains[i][:0]
		}
		n.chains[i] = s.chain(n.chains[i][:0], binary.LittleEndian.Uint32(d[f.pcScope:]))
		return n.chains[i]
	}
	switch {
	case !interrupted:
		if before == nil || offset(before) != at {
			return nil
		}
		return calls(0, before)
	case vm.tellsAll():
		return calls(0, next)
	}
	return commonCalls(calls(0, before), calls(1, next))
}

// commonCalls returns the calls, of two chains of them, that both are in.
func commonCalls(a, b []javaCall) (common []javaCall) {
	for i := 1; i <= min(len(a), len(b)); i++ {
		x, y := a[len(a)-i], b[len(b)-i]
		if x.method != y.method {
			break
		}
		x.or = y.bci
		common = append(common, x)
		if x.bci != x.or {
			break // what is inlined there are other calls
		}
	}
	slices.Reverse(common)
	return common
}

// javaScopes is what an nmethod tells of its code.
type javaScopes struct {
	header   uint64 // of the nmethod, 0: of none
	id       uint32
	descs    []byte // PcDescs,
	data     []byte // what they refer to,
	pointers []byte // and what that does
}

// keptScopes is how many nmethods' scopes are kept, those of at most maxKeptScopes bytes.
const (
	keptScopesBits = 4
	keptScopes     = 1 << keptScopesBits
	maxKeptScopes  = 64 << 10
)

// scopesOf returns the scopes of an nmethod. ok is false where it is not the same any more.
func (vm *machine) scopesOf(b *codeBlob) (s *javaScopes, ok bool) {
	n := &vm.names
	kept := &n.kept[b.header>>6*0x9e3779b97f4a7c15>>(64-keptScopesBits)]
	if kept.header == b.header && kept.id == b.id {
		return kept, true
	}
	if !vm.readScopes(b, &n.scopes) {
		return nil, false
	}
	s = &n.scopes
	if size := len(s.descs) + len(s.data) + len(s.pointers); size <= maxKeptScopes {
		*kept = *s
		*s = javaScopes{} // with its memory
		return kept, true
	}
	return s, true
}

// readScopes reads the scopes of an nmethod. It returns false where it is not the same any more, by what tells that:
// other fields of its header change while it is used.
func (vm *machine) readScopes(b *codeBlob, s *javaScopes) bool {
	f, le := vm.fields.method, binary.LittleEndian
	head, again := make([]byte, maxBlobHeader), make([]byte, maxBlobHeader)
	if !vm.read(b.header, head) {
		return false
	}
	same := func(head []byte) bool {
		return le.Uint64(head[f.compiled:]) == b.method && le.Uint32(head[f.compileID:]) == b.id
	}
	is := f.rangesOf(b.header, head)
	if !is.pointers.read(vm, &s.pointers) || !is.data.read(vm, &s.data) || !is.descs.read(vm, &s.descs) ||
		!vm.read(b.header, again) || f.rangesOf(b.header, again) != is || !same(head) || !same(again) {
		return false
	}
	s.header, s.id = b.header, b.id
	return true
}

// scopeRanges are where the parts of javaScopes are.
type scopeRanges struct{ pointers, data, descs byteRange }

type byteRange struct{ begin, end uint64 }

// rangesOf finds the scopes of an nmethod by what it begins with.
func (f *methodFields) rangesOf(header uint64, head []byte) scopeRanges {
	at := func(base, field uint64) uint64 { return base + uint64(binary.LittleEndian.Uint32(head[field:])) }
	pointer := func(field uint64) uint64 { return binary.LittleEndian.Uint64(head[field:]) }
	switch f.layout {
	case scopesApart:
		immutable, mutable := pointer(f.immutable), pointer(f.mutable)
		pcs, data := at(immutable, f.scopesPCs), at(immutable, f.scopesData)
		return scopeRanges{
			pointers: byteRange{at(mutable, f.metadata), at(mutable, f.mutableBytes)},
			data:     byteRange{data, at(immutable, f.scopesEnd)},
			descs:    byteRange{pcs, data},
		}
	case scopesByOffset:
		metadata, pcs, data := at(header, f.metadata), at(header, f.scopesPCs), at(header, f.scopesData)
		return scopeRanges{byteRange{metadata, data}, byteRange{data, pcs}, byteRange{pcs, at(header, f.scopesEnd)}}
	}
	metadata, pcs, data := at(header, f.metadata), at(header, f.scopesPCs), pointer(f.scopesData)
	return scopeRanges{byteRange{metadata, data}, byteRange{data, pcs}, byteRange{pcs, at(header, f.scopesEnd)}}
}

// read reads all of it, and returns whether there is as much.
func (r byteRange) read(vm *machine, to *[]byte) bool {
	if r.begin > r.end || r.end-r.begin > maxScopesBytes {
		return false
	}
	*to = make([]byte, r.end-r.begin)
	return len(*to) == 0 || vm.names.pace.May(len(*to)) && vm.read(r.begin, *to)
}

// scopeReader reads the scopes of an nmethod.
type scopeReader struct {
	compressed
	data     []byte
	pointers []byte
	method   uint64 // of the nmethod
}

// chain appends the calls of a scope, at an offset of the data, innermost first; none
// where they do not read well.
func (s *scopeReader) chain(dst []javaCall, at uint32) []javaCall {
	first := len(dst)
	if at == 0 {
		return append(dst, javaCall{s.method, noBytecode, noBytecode})
	}
	for at != 0 {
		if uint64(at) >= uint64(len(s.data)) || len(dst)-first >= maxScopes {
			return dst[:first]
		}
		rest := s.data[at:]
		var v [3]uint32 // the scope that it is in; 1 + the index of its method; 1 + its bytecode
		for i := range v {
			value, n := s.read(rest)
			if n == 0 {
				return dst[:first]
			}
			v[i], rest = value, rest[n:]
		}
		if v[1] == 0 || uint64(v[1]) > uint64(len(s.pointers)/8) {
			return dst[:first]
		}
		bci := int(v[2]) - 1
		dst = append(dst, javaCall{binary.LittleEndian.Uint64(s.pointers[8*(v[1]-1):]), bci, bci})
		at = v[0]
	}
	if dst[len(dst)-1].method != s.method {
		return dst[:first]
	}
	return dst
}

// tellsAll reports whether nmethods tell of all their code: whether the virtual machine's flag
// DebugNonSafepoints is set.
func (vm *machine) tellsAll() bool {
	tells := &vm.names.tells
	if !tells.known {
		const flag = "DebugNonSafepoints"
		set := vm.flagsSet(flag)
		tells.known, tells.all = set != nil, set[flag]
	}
	return tells.all
}

// flagsSet tells which of the virtual machine's flags of these names are set; nil where that cannot be read.
func (vm *machine) flagsSet(names ...string) map[string]bool {
	f := vm.fields.method
	if f.flags == 0 || f.numFlags == 0 {
		return nil
	}
	first, ok := vm.word(f.flags + vm.bias)
	num, ok2 := vm.word(f.numFlags + vm.bias)
	if !ok || !ok2 || num > maxFlags {
		return nil
	}
	t := vmTables{im: vm.image, bias: vm.bias}
	flags := make([]byte, num*f.flagBytes)
	if !vm.read(first, flags) {
		return nil
	}
	set := map[string]bool{}
	for flag := range slices.Chunk(flags, int(f.flagBytes)) {
		if name := t.text(binary.LittleEndian.Uint64(flag[f.flagName:])); slices.Contains(names, name) {
			var value [1]byte
			set[name] = vm.read(binary.LittleEndian.Uint64(flag[f.flagAddr:]), value[:]) && value[0] != 0
		}
	}
	return set
}
