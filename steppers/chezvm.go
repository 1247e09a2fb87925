package steppers

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf8"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// chezImage is what is known of a file that may be Chez Scheme's runtime, or have it: link-time addresses.
type chezImage struct {
	invoke uint64   // S_generic_invoke; 0: it is none
	words  []uint64 // that have the code objects by which C calls Scheme
}

// findChezImage looks for the runtime in a file. It exports what C may call.
func findChezImage(im *procstate.Image) (p chezImage) {
	const around = 4 << 10                               // bytes of S_call_help and what was split off
	const movRSI, call, movLen = "\x48\x8b\x35", 0xe8, 7 // mov n(%rip),%rsi
	if _, ok := im.ExportedSymbol("Sscheme_init"); !ok || im.Arch() != procstate.AMD64 {
		return p
	}
	help, ok1 := im.ExportedSymbol("S_call_help")
	invoke, ok2 := im.ExportedSymbol("S_generic_invoke")
	if !ok1 || !ok2 {
		return p
	}
	code := make([]byte, around)
	for len(code) > movLen && im.ReadVaddr(code, help.Value) != nil {
		code = code[:len(code)/2]
	}
	rel := func(at int) uint64 { // the address that the 32 bits there lead to, which an instruction ends with
		return help.Value + uint64(at) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(code[at:]))))
	}
	for i := movLen; i+5 <= len(code); i++ {
		if code[i] == call && rel(i+1) == invoke.Value && bytes.HasPrefix(code[i-movLen:], []byte(movRSI)) {
			p.words = append(p.words, rel(i-4))
		}
	}
	if len(p.words) > 0 {
		p.invoke = invoke.Value
	}
	return p
}

// chezVM is what is known of Scheme in a process.
type chezVM struct {
	runtime *procstate.Image // nil: there is none
	invoke  uint64           // link-time address of S_generic_invoke
	words   []uint64         // run-time addresses of those that have the code objects by which C calls Scheme
	vmMemory

	w          *unwind.Walker
	walk       uint64 // the last for which it was known to be there
	generation uint32 // of the mappings then

	layout  chezLayout // of headers
	context chezContextLayout
	points  map[uint64]chezPoint // by return address
	codes   map[uint64]chezName  // by PC
	funcs   map[string]*unwind.CodeFunction
	resets  int
	asked   framesAsked

	// Of the walk:
	thread   uint64           // the thread's context; 0: not known
	lacks    bool             // the stack was not copied
	isLinked bool             // segments of continuations are walked,
	link     uint64           // and the next one is this,
	segment  []byte           // which is of segment,
	start    uint64           // from there on
	segments uint64           // bytes of all
	invokes  []chezCodeObject // by which C calls Scheme; nil: not read yet

	code      chezCode
	paths     []chezPath
	seen      addrSet
	before    []byte // code before a place
	buffer    []byte // for segments
	reads     map[uint64]*chezRead
	keptReads int // bytes of these, about
}

// chezCodeObject is the run-time address of a code object.
type chezCodeObject = uint64

// Limits on what is kept of a process, and on what is read.
const (
	maxChezPoints   = 1 << 16
	maxChezCodes    = 1 << 17
	maxChezSegments = 1 << 20 // bytes of continuations in a walk
	maxChezKept     = 4 << 20 // bytes of continuations that are kept
	maxChezFrame    = 1 << 20 // bytes
	maxChezCode     = 64 << 20
	maxChezName     = 512 // characters

	maxChezLinks          = 1 << 10 // continuations that are copied
	chezContinuationBytes = 64

	maxChezTouched = 256 << 10 // bytes of a segment of which pages are made

	chezRuntime = "scheme"
)

// machine returns what is known of Scheme in the process that w walks, nil where there is none.
func (s *Chez) machine(w *unwind.Walker) *chezVM {
	vm, _ := w.Kept(s).(*chezVM)
	if vm == nil || vm.walk != w.Walks() {
		libs := w.ProcessState().Libraries()
		generation, ok := generationOf(libs)
		if vm == nil || !ok || generation != vm.generation {
			if vm = s.find(libs, vm); vm.points == nil {
				vm.vmMemory, vm.asked = vmMemoryOf(w), framesAsked{}
				vm.points, vm.codes = map[uint64]chezPoint{}, map[uint64]chezName{}
			}
			vm.generation = generation
			w.Keep(s, vm)
		}
		vm.w, vm.walk = w, w.Walks()
		vm.thread, vm.lacks, vm.isLinked, vm.link, vm.segment, vm.segments, vm.invokes = 0, false, false, 0, nil, 0, nil
	}
	if vm.runtime == nil {
		return nil
	}
	return vm
}

