package procstate

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// Compilers that run in a process tell libgcc of the call frame information of their
// code, so that exceptions get through (__register_frame). Up to GCC 12 libgcc keeps
// that in two lists, of what exceptions have looked at and what not (struct object in
// unwind-dw2-fde.h):
//
//	object  lowest address; two bases; the call frame information, or a sorted
//	        table of it that leads there; flags; the next one
//
// The lists have no symbols. What takes an object from either of them,
// __deregister_frame_info_bases, reads the places where they begin, and takes their
// addresses too.

const (
	frameListCode = 512     // bytes of code looked at to find the lists
	maxFrameInfo  = 4 << 20 // bytes of call frame information of an object
	frameInfoPage = 4 << 10 // read at a time: memory behind may not be there
	frameGap      = 64      // between functions, of one piece of code all the same

	objectSorted = 1 // flags: by way of a sorted table
	objectArray  = 2 // several at once
)

// frameLists returns the link-time addresses of the lists of libgcc; none when the
// file is another.
func (im *Image) frameLists() []uint64 {
	im.jit.listsOnce.Do(func() { im.jit.lists = im.findFrameLists() })
	return im.jit.lists
}

func (im *Image) findFrameLists() (lists []uint64) {
	if im.arch != AMD64 {
		return nil
	}
	var code [frameListCode]byte
	at := im.symbolNamed("__deregister_frame_info_bases", elf.STT_FUNC, ".dynsym")
	if at == 0 || im.ReadVaddr(code[:], at) != nil {
		return nil
	}
	const loaded, taken = 1, 2
	used := map[uint64]int{}
	for i := range len(code) - 7 { // REX.W, operation, [RIP+disp]
		if code[i]&^4 != 0x48 || code[i+2]&0xc7 != 5 {
			continue
		}
		to := at + uint64(i) + 7 + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+3:]))))
		switch code[i+1] {
		case 0x8b: // MOV
			used[to] |= loaded
		case 0x8d: // LEA
			used[to] |= taken
		}
	}
	for to, how := range used {
		if how == loaded|taken && to%8 == 0 && im.isWritable(to) {
			lists = append(lists, to)
		}
	}
	slices.Sort(lists)
	return lists
}

// isWritable reports whether a link-time address is in memory that the program writes.
func (im *Image) isWritable(vaddr uint64) bool {
	return slices.ContainsFunc(im.segs, func(s Segment) bool {
		return s.Flags&elf.PF_W != 0 && vaddr-s.Vaddr < s.Memsz
	})
}

// readJITFrames reads the call frame information of an object of libgcc, of which e has
// the address and the flags. It takes from left the bytes that it reads.
func readJITFrames(a *Arch, e jitEntry, left *uint64, read func(addr uint64, buf []byte) bool) (*JITObject, error) {
	var word [8]byte
	at := e.symfile
	if e.size&objectSorted != 0 {
		if !read(at, word[:]) {
			return nil, ErrUnreadable
		}
		at = binary.LittleEndian.Uint64(word[:])
	}
	if e.size&objectArray != 0 || at == 0 {
		return nil, errJITObject
	}
	raw, code, err := readFrameInfo(at, left, read)
	if err != nil {
		return nil, err
	}
	o := &JITObject{entry: e, from: at, parts: []jitPart{{0, min(uint64(len(raw)), maxJITSum)}}}
	o.sum = maphash.Bytes(jitSeed, raw[:o.parts[0].n])
	im := &Image{Path: "[jit]", Index: imageCount.Add(1) - 1, arch: a, typ: elf.ET_EXEC, r: bytes.NewReader(raw), size: int64(len(raw))}
	im.sections = []Section{{Name: ".eh_frame", Type: elf.SHT_PROGBITS, Flags: elf.SHF_ALLOC, Vaddr: at, Size: uint64(len(raw))}}
	im.indexSections()
	for _, c := range code {
		c.object = o
		o.code = append(o.code, c)
		im.segs = append(im.segs, Segment{Vaddr: c.start, Memsz: c.end - c.start, Flags: elf.PF_X | elf.PF_R})
	}
	o.Frames = im
	o.size = len(raw) + jitObjectBytes + jitRangeBytes*len(o.code)
	return o, nil
}

