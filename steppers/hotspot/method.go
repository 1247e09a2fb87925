package hotspot

import (
	"encoding/binary"
	"path"
	"strings"
	"time"
	"unsafe"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/javacode"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// What frames of Java run is read from the process when they are first met: by then, in
// a recording some tenths of a second later, a class can have been unloaded, which is rare,
// and its memory be another's. What does not fit together has no name.

// methodNames are what is known of a virtual machine's methods.
type methodNames struct {
	codes   map[javaCode]uint32 // numbers in unwind.Codes; 0 where there is no telling
	resets  int                 // of these
	methods map[uint64]*javaMethod
	size    int // of these, in bytes, about
	pace    vmread.Pace

	tells   struct{ known, all bool } // see tellsAll
	version uint64                    // of the release; 0: not read
	scopes  javaScopes
	kept    [keptScopes]javaScopes // by a hash of their header
	chains  [2][]javaCall
}

// javaCode is what a frame runs: a place in an nmethod or, interpreted, in bytecode, or a
// stub, for which there is no method.
type javaCode struct {
	method uint64
	at     uint64 // the PC, or where the bytecode is; name of a stub
	id     uint64 // of the nmethod, times two, plus 1 where it was interrupted; else interpretedCode
}

const (
	interpretedCode = 1 << 63
	notCopiedCode   = 1<<63 + 1
)

// javaNotCopied stands for frames of a virtual thread that are in the heap.
var javaNotCopied = unwind.CodeFunction{Name: "[not copied]", SystemName: "[not copied]", Runtime: javaRuntime}

// javaMethod is a Method.
type javaMethod struct {
	addr      uint64
	function  *unwind.CodeFunction // nil: there is none
	constant  uint64               // its ConstMethod
	bytecodes uint64               // address
	size      uint64               // of these
	lines     []bytecodeLine
	checked   time.Time // when constant was seen to be that
}

// bytecodeLine tells the line from a bytecode on.
type bytecodeLine struct{ bci, line int }

// javaRuntime is the CodeFunction.Runtime of Java.
const javaRuntime = "java"

// Limits on what is read of the names of methods.
const (
	maxJavaMethods = 1 << 16
	maxJavaCodes   = 1 << 18
	maxLineTable   = 1 << 16 // bytes
	maxJavaNames   = 1 << 14 // bytes that reading a method is counted for
	hasLineTable   = 1       // ConstMethod::_flags
)

// codeOf returns the number of what f runs, which is in b, in w.Codes; 0 where there is no
// telling.
func (s *Stepper) codeOf(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) uint32 {
	n, codes := &vm.names, w.Codes()
	if vm.fields.method == nil {
		return 0
	}
	if n.codes == nil || n.resets != codes.Resets() {
		n.codes, n.resets = map[javaCode]uint32{}, codes.Resets()
	}
	interrupted := f.Flags&unwind.Interrupted != 0
	key := javaCode{at: b.name}
	pc := f.PC()
	switch {
	case b.method != 0:
		if !interrupted && pc == b.deopt {
			if before, ok := w.ProcessState().ReadWord(f.SP() + uint64(b.origPC)); ok && before-b.begin < b.end-b.begin {
				pc = before
			}
		}
		key = javaCode{b.method, pc, 2 * uint64(b.id)}
		if interrupted {
			key.id++
		}
	case b.interpreter:
		if method, bytecode, ok := s.interpretedMethod(w, vm, b, f); ok {
			key = javaCode{method, bytecode, interpretedCode}
		}
	}
	number, known := n.codes[key]
	if known || len(n.codes) >= maxJavaCodes || !n.pace.May(0) {
		return number
	}
	start, lines := b.begin, []unwind.CodeLine(nil)
	switch {
	case key.id == interpretedCode:
		if m := vm.methodAt(key.method); m != nil {
			start, lines = 0, []unwind.CodeLine{m.lineAt(int(key.at - m.bytecodes))}
		}
	case key.method != 0:
		lines = vm.compiledLines(b, pc, interrupted)
	}
	if name := vm.blobName(b); len(lines) == 0 && name != "" && key.method == 0 {
		lines = []unwind.CodeLine{{CodeFunction: &unwind.CodeFunction{Name: name, SystemName: name, Runtime: javaRuntime}}}
	}
	number = codes.Add(start, lines, 0)
	n.codes[key] = number
	return number
}

// notCopied returns the number of what stands for frames of a virtual thread that are in the heap.
func (vm *machine) notCopied(w *unwind.Walker) uint32 {
	n, codes := &vm.names, w.Codes()
	if n.codes == nil || n.resets != codes.Resets() {
		n.codes, n.resets = map[javaCode]uint32{}, codes.Resets()
	}
	number, known := n.codes[javaCode{id: notCopiedCode}]
	if !known {
		number = codes.Add(0, []unwind.CodeLine{{CodeFunction: &javaNotCopied, IsCompiled: true}}, 0)
		n.codes[javaCode{id: notCopiedCode}] = number
	}
	return number
}

// interpretedMethod returns the Method that f runs, which is in the interpreter, and where
// its bytecode is. ok is false where f has no frame yet, or no whole one, or is called by the
// interpreter itself, in the frame of a method.
func (s *Stepper) interpretedMethod(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) (method, bytecode uint64, ok bool) {
	fp, known := f.Regs.Value(w.Arch().FP)
	if !known {
		return 0, 0, false
	}
	interrupted := f.Flags&unwind.Interrupted != 0
	if interrupted {
		if m, _, ok := s.entered(w, vm, b, f); ok {
			if m == nil {
				return 0, 0, false
			}
			return m.addr, m.bytecodes - 1, true
		}
	}
	_, words, ok := javacode.SenderSP(w, f.SP(), fp)
	switch {
	case ok && w.Arch().LR == procstate.NoReg && s.inCallVM(w, b, f):
		return 0, 0, false
	case !ok, interrupted && !s.hasFrame(w, vm, f):
		return 0, 0, false
	}
	mem := w.ProcessState()
	method, ok = mem.ReadWord(fp - javacode.MethodWord)
	bytecode, _ = mem.ReadWord(fp - words.Bytecode)
	if interrupted {
		bytecode, _ = f.Regs.Value(codeRegsOf(w.Arch()).bytecode)
	}
	return method, bytecode, ok && method != 0
}

// hasFrame reports whether f, which was interrupted in the interpreter, has a frame that the frame pointer points into:
// by the code, or where that does not tell by the register with the address of a bytecode, which is of the frame's
// method.
func (s *Stepper) hasFrame(w *unwind.Walker, vm *machine, f *unwind.Frame) bool {
	if set, known := s.isFrameSet(w, f); known {
		return set
	}
	bytecode, ok1 := f.Regs.Value(codeRegsOf(w.Arch()).bytecode)
	method, ok2 := w.ProcessState().ReadWord(f.FP() - javacode.MethodWord)
	if !ok1 || !ok2 || vm.fields.method == nil {
		return false
	}
	m := vm.methodAt(method)
	return m != nil && bytecode-m.bytecodes < m.size
}

// entered returns the Method to which f, which was interrupted in the interpreter, has come, but of which it has no frame
// yet, or not all of one, and its caller. Two registers have the address of the Method and the caller's SP, or when that
// was pushed, where the Method has its bytecodes. The return address is on the stack, or in a register while the
// arguments are made variables.
func (s *Stepper) entered(w *unwind.Walker, vm *machine, b *codeBlob, f *unwind.Frame) (m *javaMethod, caller javaRegs, ok bool) {
	if w.Arch().LR != procstate.NoReg {
		return s.enteredByLink(w, vm, b, f)
	}
	regs := codeRegsOf(w.Arch())
	method, ok1 := f.Regs.Value(regs.method)
	sp, ok2 := f.Regs.Value(regs.bytecode)
	if f.Flags&unwind.Interrupted == 0 || !ok1 || !ok2 || vm.fields.method == nil {
		return nil, caller, false
	}
	mem, at, fp := w.ProcessState(), f.SP(), f.FP()
	isNear := sp-at < javacode.MaxLocals && sp%8 == 0
	isBuilt := fp-at < vm.fields.interp.InitialSP // the frame pointer points into the frame
	if !isNear && !isBuilt {
		return nil, caller, false
	}
	if m = vm.methodAt(method); m == nil || !isNear && sp != m.constant && sp != m.bytecodes {
		return nil, caller, false
	}
	var mayBe [2]javaRegs
	first, _ := mem.ReadWord(at)
	switch {
	case isBuilt && (!isNear || fp < sp):
		if !isNear {
			sp, _ = mem.ReadWord(fp - javacode.SenderWord)
			if fp == at || sp-fp-16 >= javacode.MaxLocals || sp%8 != 0 {
				return nil, caller, false
			}
		}
		ra, _ := mem.ReadWord(fp + 8)
		callerFP, _ := mem.ReadWord(fp)
		mayBe[0] = javaRegs{ra, sp, callerFP, unwind.InMemory(fp + 8)}
	case fp-at < sp-at:
		return nil, caller, false
	case first == fp: // pushed below the return address
		second, _ := mem.ReadWord(at + 8)
		mayBe[0] = javaRegs{second, sp, fp, unwind.InMemory(at + 8)}
	default:
		popped, _ := f.Regs.Value(regs.popped)
		mayBe = [...]javaRegs{{first, sp, fp, unwind.InMemory(at)}, {popped, sp, fp, unwind.InRegister(regs.popped)}}
	}
	for _, caller = range mayBe {
		if vm.blobAt(caller.pc-1) != nil && javacode.MayReturnTo(w, caller.pc, s.buf[:]) {
			return m, caller, true
		}
	}
	return nil, caller, false
}

// inCallVM reports whether f, in the interpreter, is in what calls the virtual machine from it,
// which is called itself, so that there is a return address (MacroAssembler::call_VM):
//
//	call 1f
//	jmp  2f
//	1: what sets out for the call, the call, and a return
//	2:
func (s *Stepper) inCallVM(w *unwind.Walker, b *codeBlob, f *unwind.Frame) bool {
	const most = 256 // bytes of that
	mem, m := w.ProcessState(), w.MappingAt(f.LookupPC())
	for at := f.SP(); at-f.SP() <= 8; at += 8 { // it aligns SP
		ra, ok := mem.ReadWord(at)
		if !ok || ra <= b.begin || ra >= f.PC() || f.PC()-ra > most || !m.Contains(ra-mcode.MaxCallLen) {
			continue
		}
		code := mcode.Read(w, m, ra-mcode.MaxCallLen, s.buf[:mcode.MaxCallLen])
		if target, direct, call := mcode.CallBefore(w.Arch(), code, ra); call && direct && target-ra <= f.PC()-ra {
			return true
		}
	}
	return false
}

// blobName returns the name of a stub.
func (vm *machine) blobName(b *codeBlob) string {
	var text [64]byte
	if !vm.read(b.name, text[:]) {
		return ""
	}
	name, _, _ := strings.Cut(string(text[:]), "\x00")
	if len(name) == len(text) || !vmread.IsPrintable(name) {
		return ""
	}
	return name
}

// methodInterval is after which a Method is looked at again.
const methodInterval = 100 * time.Millisecond

// methodAt returns a Method, nil where there is none.
func (vm *machine) methodAt(addr uint64) *javaMethod {
	n, f, now := &vm.names, vm.fields.method, time.Now()
	m := n.methods[addr]
	if m == nil || now.Sub(m.checked) >= methodInterval {
		constant, ok := vm.word(addr + f.constMethod)
		switch {
		case !ok && m != nil && m.function != nil && vm.hasEnded():
			return m
		case !ok, addr%8 != 0:
			return nil
		}
		if m == nil || m.function == nil || m.constant != constant {
			if !n.pace.May(maxJavaNames) {
				return nil
			}
			if n.methods == nil || len(n.methods) >= maxJavaMethods || n.size >= vmread.MaxKept {
				n.methods, n.size = map[uint64]*javaMethod{}, 0
			}
			if m = vm.readMethod(constant); m == nil {
				m = &javaMethod{} // as it is now
			}
			m.addr = addr
			n.methods[addr] = m
		}
		m.checked = now
	}
	if m.function == nil {
		return nil
	}
	return m
}

// hasEnded reports whether the process has ended, as nothing of it can be read: what is known stays so.
func (vm *machine) hasEnded() bool {
	_, ok := vm.word(vm.fields.heaps + vm.bias)
	return !ok
}

// readMethod reads what a ConstMethod says; nil where it is none.
func (vm *machine) readMethod(constant uint64) *javaMethod {
	f, le := vm.fields.method, binary.LittleEndian
	head := make([]byte, f.constBytes+8)
	if constant%8 != 0 || !vm.read(constant, head) {
		return nil
	}
	u16 := func(off uint64) uint64 { return uint64(le.Uint16(head[off:])) }
	pool := le.Uint64(head[f.constants:])
	poolHead := make([]byte, f.poolBytes+8)
	if !vm.read(pool, poolHead) {
		return nil
	}
	text := func(index uint64) string {
		if index == 0 || index >= uint64(le.Uint32(poolHead[f.poolLen:])) {
			return ""
		}
		at, _ := vm.word(pool + f.poolBytes + 8*index)
		return vm.symbol(at)
	}
	m := &javaMethod{constant: constant, bytecodes: constant + f.constBytes, size: u16(f.codeSize)}
	holder := le.Uint64(poolHead[f.poolHolder:])
	class, _ := vm.word(holder + f.className)
	className, name, signature := vm.symbol(class), text(u16(f.nameIndex)), text(u16(f.signature))
	if !vmread.IsPrintable(name) || !vmread.IsPrintable(className) || !strings.HasPrefix(signature, "(") {
		return nil
	}
	m.function = &unwind.CodeFunction{
		Name:       javaClass(className) + "." + name,
		Parameters: javaParameters(signature),
		SystemName: className + "." + name + signature,
		Runtime:    javaRuntime,
	}
	sourceFile := uint64(0)
	if f.sourceFile != 0 {
		sourceFile = uint64(le.Uint16(poolHead[f.sourceFile:]))
	} else if f.classSourceFile != 0 {
		sourceFile, _ = vm.word(holder + f.classSourceFile)
		sourceFile &= 1<<16 - 1
	}
	if file := text(sourceFile); vmread.IsPrintable(file) {
		m.function.File = path.Join(path.Dir(className), file)
	}
	table := m.bytecodes + m.size
	end := constant + 8*uint64(le.Uint32(head[f.constWords:]))
	if u16(f.constFlags)&hasLineTable != 0 && end > table {
		b := make([]byte, min(end-table, maxLineTable))
		if vm.read(table, b) {
			m.lines = lineTable(b, vm.compressed())
		}
	}
	n := &vm.names
	n.size += len(m.function.Name) + len(m.function.Parameters) + len(m.function.SystemName) + len(m.function.File) + len(m.lines)*int(unsafe.Sizeof(bytecodeLine{}))
	for _, l := range m.lines {
		if m.function.StartLine == 0 || l.line < m.function.StartLine {
			m.function.StartLine = l.line
		}
	}
	return m
}

// symbol returns the text of a Symbol, "" where it is none.
func (vm *machine) symbol(at uint64) string {
	f := vm.fields.method
	const most = 64 // bytes of text that are read at once
	head := vm.buf[:f.symbolBody+most]
	if at == 0 || !vm.read(at, head) {
		head = head[:max(f.symbolBody, f.symbolLen+2)] // memory may end behind it
		if at == 0 || !vm.read(at, head) {
			return ""
		}
	}
	n := uint64(binary.LittleEndian.Uint16(head[f.symbolLen:]))
	if f.symbolBody+n <= uint64(len(head)) {
		return vmread.ValidText(head[f.symbolBody : f.symbolBody+n])
	}
	text := make([]byte, n)
	if !vm.read(at+f.symbolBody, text) {
		return ""
	}
	return vmread.ValidText(text)
}

// javaClass returns the name of a class as in the source. Classes that have no name of
// their own, as those of lambdas, have an address in it, which is another each time.
func javaClass(name string) string {
	if i := strings.Index(name, "+0x"); i > 0 {
		name = name[:i]
	}
	return strings.ReplaceAll(name, "/", ".")
}

// javaParameters returns the parameters of a descriptor, "" where it is none.
func javaParameters(descriptor string) string {
	primitive := map[byte]string{'B': "byte", 'C': "char", 'D': "double", 'F': "float", 'I': "int", 'J': "long", 'S': "short", 'Z': "boolean"}
	var out []string
	rest, arrays := strings.TrimPrefix(descriptor, "("), ""
	for rest != "" && rest[0] != ')' {
		name, ok := primitive[rest[0]]
		switch {
		case rest[0] == '[':
			arrays += "[]"
			rest = rest[1:]
			continue
		case rest[0] == 'L':
			if name, rest, ok = strings.Cut(rest[1:], ";"); !ok {
				return ""
			}
			name = javaClass(name)
		case ok:
			rest = rest[1:]
		default:
			return ""
		}
		out = append(out, name+arrays)
		arrays = ""
	}
	return "(" + strings.Join(out, ", ") + ")"
}

// lineAt returns the line of a bytecode; there is none where it is outside of the method.
// -1 is the method's entry.
func (m *javaMethod) lineAt(bci int) unwind.CodeLine {
	l := unwind.CodeLine{CodeFunction: m.function}
	if bci == -1 {
		bci = 0
	}
	if uint64(bci) >= m.size {
		return l
	}
	best := -1
	for _, at := range m.lines {
		if at.bci <= bci && at.bci >= best {
			best, l.Line = at.bci, at.line
		}
	}
	return l
}

// lineTable reads a table of lines (CompressedLineNumberReadStream).
func lineTable(b []byte, c compressed) (lines []bytecodeLine) {
	bci, line := 0, 0
	for len(b) > 0 && b[0] != 0 {
		pair := b[0]
		b = b[1:]
		if pair != 0xff {
			bci += int(pair >> 3)
			line += int(pair & 7)
		} else {
			var steps [2]int
			for i := range steps {
				v, n := c.read(b)
				if n == 0 {
					return lines
				}
				b = b[n:]
				steps[i] = int(int32(v>>1) ^ -int32(v&1))
			}
			bci += steps[0]
			line += steps[1]
		}
		lines = append(lines, bytecodeLine{bci, line})
	}
	return lines
}

// compressed is how HotSpot stores integers in few bytes (UNSIGNED5): six bits in each that
// another follows. From JDK 20 on no byte is 0.
type compressed struct{ excluded uint32 }

const (
	compressedBits = 6
	compressedMax  = 5 // bytes
)

// compressed returns how the virtual machine stores integers.
func (vm *machine) compressed() compressed {
	if vm.release() >= 20 {
		return compressed{1}
	}
	return compressed{}
}

// release returns the number of the release, 1 where it is not known.
func (vm *machine) release() uint64 {
	if vm.names.version == 0 {
		v, _ := vm.word(vm.fields.method.version + vm.bias)
		vm.names.version = max(v&0xffffffff, 1)
		if vm.fields.oneHeap {
			vm.names.version = 8 // which calls itself 25
		}
	}
	return vm.names.version
}

// read reads the integer that b begins with, of n bytes; n is 0 when there is none.
func (c compressed) read(b []byte) (v uint32, n int) {
	lowest := 256 - c.excluded - 1<<compressedBits // of those that another byte follows
	for n < len(b) {
		digit := uint32(b[n]) - c.excluded
		if digit > 255 {
			return 0, 0
		}
		v += digit << (compressedBits * n)
		n++
		if digit < lowest || n == compressedMax {
			return v, n
		}
	}
	return 0, 0
}