// find looks for the runtime among libraries; what is known of it stays.
func (s *Chez) find(libs procstate.LibraryState, known *chezVM) *chezVM {
	vm := &chezVM{}
	if libs == nil {
		return vm
	}
	for _, lib := range libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		p := s.image(lib.Image)
		if p.invoke == 0 {
			continue
		}
		vm.runtime, vm.invoke = lib.Image, p.invoke
		for _, word := range p.words {
			vm.words = append(vm.words, word+lib.Bias)
		}
		if known != nil && known.runtime == vm.runtime && slices.Equal(known.words, vm.words) {
			return known
		}
		break
	}
	return vm
}

// image returns what is known of a file.
func (s *Chez) image(im *procstate.Image) *chezImage { return s.images.known(im, findChezImage) }

// chezLayout is how headers of places of return are laid out, which changed twice.
type chezLayout uint8

const (
	chezUnknown chezLayout = iota
	chezPlain              // livemask, toplink, frame-size, mv-return-address: up to 9.5
	chezCompact            // Racket's, and 10: toplink, mv-return-address, livemask, frame-size
	chezLater              // or mv-return-address, livemask, toplink, frame-size; both mostly toplink, mask+size+mode
)

// Tags of code objects: the low byte of their first word.
const (
	chezPlainCode   = 0x3e
	chezCompactCode = 0xbe
	chezCodeHead    = 64 // bytes before their code

	chezSystemCode       = 1 << 8 // flags
	chezContinuationCode = 2 << 8
)

// chezPoint is a place of return: the size of the frame that goes on there in bytes, 0 for that of underflow, and
// the code object that it is in.
type chezPoint struct {
	size, code uint64
	header     [32]byte
}

// headerLen returns the bytes of a header in front of a place of return, by the last of them.
func (l chezLayout) headerLen(header []byte) int {
	if l != chezPlain && header[len(header)-8]&1 != 0 {
		return 16
	}
	return 32
}

// pointAt returns the place of return at an address.
func (vm *chezVM) pointAt(ra uint64) (p chezPoint, ok bool) {
	m := vm.w.MappingAt(ra - 1)
	if m == nil || m.Image != nil || ra-m.Start < uint64(len(p.header)) {
		return p, false
	}
	if len(readCode(vm.w, m, ra-uint64(len(p.header)), p.header[:])) < len(p.header) {
		return p, false
	}
	if known, ok := vm.points[ra]; ok && vm.layout != chezUnknown {
		n := vm.layout.headerLen(p.header[:])
		if bytes.Equal(known.header[len(p.header)-n:], p.header[len(p.header)-n:]) {
			return known, true
		}
	}
	layouts := []chezLayout{vm.layout}
	if vm.layout == chezUnknown {
		layouts = []chezLayout{chezPlain, chezCompact, chezLater}
	}
	for _, l := range layouts {
		if found := p; vm.parse(l, ra, &found) {
			if vm.layout == chezUnknown && l.headerLen(p.header[:]) == 32 {
				vm.layout = l // the compact ones are the same in two
			}
			if len(vm.points) >= maxChezPoints {
				clear(vm.points)
			}
			vm.points[ra] = found
			return found, true
		}
	}
	return p, false
}

// parse takes a header apart.
func (vm *chezVM) parse(l chezLayout, ra uint64, p *chezPoint) bool {
	word := func(before int) uint64 { return binary.LittleEndian.Uint64(p.header[len(p.header)-before:]) }
	top, tag := 0, uint64(chezCompactCode)
	switch last := word(8); {
	case l == chezPlain:
		top, tag, p.size = 24, chezPlainCode, word(16)
	case last&1 != 0:
		const words = 31
		top, p.size = 16, last>>2&words*8
	case l == chezCompact:
		top, p.size = 32, last
	default:
		top, p.size = 16, last
	}
	object := ra - uint64(top) - word(top) + 1 // pointers to objects of that kind are tagged by -1
	if word(top) >= maxChezCode || p.size%8 != 0 || p.size > maxChezFrame || object%16 != 0 {
		return false
	}
	kind, ok := vm.codeObject(object, ra)
	p.code = object
	return ok && kind&0xff == tag && (p.size > 0 || kind&chezSystemCode != 0)
}