// readFrameInfo reads call frame information (Linux Standard Base, "Exception Frames") at
// an address up to the entry of no length that ends it, and tells what code it is of.
func readFrameInfo(at uint64, left *uint64, read func(addr uint64, buf []byte) bool) (raw []byte, code []jitRange, err error) {
	le := binary.LittleEndian
	need := func(n uint64) bool {
		for uint64(len(raw)) < n {
			from := at + uint64(len(raw))
			more := make([]byte, frameInfoPage-from%frameInfoPage)
			if n > min(maxFrameInfo, *left) || !read(from, more) {
				return false
			}
			*left -= min(*left, uint64(len(more)))
			raw = append(raw, more...)
		}
		return true
	}
	encodings := map[uint64]byte{} // by offset of a CIE
	for off := uint64(0); ; {
		if !need(off + 4) {
			return nil, nil, ErrUnreadable
		}
		n := uint64(le.Uint32(raw[off:]))
		if n == 0 {
			raw = raw[:off+4]
			break
		}
		if n < 8 || n > maxFrameInfo || !need(off+4+n) {
			return nil, nil, errJITObject
		}
		entry := raw[off+4 : off+4+n]
		if id := uint64(le.Uint32(entry)); id == 0 {
			if encodings[off], err = pointerEncoding(entry[4:]); err != nil {
				return nil, nil, err
			}
		} else {
			encoding, known := encodings[off+4-id]
			if !known {
				return nil, nil, errJITObject
			}
			start, size, ok := framePointers(entry[4:], encoding, at+off+8)
			if !ok || size == 0 || start+size < start {
				return nil, nil, errJITObject
			}
			code = append(code, jitRange{start: start, end: start + size})
		}
		off += 4 + n
	}
	if len(code) == 0 {
		return nil, nil, errJITObject
	}
	slices.SortFunc(code, func(a, b jitRange) int { return cmp.Compare(a.start, b.start) })
	pieces := code[:1]
	for _, c := range code[1:] {
		if last := &pieces[len(pieces)-1]; c.start <= last.end+frameGap {
			last.end = max(last.end, c.end)
		} else {
			pieces = append(pieces, c)
		}
	}
	return raw, pieces, nil
}

// pointerEncoding returns how the FDEs of a CIE, here from its version on, encode
// addresses.
func pointerEncoding(cie []byte) (encoding byte, err error) {
	end := bytes.IndexByte(cie, 0)
	if end < 1 || cie[0] != 1 && cie[0] != 3 {
		return 0, errJITObject
	}
	augmentation, rest := cie[1:end], cie[end+1:]
	if len(augmentation) == 0 {
		return 0, nil
	}
	for range 2 { // alignment factors
		rest = afterLEB128(rest)
	}
	if cie[0] == 1 && len(rest) > 0 { // the register of the return address
		rest = rest[1:]
	} else {
		rest = afterLEB128(rest)
	}
	rest = afterLEB128(rest) // length
	if augmentation[0] != 'z' {
		return 0, errJITObject
	}
	for _, c := range augmentation[1:] {
		switch c {
		case 'R', 'L', 'P':
			if len(rest) == 0 {
				return 0, errJITObject
			}
			if c == 'R' {
				return rest[0], nil
			}
			if n := encodedSize(rest[0]); c == 'P' && n > 0 && len(rest) > n {
				rest = rest[n:]
			} else if c == 'P' {
				return 0, errJITObject
			}
			rest = rest[1:]
		case 'S', 'B':
		default:
			return 0, errJITObject
		}
	}
	return 0, nil
}

// afterLEB128 returns what follows a number in LEB128.
func afterLEB128(b []byte) []byte {
	for len(b) > 0 && b[0]&0x80 != 0 {
		b = b[1:]
	}
	return b[min(1, len(b)):]
}

// encodedSize returns how many bytes an encoded pointer takes, 0 for what JIT compilers
// do not write.
func encodedSize(encoding byte) int {
	switch encoding & 0xf {
	case 0x0, 0x4, 0xc: // DW_EH_PE_absptr, udata8, sdata8
		return 8
	case 0x3, 0xb: // udata4, sdata4
		return 4
	}
	return 0
}

// framePointers reads the address and the size of an FDE's code, which are at an address.
func framePointers(b []byte, encoding byte, at uint64) (start, size uint64, ok bool) {
	n := encodedSize(encoding)
	if n == 0 || len(b) < 2*n || encoding&0x70 != 0 && encoding&0x70 != 0x10 || encoding&0x80 != 0 {
		return 0, 0, false
	}
	le := binary.LittleEndian
	if n == 8 {
		start, size = le.Uint64(b), le.Uint64(b[8:])
	} else {
		start, size = uint64(le.Uint32(b)), uint64(le.Uint32(b[4:]))
		if encoding&8 != 0 {
			start = uint64(int64(int32(start)))
		}
	}
	if encoding&0x70 == 0x10 { // DW_EH_PE_pcrel
		start += at
	}
	return start, size, true
}
