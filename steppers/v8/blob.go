package v8

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"weak"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

// blob is V8's own code in a file that has no symbols of it, as Deno is: the code is embedded in one piece,
// and read-only data say where in it each function is (EmbeddedData in V8's embedded-data.h).
type blob struct {
	code     mcode.Range
	builtins []builtin // by address
	sizes    [3][]byte // of bytecodes, see fields
	version  [2]int    // of V8, major and minor; not of Chromium's

	compressed bool // pointers are, as in Chromium
}

// builtin is one of V8's own functions.
type builtin struct {
	mcode.Range
	name string // as symbols have it
}

// What a file is that may hold V8 without symbols. The dynamic linker of Deno is asked for one of V8's thread-local
// variables, which it has itself: the name is all that is left of V8's symbols. Chromium, and what is made of it, as
// Electron, has a section of its allocator's or one of its own protected data, and much code.
const (
	leftover     = "_ZTHN2v88internal12trap_handler"
	maxDynamic   = 1 << 16  // bytes of names
	minChromium  = 32 << 20 // bytes of code
	maxEmbedding = 1 << 29  // bytes of a segment that is looked through

	window      = 1 << 20                   // bytes that are read of it at a time
	windowAgain = maxBuiltins * layoutBytes // of them are read again with the next ones
)

var chromiumSections = [...]string{"protected_memory", "malloc_hook"}

// Of the table of functions, in order of their numbers, each 12 bytes: where it begins, how long it
// is, and something else.
const (
	layoutBytes  = 12
	layoutHashes = 24 // bytes before it
	minBuiltins  = 1 << 10
	maxBuiltins  = 1 << 13
	maxEmbedded  = 16 << 20 // bytes of code
	blobAlign    = 32       // of functions, or twice that; what is between them is filled with int3
)

// Of the table of what functions are called (BuiltinMetadata in builtins.cc), in the same order.
const (
	metadataBytes = 24
	metadataName  = 0
	lastBuiltins  = "ExtraWideHandler" // what names end in at its end
	someBuiltin   = "\x00InterpreterEntryTrampoline\x00"
)

// mayEmbedV8 tells by its tables whether a file may hold V8 without symbols, and whether it may be Chromium.
func mayEmbedV8(im *procstate.Image) (may, isChromium bool) {
	if im.Arch() != procstate.AMD64 {
		return false, false
	}
	if mcode.Size(im) >= minChromium {
		for _, name := range chromiumSections {
			if _, ok := im.Section(name); ok {
				return true, true
			}
		}
	}
	dynstr, ok := im.Section(".dynstr")
	if !ok || dynstr.Size > maxDynamic {
		return false, false
	}
	names, err := im.SectionBytes(dynstr, maxDynamic)
	return err == nil && bytes.Contains(names, []byte(leftover)), false
}

// constants returns where a file has V8's read-only data, if it has V8: in its section of such, or in segments where there is none.
func constants(im *procstate.Image) (places []mcode.Range) {
	if s, ok := im.Section(".rodata"); ok {
		return []mcode.Range{{Start: s.Vaddr, End: s.Vaddr + min(s.Size, maxEmbedding)}}
	}
	for _, s := range im.Segments() {
		if s.Flags&(elf.PF_W|elf.PF_X) == 0 {
			places = append(places, mcode.Range{Start: s.Vaddr, End: s.Vaddr + min(s.Filesz, maxEmbedding)})
		}
	}
	return places
}

// blobs are what was found in files that may have V8: two steppers ask, and it takes up to a tenth of a second.
var blobs struct {
	sync.Mutex
	of map[weak.Pointer[procstate.Image]]*blob
}

const maxBlobs = 1 << 4

// findBlob looks for V8's own code in a file, once; nil where that is not there, or not all that is said of it fits.
func findBlob(im *procstate.Image) *blob {
	may, isChromium := mayEmbedV8(im)
	if !may {
		return nil
	}
	blobs.Lock()
	defer blobs.Unlock()
	key := weak.Make(im)
	b, known := blobs.of[key]
	if !known {
		b = searchBlob(im, isChromium)
		if blobs.of == nil || len(blobs.of) >= maxBlobs {
			blobs.of = map[weak.Pointer[procstate.Image]]*blob{}
		}
		blobs.of[key] = b
	}
	return b
}