// codeObject returns the first word of a code object, if it is one that has code at an address, or right before.
func (vm *chezVM) codeObject(object, pc uint64) (kind uint64, ok bool) {
	const most = 1 << 16
	var head [16]byte
	m := vm.w.MappingAt(object)
	if m == nil || m.Image != nil || len(readCode(vm.w, m, object, head[:])) < len(head) {
		return 0, false
	}
	kind, size := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	isCode := kind < most && (kind&0xff == chezPlainCode || kind&0xff == chezCompactCode)
	return kind, isCode && size < maxChezCode && pc >= object+chezCodeHead && pc-object-chezCodeHead <= size
}

// pointBehind returns the place of return whose header stands at an address, or behind what a jump is filled up with.
func (vm *chezVM) pointBehind(addr uint64) (p chezPoint, ok bool) {
	const fill = "\x0f\x1f\x80\x00\x00\x00\x00" // nopl 0(%rax)
	code := vm.codeAt(addr)
	for {
		if len(code) < 32 {
			return p, false
		}
		for _, n := range [...]int{16, 32} {
			last := code[n-8:]
			if vm.layout != chezPlain && (n == 16) != (last[0]&1 != 0) {
				continue
			}
			if p, ok = vm.pointAt(addr + uint64(n)); ok {
				return p, true
			}
		}
		if !bytes.HasPrefix(code, []byte(fill)) {
			return p, false
		}
		addr, code = addr+uint64(len(fill)), code[len(fill):]
	}
}

// stackWord returns a word of Scheme's stack.
func (vm *chezVM) stackWord(addr uint64) (uint64, bool) {
	if vm.isLinked {
		if o := addr - vm.start; o < uint64(len(vm.segment)) && uint64(len(vm.segment))-o >= 8 {
			return binary.LittleEndian.Uint64(vm.segment[o:]), true
		}
		return 0, false
	}
	return vm.word(addr)
}

// chezContextLayout is where words of a thread's context are, in bytes.
type chezContextLayout struct {
	frame uint64 // where the stack pointer is kept while functions of C run; 0: it is not known
	end   uint64 // the end of the segment, but for some room
	start uint64 // its beginning
	link  uint64 // the continuation before
}

const chezContextBytes = 64 * 8

// find finds out what is where in a context, by what it holds.
func (l *chezContextLayout) find(read reader, context uint64) bool {
	const most, room = 16, 16 << 10 // words before the stack's end, and bytes behind
	if l.frame != 0 {
		return true
	}
	var buf [chezContextBytes]byte
	if context%8 != 0 || !read(context, buf[:]) {
		return false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(buf[8*i:]) }
	var found chezContextLayout
	for i := most; i+3 < len(buf)/8; i++ {
		start, link, size := word(i), word(i+2), word(i+3)
		if start == 0 || (start|size)%8 != 0 || link&7 != 5 || size == 0 || size > 1<<40 {
			continue
		}
		for j := 3; j < most; j++ {
			end := word(j)
			if behind := start + size - end; end <= start || end%8 != 0 || behind == 0 || behind > room {
				continue
			}
			if found.frame != 0 {
				return false
			}
			const between = 2 // words from the stack pointer's on
			found = chezContextLayout{uint64(8 * (j - between)), uint64(8 * j), uint64(8 * i), uint64(8 * (i + 2))}
		}
	}
	*l = found
	return found.frame != 0
}

// noteContext takes note of the context of the thread that is walked.
func (vm *chezVM) noteContext(in *unwind.Frame) {
	if v, ok := in.Regs.Value(chezContext); ok && vm.thread == 0 {
		vm.thread = v
	}
}

