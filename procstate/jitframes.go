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
// code, so that exceptions get through (__register_frame). What libgcc keeps of it, in
// lists or in a tree (see frameRoots), are objects (struct object in unwind-dw2-fde.h):
//
//	object  lowest address; two bases; the call frame information, or a table of
//	        several that ends with 0, or a sorted table that leads to either;
//	        flags; the next one
const (
	maxFrameInfo   = 4 << 20 // bytes of call frame information of an object
	maxFrameTables = 1 << 10 // of an object
	frameInfoPage  = 4 << 10 // read at a time: memory behind may not be there
	frameGap       = 64      // between functions, of one piece of code all the same

	objectSorted = 1 // flags: by way of a sorted table
	objectArray  = 2 // several at once
)

// readJITFrames reads the call frame information of an object of libgcc, of which e has
// the address and the flags. It takes from left the bytes that it reads. Of what is
// mapped from files it reads none: start files register the program itself.
func (j *JITObjects) readJITFrames(a *Arch, e jitEntry, left *uint64) (*JITObject, error) {
	read := j.readMemory
	at := e.symfile
	word := func(addr uint64) (w uint64, ok bool) {
		var b [8]byte
		ok = read(addr, b[:])
		return binary.LittleEndian.Uint64(b[:]), ok
	}
	if e.size&objectSorted != 0 {
		var ok bool
		if at, ok = word(at); !ok {
			return nil, ErrUnreadable
		}
	}
	if j.inFile(at) {
		return nil, errJITObject
	}
	if e.size&objectArray == 0 {
		return readJITTable(a, e, at, left, read)
	}
	var first, last *JITObject
	for slot := at; slot-at < 8*maxFrameTables; slot += 8 {
		frames, ok := word(slot)
		if !ok {
			return nil, ErrUnreadable
		}
		if frames == 0 {
			break
		}
		o, err := readJITTable(a, e, frames, left, read)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = o
		} else {
			last.more = o
		}
		last = o
	}
	if first == nil {
		return nil, errJITObject
	}
	return first, nil
}

// inFile reports whether a run-time address is in what is mapped from a file.
func (j *JITObjects) inFile(addr uint64) bool {
	return slices.ContainsFunc(LibrariesOf(j.ps.Libraries()), func(lib Library) bool {
		return lib.Image != nil && slices.ContainsFunc(lib.Image.segs, func(s Segment) bool { return addr-lib.Bias-s.Vaddr < s.Filesz })
	})
}

// readJITTable reads the call frame information at an address, which is that of the
// object with an entry, or a part of it.
func readJITTable(a *Arch, e jitEntry, at uint64, left *uint64, read func(addr uint64, buf []byte) bool) (*JITObject, error) {
	if at == 0 {
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