func searchBlob(im *procstate.Image, isChromium bool) *blob {
	b := &blob{}
	buf := make([]byte, window)
	var layouts [][]builtinRange
	var some uint64
	for _, r := range constants(im) {
		for at := r.Start; at < r.End; at += window - windowAgain {
			data := buf[:min(window, r.End-at)]
			if im.ReadVaddr(data, at) != nil {
				break
			}
			if i := bytes.Index(data, []byte(someBuiltin)); i >= 0 {
				some = at + uint64(i) + 1
			}
			layouts = append(layouts, findLayouts(data)...)
			if b.sizes[0] == nil {
				b.sizes = bytecodeSizes(data)
			}
			if b.version[0] == 0 {
				b.version = versionIn(data)
			}
		}
	}
	b.compressed = isChromium && b.version[0] == 0
	for _, layout := range layouts {
		names := builtinNames(im, some, len(layout))
		code, ok := embeddedCode(im, layout)
		if names == nil || !ok {
			continue
		}
		for i, l := range layout {
			start := code.Start + uint64(l.start)
			b.builtins = append(b.builtins, builtin{mcode.Range{Start: start, End: start + uint64(l.size)}, own + names[i]})
		}
		slices.SortFunc(b.builtins, func(a, b builtin) int { return cmp.Compare(a.Start, b.Start) })
		b.code = code
		return b
	}
	return nil
}

// at returns the function at a link-time address, nil where there is none.
func (b *blob) at(vaddr uint64) *builtin {
	if b == nil || vaddr-b.code.Start >= b.code.End-b.code.Start {
		return nil
	}
	i, _ := slices.BinarySearchFunc(b.builtins, vaddr, func(f builtin, vaddr uint64) int {
		if f.Start <= vaddr {
			return -1
		}
		return 1
	})
	if i == 0 || vaddr >= b.builtins[i-1].End {
		return nil
	}
	return &b.builtins[i-1]
}

// builtinRange is where a function is in V8's own code.
type builtinRange struct{ start, size uint32 }

// end returns where the next one begins.
func (l builtinRange) end(align uint32) uint32 { return (l.start + l.size + align) &^ (align - 1) }

// findLayouts finds tables of functions in read-only data.
func findLayouts(data []byte) (found [][]builtinRange) {
	const word = 4
	le := binary.LittleEndian
	for phase := 0; phase < layoutBytes; phase += word {
		run := 0
		for at := phase; ; at += layoutBytes {
			if at+layoutBytes <= len(data) && le.Uint32(data[at:])%blobAlign == 0 && le.Uint32(data[at:]) < maxEmbedded && le.Uint32(data[at+word:])-1 < maxEmbedded {
				run++
				continue
			}
			if run >= minBuiltins && run <= maxBuiltins {
				if layout := layoutIn(data[at-run*layoutBytes : at]); layout != nil {
					found = append(found, layout)
				}
			}
			if run = 0; at+layoutBytes > len(data) {
				break
			}
		}
	}
	return found
}

// layoutIn returns the table that is in what looks like one, a few entries before or behind which may be of other things.
func layoutIn(b []byte) []builtinRange {
	const others = 4
	var all []builtinRange
	for ; len(b) >= layoutBytes; b = b[layoutBytes:] {
		all = append(all, builtinRange{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])})
	}
	for before := range others {
		for behind := range others {
			if layout := all[before : len(all)-behind]; isLayout(layout) {
				return layout
			}
		}
	}
	return nil
}

// isLayout reports whether functions lie one behind the other, from 0 on.
func isLayout(layout []builtinRange) bool {
	sorted := slices.Clone(layout)
	slices.SortFunc(sorted, func(a, b builtinRange) int { return cmp.Compare(a.start, b.start) })
	for align := uint32(blobAlign); align <= 2*blobAlign; align *= 2 {
		next := uint32(0)
		if !slices.ContainsFunc(sorted, func(l builtinRange) bool {
			is := l.start == next
			next = l.end(align)
			return !is
		}) {
			return true
		}
	}
	return false
}

// isFilled reports whether code is nothing but int3.
func isFilled(code []byte) bool {
	for _, b := range code {
		if b != mcode.BreakpointAMD64 {
			return false
		}
	}
	return true
}

