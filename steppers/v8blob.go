package steppers

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
)

// v8Blob is V8's own code in a file that has no symbols of it, as Deno is: the code is embedded in one piece,
// and read-only data say where in it each function is (EmbeddedData in V8's embedded-data.h).
type v8Blob struct {
	code     vaddrRange
	builtins []v8Builtin // by address
	sizes    [3][]byte   // of bytecodes, see v8Fields
	version  [2]int      // of V8, major and minor; not of Chromium's

	compressed bool // pointers are, as in Chromium
}

// v8Builtin is one of V8's own functions.
type v8Builtin struct {
	vaddrRange
	name string // as symbols have it
}

// What a file is that may hold V8 without symbols. The dynamic linker of Deno is asked for one of V8's thread-local
// variables, which it has itself: the name is all that is left of V8's symbols. Chromium, and what is made of it, as
// Electron, has a section of its allocator's or one of its own protected data, and much code.
const (
	v8Leftover     = "_ZTHN2v88internal12trap_handler"
	maxV8Dynamic   = 1 << 16  // bytes of names
	minV8Chromium  = 32 << 20 // bytes of code
	maxV8Embedding = 1 << 29  // bytes of a segment that is looked through

	v8Window      = 1 << 20                       // bytes that are read of it at a time
	v8WindowAgain = maxV8Builtins * v8LayoutBytes // of them are read again with the next ones
)

var v8ChromiumSections = [...]string{"protected_memory", "malloc_hook"}

// Of the table of functions, in order of their numbers, each 12 bytes: where it begins, how long it
// is, and something else.
const (
	v8LayoutBytes  = 12
	v8LayoutHashes = 24 // bytes before it
	minV8Builtins  = 1 << 10
	maxV8Builtins  = 1 << 13
	maxV8Embedded  = 16 << 20 // bytes of code
	v8BlobAlign    = 32       // of functions, or twice that; what is between them is filled with int3
)

// Of the table of what functions are called (BuiltinMetadata in builtins.cc), in the same order.
const (
	v8MetadataBytes = 24
	v8MetadataName  = 0
	v8LastBuiltins  = "ExtraWideHandler" // what names end in at its end
	v8SomeBuiltin   = "\x00InterpreterEntryTrampoline\x00"
)

// mayEmbedV8 tells by its tables whether a file may hold V8 without symbols, and whether it may be Chromium.
func mayEmbedV8(im *procstate.Image) (may, isChromium bool) {
	if im.Arch() != procstate.AMD64 {
		return false, false
	}
	if codeBytes(im) >= minV8Chromium {
		for _, name := range v8ChromiumSections {
			if _, ok := im.Section(name); ok {
				return true, true
			}
		}
	}
	dynstr, ok := im.Section(".dynstr")
	if !ok || dynstr.Size > maxV8Dynamic {
		return false, false
	}
	names, err := im.SectionBytes(dynstr, maxV8Dynamic)
	return err == nil && bytes.Contains(names, []byte(v8Leftover)), false
}

// v8Constants returns where a file has V8's read-only data, if it has V8: in its section of such, or in segments where there is none.
func v8Constants(im *procstate.Image) (places []vaddrRange) {
	if s, ok := im.Section(".rodata"); ok {
		return []vaddrRange{{s.Vaddr, s.Vaddr + min(s.Size, maxV8Embedding)}}
	}
	for _, s := range im.Segments() {
		if s.Flags&(elf.PF_W|elf.PF_X) == 0 {
			places = append(places, vaddrRange{s.Vaddr, s.Vaddr + min(s.Filesz, maxV8Embedding)})
		}
	}
	return places
}

// v8Blobs are what was found in files that may have V8: two steppers ask, and it takes up to a tenth of a second.
var v8Blobs struct {
	sync.Mutex
	of map[weak.Pointer[procstate.Image]]*v8Blob
}

const maxV8Blobs = 1 << 4

// findV8Blob looks for V8's own code in a file, once; nil where that is not there, or not all that is said of it fits.
func findV8Blob(im *procstate.Image) *v8Blob {
	may, isChromium := mayEmbedV8(im)
	if !may {
		return nil
	}
	v8Blobs.Lock()
	defer v8Blobs.Unlock()
	key := weak.Make(im)
	b, known := v8Blobs.of[key]
	if !known {
		b = searchV8Blob(im, isChromium)
		if v8Blobs.of == nil || len(v8Blobs.of) >= maxV8Blobs {
			v8Blobs.of = map[weak.Pointer[procstate.Image]]*v8Blob{}
		}
		v8Blobs.of[key] = b
	}
	return b
}

func searchV8Blob(im *procstate.Image, isChromium bool) *v8Blob {
	b := &v8Blob{}
	buf := make([]byte, v8Window)
	var layouts [][]v8Layout
	var some uint64
	for _, r := range v8Constants(im) {
		for at := r.start; at < r.end; at += v8Window - v8WindowAgain {
			data := buf[:min(v8Window, r.end-at)]
			if im.ReadVaddr(data, at) != nil {
				break
			}
			if i := bytes.Index(data, []byte(v8SomeBuiltin)); i >= 0 {
				some = at + uint64(i) + 1
			}
			layouts = append(layouts, v8Layouts(data)...)
			if b.sizes[0] == nil {
				b.sizes = v8BytecodeSizes(data)
			}
			if b.version[0] == 0 {
				b.version = v8VersionIn(data)
			}
		}
	}
	b.compressed = isChromium && b.version[0] == 0
	for _, layout := range layouts {
		names := v8BuiltinNames(im, some, len(layout))
		code, ok := v8EmbeddedCode(im, layout)
		if names == nil || !ok {
			continue
		}
		for i, l := range layout {
			start := code.start + uint64(l.start)
			b.builtins = append(b.builtins, v8Builtin{vaddrRange{start, start + uint64(l.size)}, v8Own + names[i]})
		}
		slices.SortFunc(b.builtins, func(a, b v8Builtin) int { return cmp.Compare(a.start, b.start) })
		b.code = code
		return b
	}
	return nil
}

