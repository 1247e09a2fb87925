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
	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// blob is V8's own code in a file that has no symbols of it, as Deno is and a Node that was stripped: the code is embedded in one piece,
// and read-only data say where in it each function is (EmbeddedData in V8's embedded-data.h).
type blob struct {
	code     mcode.Range
	builtins []builtin // by address
	names    []string  // of them, by number; nil: the file does not have all
	named    uint64    // where the table of names has that of one of them; 0: that is not known either
	sizes    [3][]byte // of bytecodes, see fields
	version  [2]int    // of V8, major and minor; not of Chromium's

	compressed bool // pointers are, as in Chromium
}

// builtin is one of V8's own functions.
type builtin struct {
	mcode.Range
	number int
}

// What a file is that may hold V8 without symbols. The dynamic linker of Deno is asked for one of V8's thread-local
// variables, which it has itself: the name is all that is left of V8's symbols. Chromium, and what is made of it, as
// Electron, has a section of its allocator's or one of its own protected data, and much code.
const (
	leftover     = "_ZTHN2v88internal12trap_handler"
	maxDynamic   = 1 << 16  // bytes of names
	minChromium  = 32 << 20 // bytes of code
	maxEmbedding = 1 << 29  // bytes of a segment that is looked through

	window      = 1 << 20                     // bytes that are read of it at a time
	windowAgain = maxBuiltins * layoutBytes11 // of them are read again with the next ones
)

var chromiumSections = [...]string{"protected_memory", "malloc_hook"}

// Of the table of functions, in order of their numbers: of each where it begins, how long it
// is, and something else, of which there was more before V8 12.
const (
	layoutBytes   = 12
	layoutBytes10 = 28
	layoutBytes11 = 32
	layoutHashes  = 24 // bytes before it
	minBuiltins   = 1 << 10
	maxBuiltins   = 1 << 13
	maxEmbedded   = 16 << 20 // bytes of code
	blobAlign     = 32       // of functions, or twice that; what is between them is filled with int3
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
	switch {
	case tellsOfV8(im):
		return !hasOwnSymbols(im), false
	case beyond[im.Arch()] == 0:
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
// What functions are called may be missing where the file tells debuggers of V8.
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
	b, entry := &blob{}, layoutBytes
	major := toldMajor(im)
	switch major {
	case 10:
		entry = layoutBytes10
	case 11:
		entry = layoutBytes11
	}
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
			if layouts == nil || major == 0 {
				layouts = append(layouts, findLayouts(data, entry, at+window < r.End)...)
			}
			if b.sizes[0] == nil {
				b.sizes = bytecodeSizes(data)
			}
			if major == 0 && b.version[0] == 0 {
				b.version = versionIn(data)
			}
			if major != 0 && some != 0 && layouts != nil && b.sizes[0] != nil {
				break
			}
		}
	}
	b.compressed = isChromium && b.version[0] == 0
	b.named = placeOf(im, some)
	for _, layout := range layouts {
		b.names = builtinNames(im, b.named, len(layout))
		code, ok := embeddedCode(im, layout)
		if b.names == nil && major == 0 || !ok {
			continue
		}
		for i, l := range layout {
			start := code.Start + uint64(l.start)
			b.builtins = append(b.builtins, builtin{mcode.Range{Start: start, End: start + uint64(l.size)}, i})
		}
		slices.SortFunc(b.builtins, func(a, b builtin) int { return cmp.Compare(a.Start, b.Start) })
		b.code = code
		return b
	}
	return nil
}

// holds reports whether a link-time address is in it.
func (b *blob) holds(vaddr uint64) bool { return b != nil && b.code.Holds(vaddr) }

