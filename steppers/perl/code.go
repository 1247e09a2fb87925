package perl

import (
	"bytes"
	"encoding/binary"
	"path"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is a subroutine, or what a file or an eval does itself.
type function struct {
	*unwind.CodeFunction
	serial  uint32 // changes with it
	head    subHead
	checked time.Time
}

// subHead is what a subroutine's name and place are told by.
type subHead struct{ stash, start, root, name, file uint64 }

// fileBody is what a file does itself, or evals of text in it.
type fileBody struct {
	name   string
	isText bool
}

// statement is a statement.
type statement struct {
	file    string
	line    int
	checked time.Time
}

// perlRuntime is the CodeFunction.Runtime of Perl.
const perlRuntime = "perl"

// notCopied is what stands for subroutines whose contexts were not copied.
var notCopied = function{CodeFunction: &unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: perlRuntime}}

// notRead is what stands for subroutines that have ended before anything was read of them.
var notRead = function{CodeFunction: &unwind.CodeFunction{Name: "[not read]", SystemName: "[not read]", Runtime: perlRuntime}, serial: 1}

// functionOf returns what a sub is and the line that it is in, 0 where that is not known.
func (vm *machine) functionOf(s *sub) (*function, int) {
	if s.isAbsent {
		return &notCopied, 0
	}
	cop := vm.copAt(s.cop)
	if s.sub == 0 {
		if cop == nil || s.mayBegin {
			return vm.fileFunction(fileBody{"", s.isText}), 0
		}
		return vm.fileFunction(fileBody{cop.file, s.isText}), cop.line
	}
	root, line := uint64(0), 0
	if cop != nil {
		root, line = vm.rootOfStatement(s.cop), cop.line
	}
	if s.mayBegin || vm.isOfCaller(s, root) {
		// It may not be written yet either, so that what was known of the address is no help.
		switch fn := vm.readFunction(s.sub, vm.known[s.sub]); {
		case fn == nil:
			return &notRead, 0
		case fn.head.root != root:
			return fn, 0
		}
	}
	fn := vm.function(s.sub, root)
	switch {
	case fn != nil:
	case root != 0:
		fn = vm.closure(root, s.cop, cop)
	default:
		return &notRead, 0
	}
	if cop == nil || cop.file != fn.File {
		line = 0
	}
	return fn, line
}

// isOfCaller reports whether the statement that runs is one of what has called the innermost
// subroutine, as while that is being begun.
func (vm *machine) isOfCaller(s *sub, root uint64) bool {
	if s != &vm.subs[0] || len(vm.subs) == 1 || root == 0 {
		return false
	}
	if fn := vm.known[s.sub]; fn != nil && fn.head.root == root {
		return false
	}
	caller, ok := vm.rootOfSub(vm.subs[1].sub)
	return ok && caller == root
}

// rootOfStatement returns the root of the subroutine that a statement is in, 0 where that is not known,
// as of code in a regular expression.
func (vm *machine) rootOfStatement(cop uint64) uint64 {
	root, ok := vm.rootOf(cop)
	if !ok || !vm.roots[cop].isSub {
		return 0
	}
	return root
}

// closure returns what code is that no subroutine was seen of which is not gone: that of an
// anonymous one, which is made of it for each time that it is needed.
func (vm *machine) closure(root, at uint64, cop *statement) *function {
	stash, ok := vm.stashOf(at)
	if !ok {
		return &notRead
	}
	name, ok := vm.qualified(stash, "__ANON__")
	if !ok {
		return &notRead
	}
	first := uint64(0)
	block, ok := vm.WordNow(root + opFirst)
	if ok {
		first, _ = vm.WordNow(block + opFirst)
	}
	vm.makeRoom()
	fn := &function{checked: vm.now}
	fn.head.root, fn.head.start = root, first
	fn.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: cop.file, StartLine: vm.startLine(first), Runtime: perlRuntime}
	vm.serial++
	fn.serial = vm.serial
	vm.Kept += fn.bytes()
	if cop.file != evalFile {
		vm.byRoot[root] = fn
	}
	return fn
}

// stashOf returns the package that a statement is in.
func (vm *machine) stashOf(cop uint64) (stash uint64, ok bool) {
	is, ok := vm.WordNow(cop + copStash)
	if !ok || !vm.isThreaded {
		return is, ok && is != 0
	}
	stashes, ok := vm.WordNow(vm.head.current - vm.fields.current + vm.fields.stashes)
	if !ok || is >= maxStashes {
		return 0, false
	}
	stash, ok = vm.WordNow(stashes + 8*is)
	return stash, ok && stash != 0
}