// builtinNames returns what n functions are called, in order of their numbers, nil where that is not
// known. some is the link-time address of one of the names.
func builtinNames(im *procstate.Image, some uint64, n int) []string {
	if some == 0 {
		return nil
	}
	var place uint64
	eachRelative(im, func(vaddr, value uint64) {
		if value == some {
			place = vaddr
		}
	})
	if place == 0 {
		return nil
	}
	all := make([]uint64, 2*n) // addresses of names, that of some in the middle
	first := place - uint64(n)*metadataBytes
	eachRelative(im, func(vaddr, value uint64) {
		if i := (vaddr - first) / metadataBytes; (vaddr-first)%metadataBytes == metadataName && i < uint64(len(all)) {
			all[i] = value
		}
	})
	names := make([]string, len(all))
	for i, vaddr := range all {
		names[i] = builtinName(im, vaddr)
	}
	// The last that run bytecode are the last of all.
	end := len(names)
	for end > n && !strings.HasSuffix(names[end-1], lastBuiltins) {
		end--
	}
	if names = names[end-n : end]; slices.Contains(names, "") {
		return nil
	}
	return names
}

// builtinName reads the name at a link-time address, "" where there is none.
func builtinName(im *procstate.Image, vaddr uint64) string {
	var b [128]byte
	if vaddr == 0 || im.ReadVaddr(b[:], vaddr) != nil {
		return ""
	}
	n := bytes.IndexByte(b[:], 0)
	for i := range n {
		if c := b[i]; c != '_' && c-'0' > 9 && c|0x20-'a' > 25 {
			return ""
		}
	}
	return string(b[:max(n, 0)])
}

// eachRelative calls visit for each word of a file that is relocated: its link-time address, and the link-time address that it is to have.
func eachRelative(im *procstate.Image, visit func(vaddr, value uint64)) {
	s, ok := im.Section(".rela.dyn")
	if !ok {
		return
	}
	_ = im.SectionParts(s, maxEmbedding, func(b []byte) { // damaged: what could be read
		le := binary.LittleEndian
		for ; len(b) >= 24; b = b[24:] {
			if le.Uint64(b[8:]) == uint64(elf.R_X86_64_RELATIVE) {
				visit(le.Uint64(b), le.Uint64(b[16:]))
			}
		}
	})
}

// bytecodeSizes finds how long bytecodes are: three tables, one behind the other, which begin
// alike with those that are prefixes and those for debuggers, the operands of the latter being
// registers, wider in each table, or in some a number of two bytes at first.
func bytecodeSizes(data []byte) (sizes [3][]byte) {
	const maxBytecodes = 256
	begin := [3][]byte{{1, 1, 1, 1, 1, 2, 3, 4, 5, 5, 6}, {1, 1, 1, 1, 1, 3, 5, 7, 9, 7, 9}, {1, 1, 1, 1, 1, 5, 9, 13, 17, 11, 15}}
	for at := 0; ; at++ {
		i := bytes.Index(data[at:], begin[0])
		if i < 0 {
			return sizes
		}
		at += i
		of := data[at:min(len(data), at+3*maxBytecodes)]
		n := bytes.Index(of, begin[1])
		if n > 0 && 3*n <= len(of) && bytes.HasPrefix(of[2*n:], begin[2]) {
			for i := range sizes {
				sizes[i] = bytes.Clone(of[i*n : (i+1)*n])
			}
			return sizes
		}
	}
}

// versionIn finds V8's version in read-only data: with the suffix of the Rust library that Deno has V8 from.
func versionIn(data []byte) (version [2]int) {
	suffix := []byte("-rusty\x00")
	for at := 0; ; at++ {
		i := bytes.Index(data[at:], suffix)
		if i < 0 {
			return version
		}
		at += i
		begin := at
		for begin > 0 && at-begin < 20 && (data[begin-1] == '.' || data[begin-1]-'0' <= 9) {
			begin--
		}
		parts := strings.Split(string(data[begin:at]), ".")
		if len(parts) != 4 {
			continue
		}
		for i := range version {
			version[i] = 0
			for _, c := range parts[i] {
				version[i] = 10*version[i] + int(c-'0')
			}
		}
		return version
	}
}