// at returns the function at a link-time address, nil where there is none.
func (b *v8Blob) at(vaddr uint64) *v8Builtin {
	if b == nil || vaddr-b.code.start >= b.code.end-b.code.start {
		return nil
	}
	i, _ := slices.BinarySearchFunc(b.builtins, vaddr, func(f v8Builtin, vaddr uint64) int {
		if f.start <= vaddr {
			return -1
		}
		return 1
	})
	if i == 0 || vaddr >= b.builtins[i-1].end {
		return nil
	}
	return &b.builtins[i-1]
}

// v8Layout is where a function is in V8's own code.
type v8Layout struct{ start, size uint32 }

// end returns where the next one begins.
func (l v8Layout) end(align uint32) uint32 { return (l.start + l.size + align) &^ (align - 1) }

// v8Layouts finds tables of functions in read-only data.
func v8Layouts(data []byte) (found [][]v8Layout) {
	const word = 4
	le := binary.LittleEndian
	for phase := 0; phase < v8LayoutBytes; phase += word {
		run := 0
		for at := phase; ; at += v8LayoutBytes {
			if at+v8LayoutBytes <= len(data) && le.Uint32(data[at:])%v8BlobAlign == 0 && le.Uint32(data[at:]) < maxV8Embedded && le.Uint32(data[at+word:])-1 < maxV8Embedded {
				run++
				continue
			}
			if run >= minV8Builtins && run <= maxV8Builtins {
				if layout := v8LayoutIn(data[at-run*v8LayoutBytes : at]); layout != nil {
					found = append(found, layout)
				}
			}
			if run = 0; at+v8LayoutBytes > len(data) {
				break
			}
		}
	}
	return found
}

// v8LayoutIn returns the table that is in what looks like one, a few entries before or behind which may be of other things.
func v8LayoutIn(b []byte) []v8Layout {
	const others = 4
	var all []v8Layout
	for ; len(b) >= v8LayoutBytes; b = b[v8LayoutBytes:] {
		all = append(all, v8Layout{binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])})
	}
	for before := range others {
		for behind := range others {
			if layout := all[before : len(all)-behind]; isV8Layout(layout) {
				return layout
			}
		}
	}
	return nil
}

// isV8Layout reports whether functions lie one behind the other, from 0 on.
func isV8Layout(layout []v8Layout) bool {
	sorted := slices.Clone(layout)
	slices.SortFunc(sorted, func(a, b v8Layout) int { return cmp.Compare(a.start, b.start) })
	for align := uint32(v8BlobAlign); align <= 2*v8BlobAlign; align *= 2 {
		next := uint32(0)
		if !slices.ContainsFunc(sorted, func(l v8Layout) bool {
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
		if b != breakpointAMD64 {
			return false
		}
	}
	return true
}

// v8BuiltinNames returns what n functions are called, in order of their numbers, nil where that is not
// known. some is the link-time address of one of the names.
func v8BuiltinNames(im *procstate.Image, some uint64, n int) []string {
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
	first := place - uint64(n)*v8MetadataBytes
	eachRelative(im, func(vaddr, value uint64) {
		if i := (vaddr - first) / v8MetadataBytes; (vaddr-first)%v8MetadataBytes == v8MetadataName && i < uint64(len(all)) {
			all[i] = value
		}
	})
	names := make([]string, len(all))
	for i, vaddr := range all {
		names[i] = v8BuiltinName(im, vaddr)
	}
	// The last that run bytecode are the last of all.
	end := len(names)
	for end > n && !strings.HasSuffix(names[end-1], v8LastBuiltins) {
		end--
	}
	if names = names[end-n : end]; slices.Contains(names, "") {
		return nil
	}
	return names
}

// v8BuiltinName reads the name at a link-time address, "" where there is none.
func v8BuiltinName(im *procstate.Image, vaddr uint64) string {
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
	_ = im.SectionParts(s, maxV8Embedding, func(b []byte) { // damaged: what could be read
		le := binary.LittleEndian
		for ; len(b) >= 24; b = b[24:] {
			if le.Uint64(b[8:]) == uint64(elf.R_X86_64_RELATIVE) {
				visit(le.Uint64(b), le.Uint64(b[16:]))
			}
		}
	})
}

// v8BytecodeSizes finds how long bytecodes are: three tables, one behind the other, which begin
// alike with those that are prefixes and those for debuggers, the operands of the latter being
// registers, wider in each table, or in some a number of two bytes at first.
func v8BytecodeSizes(data []byte) (sizes [3][]byte) {
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

// v8VersionIn finds V8's version in read-only data: with the suffix of the Rust library that Deno has V8 from.
func v8VersionIn(data []byte) (version [2]int) {
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