// fileFunction returns what a file does itself.
func (vm *machine) fileFunction(file fileBody) *function {
	fn := vm.files[file]
	if fn == nil {
		vm.makeRoom()
		name := "<file>"
		switch {
		case file.isText:
			name = "<eval>"
		case file.name != "":
			name = "<file " + path.Base(file.name) + ">"
		}
		vm.serial++
		fn = &function{serial: vm.serial}
		fn.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: file.name, Runtime: perlRuntime}
		vm.Kept += fn.bytes()
		vm.files[file] = fn
	}
	return fn
}

// copAt returns a statement, nil when it is none.
func (vm *machine) copAt(addr uint64) *statement {
	cop := vm.cops[addr]
	if cop != nil && vm.now.Sub(cop.checked) < codeInterval {
		return cop
	}
	var b [copBytes]byte
	le := binary.LittleEndian
	read := vm.ReadNow
	if addr == vm.head.compiling {
		read = vm.Read // it goes on
	}
	if addr == 0 || addr%8 != 0 {
		return nil
	}
	if !read(addr, b[:]) {
		if cop != nil && vm.hasEnded() {
			return cop
		}
		return nil
	}
	const nulled = 0
	if op := le.Uint32(b[opType:]) & opKind; op != vm.fields.nextState && op != vm.fields.nextState+1 && op != nulled {
		return nil
	}
	file, ok := vm.fileName(le.Uint64(b[copFile:]))
	if !ok {
		return nil
	}
	line := int(int32(le.Uint32(b[copLine:])))
	known := cop
	if cop == nil || cop.file != file || cop.line != line {
		cop = &statement{file: file, line: line}
	}
	if file == evalFile || addr == vm.head.compiling {
		return cop // another one may be in its place soon
	}
	vm.makeRoom()
	if cop != known {
		vm.Kept += len(file)
	}
	cop.checked = vm.now
	vm.cops[addr] = cop
	return cop
}

// evalFile is what stands for the file of an eval of text. Perl numbers these.
const evalFile = "(eval)"

// fileName reads the name of a file, as a statement has it: a text, or without threads a GV, whose
// name begins with "_<".
func (vm *machine) fileName(at uint64) (name string, ok bool) {
	if vm.isThreaded {
		name, ok = vm.cString(at)
	} else {
		if name, _, ok = vm.gv(at); ok {
			name, ok = strings.CutPrefix(name, "_<")
		}
	}
	if number, found := strings.CutPrefix(name, "(eval "); found && strings.Trim(number, "0123456789") == ")" {
		name = evalFile
	}
	return name, ok && name != "" && vmread.IsPrintable(name)
}

// cString reads a text that ends with a zero.
func (vm *machine) cString(at uint64) (string, bool) {
	var b [maxName]byte
	for n := 0; at != 0 && n < len(b); {
		part := b[n:min(len(b), n+64-int(at+uint64(n))%64)] // which no page ends in
		if !vm.ReadNow(at+uint64(n), part) {
			return "", false
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			return string(b[:n+end]), true
		}
		n += len(part)
	}
	return "", false
}

// rootOp is the root of an op's tree: what a subroutine ends with.
type rootOp struct {
	root    uint64
	isSub   bool          // whether it is that of a subroutine
	op      [opBytes]byte // the op, as it was
	checked time.Time
}

// rootOf returns the root of an op's tree.
func (vm *machine) rootOf(op uint64) (root uint64, ok bool) {
	b, le := &vm.opBuf, binary.LittleEndian
	at, parent := op, true
	for ; vm.steps > 0 && at != 0 && at%8 == 0; vm.steps-- {
		if is, known := vm.roots[at]; parent && known {
			if vm.now.Sub(is.checked) < codeInterval {
				return vm.keepRoot(op, is.root)
			}
			switch read := vm.ReadNow(at, b[:]); {
			case read && *b == is.op:
				is.checked = vm.now
				vm.roots[at] = is
				return vm.keepRoot(op, is.root)
			case !read && vm.hasEnded():
				return is.root, true
			}
		}
		if !vm.ReadNow(at, b[:]) {
			return 0, false
		}
		next := le.Uint64(b[opSibling:])
		parent = le.Uint32(b[opType:])&opHasSibling == 0
		if next == 0 && parent {
			return vm.keepRoot(op, at)
		}
		at = next
	}
	return 0, false
}

