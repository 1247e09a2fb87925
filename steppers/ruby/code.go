package ruby

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// calledMethod is a method, or a block of one, as Ruby calls it.
type calledMethod struct {
	*unwind.CodeFunction
	serial uint32 // changes with it
	iseq   *iSeq
}

// iSeq is an rb_iseq_t.
type iSeq struct {
	calledMethod
	body      uint64
	head      [rubyBodyBytes]byte // of the body, as it was
	encoded   uint64              // its instructions begin here,
	words     uint64              // and are so many words
	lines     []byte              // a table of lines, of entries of
	lineBytes int                 // bytes,
	index     []byte              // and which instructions have another one than the one before
	valid     vmread.Valid
	owned     map[*methodEntry]*calledMethod // it, as a method of others
}

// rubyRuntime is the CodeFunction.Runtime of Ruby.
const rubyRuntime = "ruby"

// notCopied is what stands for methods whose frames were not copied.
var notCopied = calledMethod{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: rubyRuntime}}

// notRead is what stands for methods that were gone before they were read, as what eval has made can be.
var notRead = calledMethod{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: rubyRuntime}, serial: 1}

// firstSerial is more than those of what stands for methods.
const firstSerial = 1

// function returns what is known of the method of a control frame, nil where it is none that Ruby would tell of.
func (vm *machine) function(f *controlFrame) *calledMethod {
	unknown := &notRead
	if f == &vm.frames[0] {
		unknown = nil // it may be being made
	}
	if f.env.flags&magic == cFunction {
		is := vm.entry(f.env.entry)
		if is == nil || !is.isMethod || is.isOfC && is.function == nil {
			return unknown
		}
		return is.function
	}
	if f.iseq == 0 || f.pc == 0 && !f.isCompiled {
		return nil
	}
	iseq := vm.iseq(f.iseq)
	if iseq == nil {
		return unknown
	}
	if !iseq.isKindOf(f.env.flags) || !f.isCompiled && !iseq.has(f.pc) {
		if unknown != nil {
			iseq.valid.Differs(vm.Times())
		}
		return unknown
	}
	if vm.fields.hasOwner {
		if entry := vm.entryOf(f.env); entry != nil && vm.defines(entry, iseq) {
			return vm.owned(iseq, entry)
		}
	}
	return &iseq.calledMethod
}

// isKindOf reports whether an rb_iseq_t is of the kind that the environment of a frame that runs it tells: methods, blocks,
// and what rescues or ensures, have frames of their own.
func (is *iSeq) isKindOf(flags uint64) bool {
	var kind uint64
	switch binary.LittleEndian.Uint32(is.head[rubyType:]) {
	case typeMethod:
		kind = methodFrame
	case typeBlock, typePlain: // which runs once
		kind = blockFrame
	case typeRescue, typeEnsure:
		kind = rescueFrame
	default:
		return !slices.Contains([]uint64{methodFrame, blockFrame, rescueFrame}, flags&magic)
	}
	return flags&magic == kind
}

// has reports whether an instruction is one of an rb_iseq_t, or behind the last.
func (is *iSeq) has(pc uint64) bool {
	return pc >= is.encoded && pc-is.encoded <= 8*is.words && (pc-is.encoded)%8 == 0
}

// instruction returns which word of the method's code a frame is at; less than 0 where that is
// not known.
func (fn *calledMethod) instruction(pc uint64) int {
	if fn.iseq == nil || !fn.iseq.has(pc) {
		return -1
	}
	return int(pc-fn.iseq.encoded) / 8
}