// goOn returns where a continuation goes on that is behind the beginning of a segment, and what R13 is there. A
// return address of 0 is that of the continuation that is none.
func (vm *chezVM) goOn(frame uint64) (ra, at uint64, ok bool) {
	link := vm.link
	if !vm.isLinked {
		if vm.thread == 0 || !vm.context.find(vm.readNow, vm.thread) {
			return 0, 0, false
		}
		start, ok1 := vm.word(vm.thread + vm.context.start)
		next, ok2 := vm.word(vm.thread + vm.context.link)
		if !ok1 || !ok2 {
			vm.lacks = true
			return 0, 0, false
		}
		if link = next; start != frame {
			return 0, 0, false
		}
	} else if frame != vm.start {
		return 0, 0, false
	}
	k, segment, ok := vm.continuation(link)
	if !ok {
		return 0, 0, false
	}
	vm.isLinked, vm.link, vm.start, vm.segment, ra = true, k.link, k.stack, segment, k.ra
	switch {
	case k.isNone():
		return 0, 0, true
	case !vm.isWhole(ra):
		return 0, 0, false
	}
	return ra, k.stack + k.size, true
}

// chezContinuation is what a continuation has.
type chezContinuation struct {
	code  uint64 // of what goes on with it
	stack uint64 // its segment of a stack
	whole uint64 // bytes of that, a negative number when it is used up
	size  uint64 // and of those that have frames
	link  uint64 // the continuation behind it, tagged
	ra    uint64 // where it goes on
}

// isNone reports whether a continuation is that which has no frames.
func (k *chezContinuation) isNone() bool { return k.stack == 0 && k.link == 0 && k.ra == 0 }

// chezRead is a continuation as it was read from the running process.
type chezRead struct {
	chezContinuation
	segment []byte
	since   uint64 // ns of CLOCK_MONOTONIC, from which on it was the same whenever it was read
}