// keepRoot notes the root of an op's tree.
func (vm *machine) keepRoot(op, root uint64) (uint64, bool) {
	if is, known := vm.roots[op]; known && vm.now.Sub(is.checked) < codeInterval && is.root == root {
		return root, true
	}
	is := rootOp{root: root, checked: vm.now}
	var b [opBytes]byte
	if !vm.ReadNow(op, is.op[:]) || !vm.ReadNow(root, b[:]) {
		return 0, false
	}
	kind := binary.LittleEndian.Uint32(b[opType:]) & opKind
	is.isSub = kind == vm.fields.leaveSub || kind == vm.fields.leaveSub+1
	if len(vm.roots) >= maxOps {
		clear(vm.roots)
	}
	vm.roots[op] = is
	return root, true
}

// rootOfSub returns the root of a subroutine.
func (vm *machine) rootOfSub(sub uint64) (uint64, bool) {
	body, ok := vm.WordNow(sub + svBody)
	if !ok {
		return 0, false
	}
	return vm.WordNow(body + cvRoot)
}

// function returns what is known of a subroutine, nil when it is none. root is the root of what it
// runs, where that is known: a closure may have ended, and another one may be in its place.
func (vm *machine) function(sub, root uint64) *function {
	fn := vm.known[sub]
	if fn != nil && vm.now.Sub(fn.checked) < codeInterval && (root == 0 || root == fn.head.root) {
		return fn
	}
	if is := vm.readFunction(sub, fn); is != nil && (root == 0 || root == is.head.root) {
		is.checked = vm.now
		vm.known[sub] = is
		if is.File != evalFile { // else other code may be in its place soon
			vm.byRoot[is.head.root] = is
		}
		return is
	}
	if fn = vm.byRoot[root]; fn != nil && vm.startLine(fn.head.start) == fn.StartLine {
		return fn
	}
	return nil
}

// readFunction reads a subroutine, nil when it is none. It returns what was known if it is the same.
func (vm *machine) readFunction(sub uint64, known *function) *function {
	var sv [svBytes]byte
	var body [cvBytes]byte
	le := binary.LittleEndian
	if sub == 0 || sub%8 != 0 {
		return nil
	}
	if !vm.ReadNow(sub, sv[:]) {
		if known != nil && vm.hasEnded() {
			return known
		}
		return nil
	}
	kind, at := le.Uint32(sv[svFlags:])&svKind, le.Uint64(sv[svBody:])
	if kind != kindCV && kind != kindFM || at%8 != 0 || !vm.ReadNow(at, body[:]) {
		return nil
	}
	flags := le.Uint32(body[cvFlags:])
	head := subHead{
		stash: le.Uint64(body[cvStash:]), start: le.Uint64(body[cvStart:]), root: le.Uint64(body[cvRoot:]),
		name: le.Uint64(body[cvName:]), file: le.Uint64(body[cvFile:]),
	}
	if flags&cvIsXSUB != 0 || head.root == 0 {
		return nil
	}
	if known != nil && known.head == head {
		return known
	}
	name, ok := vm.subName(flags, &head)
	if !ok {
		return nil
	}
	file, _ := vm.fileNameOfSub(head.file)
	vm.makeRoom()
	line := vm.startLine(head.start)
	if fn := vm.byRoot[head.root]; fn != nil && fn.Name == name && fn.File == file && fn.StartLine == line {
		return fn // another closure of the same code
	}
	vm.serial++
	fn := &function{serial: vm.serial, head: head}
	fn.CodeFunction = &unwind.CodeFunction{Name: name, SystemName: name, File: file, StartLine: line, Runtime: perlRuntime}
	vm.Kept += fn.bytes()
	return fn
}

// makeRoom forgets functions and statements where too many are kept.
func (vm *machine) makeRoom() {
	isFull := vm.Kept >= vmread.MaxKept
	if isFull || len(vm.known) >= maxFunctions || len(vm.byRoot) >= maxFunctions || len(vm.files) >= maxFunctions {
		clear(vm.known)
		clear(vm.byRoot)
		clear(vm.files)
	}
	if isFull || len(vm.cops) >= maxCops {
		clear(vm.cops)
	}
	if isFull {
		vm.Kept = 0
	}
}

// bytes is how much of it is kept, about.
func (fn *function) bytes() int { return len(fn.Name) + len(fn.File) }