// at returns the function at a link-time address, nil where there is none.
func (b *blob) at(vaddr uint64) *builtin {
	if !b.holds(vaddr) {
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

// findLayouts finds tables of functions in read-only data, with entries of so many bytes. One that may go on behind the
// data is none where there is more.
func findLayouts(data []byte, entry int, isMore bool) (found [][]builtinRange) {
	const word = 4
	le := binary.LittleEndian
	for phase := 0; phase < entry; phase += word {
		run := 0
		for at := phase; ; at += entry {
			if at+entry <= len(data) && le.Uint32(data[at:])%blobAlign == 0 && le.Uint32(data[at:]) < maxEmbedded && le.Uint32(data[at+word:])-1 < maxEmbedded {
				run++
				continue
			}
			if run >= minBuiltins && run <= maxBuiltins && !(isMore && at+entry > len(data)) {
				if layout := layoutIn(data[at-run*entry:at], entry); layout != nil {
					found = append(found, layout)
				}
			}
			if run = 0; at+entry > len(data) {
				break
			}
		}
	}
	return found
}

// layoutIn returns the table that is in what looks like one, a few entries before or behind which may be of other things.
func layoutIn(b []byte, entry int) []builtinRange {
	const others = 4
	var all []builtinRange
	for ; len(b) >= entry; b = b[entry:] {
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

// placeOf returns where a file has the link-time address of a name, 0 where it has not.
func placeOf(im *procstate.Image, name uint64) (place uint64) {
	if name != 0 {
		eachRelative(im, func(vaddr, value uint64) {
			if value == name {
				place = vaddr
			}
		})
	}
	return place
}

// builtinNames returns what n functions are called, in order of their numbers, nil where the file does not have that:
// GCC may have the table made when V8 begins. named is where the table has the address of one of the names.
func builtinNames(im *procstate.Image, named uint64, n int) []string {
	switch {
	case named == 0:
		return nil
	case im.Type() == elf.ET_EXEC: // in which it is as it will be
		return builtinNamesNow(im, 0, named, n, func(vaddr uint64, b []byte) bool { return im.ReadVaddr(b, vaddr) == nil })
	}
	all := make([]uint64, 2*n)
	first := named - uint64(n)*metadataBytes
	eachRelative(im, func(vaddr, value uint64) {
		if i := (vaddr - first) / metadataBytes; (vaddr-first)%metadataBytes == metadataName && i < uint64(len(all)) {
			all[i] = value
		}
	})
	return namesAt(im, all)
}

// builtinNamesNow is builtinNames of a process, which has the file with a bias.
func builtinNamesNow(im *procstate.Image, bias, named uint64, n int, read vmread.Reader) []string {
	const page = 4 << 10
	table := make([]byte, 2*n*metadataBytes)
	first := bias + named - uint64(n)*metadataBytes
	for at := first; at < first+uint64(len(table)); {
		end := min(at&^(page-1)+page, first+uint64(len(table)))
		read(at, table[at-first:end-first]) // what cannot be read is not of the table
		at = end
	}
	all := make([]uint64, 2*n)
	for i := range all {
		all[i] = binary.LittleEndian.Uint64(table[i*metadataBytes+metadataName:]) - bias
	}
	return namesAt(im, all)
}

// namesAt returns the half of the names at link-time addresses, in order, that are those of V8's own functions: one of these is in the
// middle. It is nil where that is not so.
func namesAt(im *procstate.Image, all []uint64) []string {
	n := len(all) / 2
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

// relativeOf are the types of relocations that add where a file was loaded.
var relativeOf = map[*procstate.Arch]uint64{
	procstate.AMD64: uint64(elf.R_X86_64_RELATIVE),
	procstate.ARM64: uint64(elf.R_AARCH64_RELATIVE),
}

// eachRelative calls visit for each word of a file that may be the address of something in it: its link-time address,
// and the link-time address that it is to have. Where a file is loaded at any address that is told of such words.
func eachRelative(im *procstate.Image, visit func(vaddr, value uint64)) {
	if im.Type() == elf.ET_EXEC {
		eachWord(im, visit)
		return
	}
	s, ok := im.Section(".rela.dyn")
	relative, known := relativeOf[im.Arch()]
	if !ok || !known {
		return
	}
	_ = im.SectionParts(s, maxEmbedding, func(b []byte) { // damaged: what could be read
		le := binary.LittleEndian
		for ; len(b) >= 24; b = b[24:] {
			if le.Uint64(b[8:]) == relative {
				visit(le.Uint64(b), le.Uint64(b[16:]))
			}
		}
	})
}

// eachWord calls visit for each word of data of a file.
func eachWord(im *procstate.Image, visit func(vaddr, value uint64)) {
	const word = 8
	for _, name := range [...]string{".rodata", ".data.rel.ro"} {
		s, ok := im.Section(name)
		if !ok {
			continue
		}
		at := s.Vaddr
		_ = im.SectionParts(s, maxEmbedding, func(b []byte) { // damaged: what could be read
			for ; len(b) >= word; b, at = b[word:], at+word {
				visit(at, binary.LittleEndian.Uint64(b))
			}
		})
	}
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