// readChez reads a continuation, without its segment.
func readChez(read reader, link uint64) (k chezContinuation, ok bool) {
	const closure, tag = 7, 5
	var b [6 * 8]byte
	if link&closure != tag || !read(link+8-tag, b[:]) {
		return k, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	k = chezContinuation{code: word(0), stack: word(1), whole: word(2), size: word(3), link: word(4), ra: word(5)}
	if k.isNone() {
		k.size = 0
		return k, true
	}
	return k, k.size != 0 && k.size <= k.whole && k.whole <= maxChezCode && (k.size|k.stack)%8 == 0 && k.size <= maxChezSegments
}

// continuation returns what a continuation had at the moment of the capture, and its segment, valid until the next call.
// Where it was not captured, garbage collection may have moved it since, and another be there: it has to be the same as
// it was when it was read before that moment.
func (vm *chezVM) continuation(link uint64) (k chezContinuation, segment []byte, ok bool) {
	if k, ok = readChez(vm.read, link); ok && vm.mayRead(&k) && (k.isNone() || vm.read(k.stack, vm.segmentOf(&k))) {
		return k, vm.segmentOf(&k), true
	}
	if k, ok = readChez(vm.readNow, link); !ok || !vm.mayRead(&k) || !k.isNone() && !vm.readNow(k.stack, vm.segmentOf(&k)) {
		return k, nil, false
	}
	segment = vm.segmentOf(&k)
	known := vm.reads[link]
	if known == nil || known.chezContinuation != k || !bytes.Equal(known.segment, segment) {
		if vm.keptReads += len(segment) + 128; vm.reads == nil || vm.keptReads > maxChezKept {
			vm.reads, vm.keptReads = map[uint64]*chezRead{}, len(segment)+128
		}
		known = &chezRead{k, slices.Clone(segment), procstate.Monotonic()}
		vm.reads[link] = known
	}
	return k, segment, known.since < vm.taken()
}

// taken returns when the capture was made, 0 where that is not known.
func (vm *chezVM) taken() uint64 {
	if s, ok := vm.w.ProcessState().(interface{ Taken() uint64 }); ok {
		return s.Taken()
	}
	return 0
}

// mayRead reports whether the segment of a continuation may be read in this walk.
func (vm *chezVM) mayRead(k *chezContinuation) bool {
	kind, ok := vm.codeObject(k.code-chezCodeHead, k.code)
	if !ok || kind&chezContinuationCode == 0 || k.size > maxChezSegments-vm.segments {
		return false
	}
	vm.segments += k.size
	return true
}

// segmentOf returns where the segment of a continuation is read to.
func (vm *chezVM) segmentOf(k *chezContinuation) []byte {
	vm.buffer = slices.Grow(vm.buffer[:0], int(k.size))[:k.size]
	return vm.buffer
}

// isWhole reports whether the frames of a continuation's segment, which goes on at an address, lead to its beginning,
// or to where C has called Scheme.
func (vm *chezVM) isWhole(ra uint64) bool {
	for at := vm.start + uint64(len(vm.segment)); ; {
		p, ok := vm.pointAt(ra)
		switch {
		case !ok || !vm.pace.may(1):
			return false
		case p.size == 0:
			return at == vm.start
		case vm.isInvoke(p.code):
			return true
		}
		if at -= p.size; at < vm.start {
			return false
		}
		if ra, ok = vm.stackWord(at); !ok {
			return false
		}
	}
}

// isInvoke reports whether a code object is one by which C calls Scheme.
func (vm *chezVM) isInvoke(object uint64) bool {
	if vm.invokes == nil {
		vm.invokes = []uint64{}
		for _, word := range vm.words {
			if v, ok := vm.wordNow(word); ok {
				vm.invokes = append(vm.invokes, v+1)
			}
		}
	}
	return slices.Contains(vm.invokes, object)
}

// callsScheme reports whether a return address is behind a call of S_generic_invoke.
func (vm *chezVM) callsScheme(ra uint64) bool {
	m := vm.w.MappingAt(ra - 1)
	if m == nil || m.Image != vm.runtime {
		return false
	}
	var code [maxCallLen]byte
	vaddr := ra - m.Bias
	if m.Image.ReadVaddr(code[:], vaddr-maxCallLen) != nil {
		return false
	}
	target, direct, ok := callBefore(procstate.AMD64, code[:], vaddr)
	return ok && direct && target == vm.invoke
}

// objectAt returns the code object that has code at an address: the one that is given, the one that had it before, or
// that which stands before.
func (vm *chezVM) objectAt(pc, given uint64) (object uint64, ok bool) {
	const most, step = 16 << 10, 16
	for _, object := range [...]uint64{given, vm.codes[pc].object} {
		if object != 0 {
			if _, ok := vm.codeObject(object, pc); ok {
				return object, true
			}
		}
	}
	m := vm.w.MappingAt(pc)
	if m == nil || m.Image != nil {
		return 0, false
	}
	from := max(m.Start, pc-min(pc, most)) &^ (step - 1)
	vm.before = slices.Grow(vm.before[:0], most+step)[:pc-from]
	code := readCode(vm.w, m, from, vm.before)
	for at := len(code) - chezCodeHead; at >= 0; at-- {
		if (from+uint64(at))%step != 0 {
			continue
		}
		if kind := binary.LittleEndian.Uint64(code[at:]); kind>>16 != 0 || kind&0xff != chezPlainCode && kind&0xff != chezCompactCode {
			continue
		}
		if _, ok := vm.codeObject(from+uint64(at), pc); ok {
			return from + uint64(at), true
		}
	}
	return 0, false
}

// chezName is the number of what runs at an address, and by what it was found.
type chezName struct {
	object, name uint64
	number       uint32
}

// codeOf returns the number of what runs in a frame, 0 where it has no name.
func (vm *chezVM) codeOf(w *unwind.Walker, pc, object uint64) uint32 {
	const nameAt = 24
	codes := w.Codes()
	if vm.resets != codes.Resets() || len(vm.codes) >= maxChezCodes || vm.funcs == nil {
		vm.codes, vm.funcs, vm.resets = map[uint64]chezName{}, map[string]*unwind.CodeFunction{}, codes.Resets()
	}
	at, ok := vm.wordNow(object + nameAt)
	if !ok {
		return 0
	}
	n, known := vm.codes[pc]
	if known && n.object == object && n.name == at {
		return n.number
	}
	n = chezName{object: object, name: at}
	if name := vm.stringAt(at); name != "" {
		f := vm.funcs[name]
		if f == nil {
			f = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: chezRuntime}
			vm.funcs[name] = f
		}
		n.number = codes.Add(object+chezCodeHead, []unwind.CodeLine{{CodeFunction: f, IsCompiled: true}}, 0)
	}
	vm.codes[pc] = n
	return n.number
}