// iseq returns what is known of an rb_iseq_t, nil when it is none, or was another at the time of the walk.
func (vm *machine) iseq(addr uint64) *iSeq {
	is := vm.known[addr]
	if is != nil && !is.valid.IsDue(vm.Times()) {
		return is.there()
	}
	var head [rubyBodyBytes]byte
	body, isOne, ok := vm.readBody(addr, &head)
	switch {
	case !ok && is != nil:
		return vm.unread(is)
	case isOne && is != nil && vm.isStill(is, body, &head):
		if !is.valid.Read(vm.Times(), true) {
			return nil
		}
		return is.there()
	}
	if len(vm.known) >= maxFunctions || vm.Kept >= vmread.MaxKept {
		clear(vm.known)
		vm.Kept = 0
	}
	if !isOne {
		is = &iSeq{} // whatever that is
		is.valid.Differs(vm.Times())
		vm.known[addr] = is
		return nil
	}
	now := vm.readISeq(addr)
	if now == nil {
		return vm.unread(is) // it may be what it was
	}
	if is != nil {
		now.valid = is.valid
	}
	vm.known[addr] = now
	if !now.valid.Read(vm.Times(), false) {
		return nil
	}
	return now.there()
}

// unread returns an rb_iseq_t that cannot be read now, nil where it is not known to be what it was: where the process goes on
// it may be gone.
func (vm *machine) unread(is *iSeq) *iSeq {
	if is == nil || !is.valid.Holds(vm.Times()) || !vm.hasEnded() {
		return nil
	}
	return is.there()
}

// there returns an rb_iseq_t, nil where it is none.
func (is *iSeq) there() *iSeq {
	if is.CodeFunction == nil {
		return nil
	}
	return is
}

// isStill reports whether an rb_iseq_t is what it was, by its body as that is now.
func (vm *machine) isStill(is *iSeq, body uint64, head *[rubyBodyBytes]byte) bool {
	if is.CodeFunction == nil || is.body != body || is.head != *head {
		return false
	}
	// Another one has its name where that of this was, too.
	name, ok := vm.text(binary.LittleEndian.Uint64(head[rubyLabel:]))
	return ok && name == is.SystemName
}

// hasEnded reports whether the process has ended.
func (vm *machine) hasEnded() bool { return vm.HasEnded(vm.file, vm.bias) }

// readBody reads the body of what may be an rb_iseq_t, and whether it is one. ok is false where that cannot be read.
func (vm *machine) readBody(addr uint64, head *[rubyBodyBytes]byte) (body uint64, isOne, ok bool) {
	var object [rubyBody + 8]byte
	le := binary.LittleEndian
	if addr == 0 || addr%8 != 0 || !vm.ReadNow(addr, object[:]) {
		return 0, false, false
	}
	body = le.Uint64(object[rubyBody:])
	if !isInternal(le.Uint64(object[:]), iSeqType) || body == 0 || body%8 != 0 {
		return 0, false, true
	}
	ok = vm.ReadNow(body, head[:])
	return body, ok, ok
}

// readISeq reads an rb_iseq_t, nil when it is none.
func (vm *machine) readISeq(addr uint64) *iSeq {
	le, f := binary.LittleEndian, vm.fields
	is := &iSeq{lineBytes: int(f.lineBytes)}
	var isOne bool
	if is.body, isOne, _ = vm.readBody(addr, &is.head); !isOne {
		return nil
	}
	is.encoded, is.words = le.Uint64(is.head[rubyEncoded:]), uint64(le.Uint32(is.head[rubySize:]))
	name, ok := vm.text(le.Uint64(is.head[rubyLabel:]))
	if !ok || is.encoded == 0 {
		return nil
	}
	file, _ := vm.path(le.Uint64(is.head[rubyPath:]))
	first := int(int32(le.Uint32(is.head[rubyFirstLine:])))
	if f.isLineValue {
		first = int(int64(le.Uint64(is.head[rubyFirstLine:])) >> 1)
	}
	vm.serial++
	is.calledMethod = calledMethod{serial: firstSerial + vm.serial, iseq: is}
	is.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: first, Runtime: rubyRuntime}
	vm.readLines(is)
	vm.Kept += len(name) + len(file) + len(is.lines) + len(is.index)
	return is
}