// fileNameOfSub reads the name of a subroutine's file, a text in all builds.
func (vm *machine) fileNameOfSub(at uint64) (string, bool) {
	name, ok := vm.cString(at)
	if number, found := strings.CutPrefix(name, "(eval "); found && strings.Trim(number, "0123456789") == ")" {
		name = evalFile
	}
	if !ok || !vmread.IsPrintable(name) {
		return "", false
	}
	return name, true
}

// startLine returns the line of the statement that a subroutine begins with, 0 when it begins with none.
func (vm *machine) startLine(op uint64) int {
	var b [copBytes]byte
	if op == 0 || op%8 != 0 || !vm.ReadNow(op, b[:]) {
		return 0
	}
	le := binary.LittleEndian
	if is := le.Uint32(b[opType:]) & opKind; is != vm.fields.nextState && is != vm.fields.nextState+1 {
		return 0
	}
	return int(int32(le.Uint32(b[copLine:])))
}

// subName returns a subroutine's name as caller has it.
func (vm *machine) subName(flags uint32, head *subHead) (string, bool) {
	if flags&cvIsNamed == 0 {
		name, stash, ok := vm.gv(head.name)
		if !ok {
			return "", false
		}
		return vm.qualified(stash, name)
	}
	name, ok := vm.hek(head.name)
	if !ok || flags&cvIsLexical != 0 {
		return name, ok
	}
	return vm.qualified(head.stash, name)
}

// qualified puts the name of a package before another.
func (vm *machine) qualified(stash uint64, name string) (string, bool) {
	const ofNone = "__ANON__" // what Perl says then
	if stash == 0 {
		return ofNone + "::" + name, true
	}
	of, ok := vm.stashName(stash)
	return of + "::" + name, ok
}

// gv reads the name and the stash of a GV.
func (vm *machine) gv(at uint64) (name string, stash uint64, ok bool) {
	var sv [svBytes]byte
	var body [gvBytes]byte
	le := binary.LittleEndian
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, sv[:]) || le.Uint32(sv[svFlags:])&svKind != kindGV || !vm.ReadNow(le.Uint64(sv[svBody:]), body[:]) {
		return "", 0, false
	}
	name, ok = vm.hek(le.Uint64(body[gvName:]))
	return name, le.Uint64(body[gvStash:]), ok
}

// stashName reads the name of a package: one, or an array of such with their number, which is
// negative where the first one is not in use.
func (vm *machine) stashName(at uint64) (string, bool) {
	var sv [svBytes]byte
	var body [hvBytes]byte
	le := binary.LittleEndian
	if at%8 != 0 || !vm.ReadNow(at, sv[:]) {
		return "", false
	}
	flags, bodyAt := le.Uint32(sv[svFlags:]), le.Uint64(sv[svBody:])
	if flags&svKind != kindHV || flags&svHasAux == 0 || !vm.ReadNow(bodyAt, body[:]) {
		return "", false
	}
	aux := bodyAt + hvBytes
	if !vm.fields.nameInBody {
		aux = le.Uint64(sv[svAny:]) + 8*(le.Uint64(body[hvMax:])+1)
	}
	const count = 28
	name, ok := vm.WordNow(aux)
	var names [4]byte
	if !ok || name == 0 || !vm.ReadNow(aux+count, names[:]) {
		return "", false
	}
	switch n := int32(le.Uint32(names[:])); {
	case n > 0:
		name, ok = vm.WordNow(name)
	case n < -1:
		name, ok = vm.WordNow(name + 8)
	case n == -1:
		return "", false
	}
	if !ok {
		return "", false
	}
	return vm.hek(name)
}

// hek reads a name as Perl shares them. Behind the text and a zero there is whether it is UTF-8, else
// it is Latin-1.
func (vm *machine) hek(at uint64) (string, bool) {
	var head [hekText]byte
	if at == 0 || !vm.ReadNow(at, head[:]) {
		return "", false
	}
	n := binary.LittleEndian.Uint32(head[hekLength:])
	if n == 0 || n > maxName {
		return "", false
	}
	b := make([]byte, n+2)
	if !vm.ReadNow(at+hekText, b) || b[n] != 0 {
		return "", false
	}
	const isUTF8 = 1
	text := string(b[:n])
	if b[n+1]&isUTF8 == 0 {
		var out strings.Builder
		for _, c := range b[:n] {
			out.WriteRune(rune(c))
		}
		text = out.String()
	}
	return text, vmread.IsPrintable(text)
}