// stringAt returns a string of Scheme, "" where there is none.
func (vm *chezVM) stringAt(at uint64) string {
	const typed, isString, lenShift = 7, 2, 4
	const character, charShift = 0x16, 8
	if at&typed != typed {
		return ""
	}
	head, ok := vm.wordNow(at + 1)
	if n := head >> lenShift; !ok || head&typed != isString || n == 0 || n > maxChezName {
		return ""
	}
	chars := make([]byte, 4*(head>>lenShift))
	if !vm.readNow(at+9, chars) {
		return ""
	}
	var name []byte
	for ; len(chars) > 0; chars = chars[4:] {
		c := binary.LittleEndian.Uint32(chars)
		if c&0xff != character || !utf8.ValidRune(rune(c>>charShift)) {
			return ""
		}
		name = utf8.AppendRune(name, rune(c>>charShift))
	}
	return string(name)
}

// Lacked returns where Scheme has the stack of a thread, if the last walk has come to it and the capture had
// not copied it.
func (s *Chez) Lacked(w *unwind.Walker, tid int) (frames procstate.ThreadFrames, lacks bool) {
	vm, _ := w.Kept(s).(*chezVM)
	if vm == nil || vm.runtime == nil || vm.walk != w.Walks() || !vm.lacks || vm.thread == 0 {
		return frames, false
	}
	if !vm.context.find(vm.readNow, vm.thread) {
		return frames, true
	}
	if _, ask := vm.asked.ask(tid, true, false); !ask {
		return frames, true
	}
	l := &vm.context
	// What Scheme has not yet written to is in no page, and nothing is copied for that: reading makes one.
	start, ok1 := vm.wordNow(vm.thread + l.start)
	end, ok2 := vm.wordNow(vm.thread + l.end)
	if ok1 && ok2 && end > start {
		vm.readNow(start, make([]byte, min(end-start, maxChezTouched)))
	}
	return procstate.ThreadFrames{
		Current: vm.thread + l.frame, Before: int(l.frame), After: int(l.link - l.frame),
		Bounds: vm.thread, Low: int(l.start), High: int(l.end), IsDown: true, // what runs is not far from where it begins
	}, true
}

// Knows reports whether walks of a Walker have met Scheme.
func (s *Chez) Knows(w *unwind.Walker) bool {
	vm, _ := w.Kept(s).(*chezVM)
	return vm != nil && vm.runtime != nil
}

// ChezCollector returns a Collector of what walks need of Scheme; nil where none of the libraries of the process has
// its runtime.
func ChezCollector(libs procstate.LibraryState) procstate.Collector {
	s := NewChez()
	if vm := s.find(libs, nil); vm.runtime == nil {
		return nil
	}
	var layout chezContextLayout
	var pace readPace
	return func(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
		read := reader(func(addr uint64, buf []byte) bool { return pace.may(len(buf)) && readAll(m, addr, buf) })
		collectChez(read, &layout, regs, add)
	}
}

// collectChez adds the context of a thread and its stack. In functions of C the context is what is more than once on
// their stack.
func collectChez(read reader, layout *chezContextLayout, regs *procstate.Regs, add func(addr uint64, n int)) {
	const most = 8 << 10 // bytes of C's stack
	contexts := []uint64{regs.Raw(chezContext)}
	stack := make([]byte, most)
	for len(stack) > 8 && !read(regs.Raw(chezSP), stack) {
		stack = stack[:len(stack)/2]
	}
	seen := map[uint64]int{}
	for ; len(stack) >= 8; stack = stack[8:] {
		const often = 2
		word := binary.LittleEndian.Uint64(stack)
		if seen[word]++; word != 0 && word%8 == 0 && seen[word] == often {
			contexts = append(contexts, word)
		}
	}
	for _, context := range contexts {
		now := chezContextLayout{}
		if !now.find(read, context) || layout.frame != 0 && now != *layout {
			continue
		}
		*layout = now
		add(context, chezContextBytes)
		start, ok1 := read.word(context + now.start)
		end, ok2 := read.word(context + now.end)
		if ok1 && ok2 && end > start {
			add(start, int(min(end-start, maxChezSegments)))
		}
		link, _ := read.word(context + now.link)
		for left, n := uint64(maxChezSegments), 0; n < maxChezLinks; n++ {
			k, ok := readChez(read, link)
			if !ok || k.size > left {
				return
			}
			if add(link, chezContinuationBytes); k.isNone() {
				return
			}
			add(k.stack, int(k.size))
			left -= k.size
			link = k.link
		}
		return
	}
}