// readLines reads the tables of an rb_iseq_t's lines.
func (vm *machine) readLines(is *iSeq) {
	f, le := vm.fields, binary.LittleEndian
	entries := uint64(le.Uint32(is.head[f.lines+rubyLineCount:]))
	if entries > maxLines || is.words > maxLines {
		return
	}
	lines := make([]byte, entries*f.lineBytes)
	index := make([]byte, indexBytes(is.words))
	if vm.ReadNow(le.Uint64(is.head[f.lines:]), lines) && (entries < 2 || vm.ReadNow(le.Uint64(is.head[f.lines+rubyLineIndex:]), index)) {
		is.lines, is.index = lines, index
	}
}

// A succ_index_table (iseq.c) tells of the word of an instruction how many entries of the lines
// are for words up to it: of the first words in seven bits each, nine in eight bytes, and of others
// in blocks, which have how many there are before them, how many before each of their words of bits
// but for the first, in nine bits each, and those words, a bit for each entry.
const (
	immediate      = 54
	immediateBytes = immediate / 9 * 8
	block          = 512
	blockBytes     = 16 + block/8
)

// indexBytes returns how large the table is for a number of words.
func indexBytes(words uint64) uint64 {
	if words <= immediate {
		return immediateBytes
	}
	return immediateBytes + (words-immediate+block-1)/block*blockBytes
}

// index looks up a word in the table; 0 where it is in none.
func index(table []byte, word int) int {
	le := binary.LittleEndian
	if word < immediate {
		return int(le.Uint64(table[word/9*8:]) >> (word % 9 * 7) & 0x7f)
	}
	word -= immediate
	at := immediateBytes + word/block*blockBytes
	if at+blockBytes > len(table) {
		return 0
	}
	b, small, bit := table[at:at+blockBytes], word%block/64, word%64
	n := int(le.Uint32(b)) + bits.OnesCount64(le.Uint64(b[16+8*small:])<<(63-bit))
	if small > 0 {
		n += int(le.Uint64(b[8:]) >> ((small - 1) * 9) & 0x1ff)
	}
	return n
}

// line returns the line of a frame whose next instruction is at a word of the code; 0 where
// it has none.
func (fn *calledMethod) line(word int) int {
	is := fn.iseq
	if is == nil || len(is.lines) == 0 || word < 0 {
		return 0
	}
	if word == 0 {
		return is.StartLine
	}
	entry, size := 0, is.lineBytes
	if len(is.lines) > size {
		entry = index(is.index, word-1) - 1
	}
	if entry < 0 || (entry+1)*size > len(is.lines) {
		return 0
	}
	return int(int32(binary.LittleEndian.Uint32(is.lines[entry*size:])))
}

// text reads an object of the class String. ok is false where it is none that is a name.
func (vm *machine) text(object uint64) (text string, ok bool) {
	const length, pointer = 16, 24
	le := binary.LittleEndian
	var head [32]byte
	if object == 0 || object%8 != 0 || !vm.ReadNow(object, head[:]) {
		return "", false
	}
	flags, n, at := le.Uint64(head[:]), le.Uint64(head[length:]), le.Uint64(head[pointer:])
	if flags&typeBits != isString {
		return "", false
	}
	if flags&notEmbedded == 0 {
		const lengthShift, lengthBits = 14, 31
		at = object + vm.fields.embeddedBytes
		if vm.fields.embeddedBytes == length {
			n = flags >> lengthShift & lengthBits
		}
	}
	if n > maxName {
		return "", false
	}
	b := make([]byte, n)
	if !vm.ReadNow(at, b) || !utf8.Valid(b) || !vmread.IsPrintable(string(b)) {
		return "", false
	}
	return string(b), true
}

// path reads the path of an rb_iseq_t: a String, or an Array that begins with it.
func (vm *machine) path(object uint64) (path string, ok bool) {
	if first, ok := vm.element(object, 0); ok {
		object = first
	}
	return vm.text(object)
}
