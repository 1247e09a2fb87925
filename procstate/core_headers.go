package procstate

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
)

// Notes of a core file; include/uapi/linux/elf.h and elfcore.h.
const (
	ntPRPSInfo = 3
	ntAuxv     = 6
	ntFile     = 0x46494c45 // "FILE"
)

// coreLayout tells where the fields of the kernel's note structures are; they
// differ by the size of a long.
type coreLayout struct {
	word       int // bytes in a long
	prSig      int // pr_cursig of struct elf_prstatus
	prPID      int // pr_pid
	prReg      int // pr_reg
	psPID      int // pr_pid of struct elf_prpsinfo
	psName     int // pr_fname, 16 bytes, and behind it pr_psargs, 80
	headerSize int // of a program header
}

var (
	coreLayout64 = coreLayout{word: 8, prSig: 12, prPID: 32, prReg: 112, psPID: 24, psName: 40, headerSize: 56}
	coreLayout32 = coreLayout{word: 4, prSig: 12, prPID: 24, prReg: 72, psPID: 12, psName: 28, headerSize: 32}
)

// readHeaders reads the ELF header, the program headers and the notes.
func (c *Core) readHeaders() error {
	var h [64]byte
	if n, _ := c.file.ReadAt(h[:], 0); n < 52 || string(h[:4]) != elf.ELFMAG || elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return ErrNotCore
	}
	le := binary.LittleEndian
	if elf.Type(le.Uint16(h[16:])) != elf.ET_CORE {
		return fmt.Errorf("%w: its type is %v", ErrNotCore, elf.Type(le.Uint16(h[16:])))
	}
	if c.arch = ArchByMachine(elf.Machine(le.Uint16(h[18:]))); c.arch == nil {
		return fmt.Errorf("machine %v: %w", elf.Machine(le.Uint16(h[18:])), ErrNotSupported)
	}
	lay := &coreLayout64
	phoff, shoff := le.Uint64(h[32:]), le.Uint64(h[40:])
	entsize, n := int(le.Uint16(h[54:])), int(le.Uint16(h[56:]))
	if elf.Class(h[elf.EI_CLASS]) == elf.ELFCLASS32 {
		lay = &coreLayout32
		phoff, shoff = uint64(le.Uint32(h[28:])), uint64(le.Uint32(h[32:]))
		entsize, n = int(le.Uint16(h[42:])), int(le.Uint16(h[44:]))
	}
	if lay.word != c.arch.AddressWidth || entsize != lay.headerSize {
		return fmt.Errorf("%w: bad headers", ErrNotCore)
	}
	if n == 0xffff { // PN_XNUM: the count is in sh_info of the first section
		var s [64]byte
		at := 44
		if lay.word == 4 {
			at = 28
		}
		if shoff > uint64(c.size) {
			return fmt.Errorf("%w: no segment count", ErrNotCore)
		}
		if k, _ := c.file.ReadAt(s[:], int64(shoff)); k < at+4 {
			return fmt.Errorf("%w: no segment count", ErrNotCore)
		}
		n = int(le.Uint32(s[at:]))
	}
	if n > maxCoreSegments || phoff > uint64(c.size) || uint64(n*entsize) > uint64(c.size)-phoff {
		return fmt.Errorf("%w: it is cut short", ErrNotCore)
	}
	b := make([]byte, n*entsize)
	if k, err := c.file.ReadAt(b, int64(phoff)); k < len(b) {
		return fmt.Errorf("%w: it is cut short: %v", ErrNotCore, err)
	}
	for i := 0; len(b) > 0; i, b = i+1, b[entsize:] {
		if err := c.readSegment(i, b, lay); err != nil {
			return err
		}
	}
	slices.SortFunc(c.loads, func(a, b coreLoad) int { return cmp.Compare(a.start, b.start) })
	slices.SortFunc(c.files, func(a, b coreFile) int { return cmp.Compare(a.start, b.start) })
	return nil
}

// readSegment takes in a program header, the i-th from 0.
func (c *Core) readSegment(i int, b []byte, lay *coreLayout) error {
	le := binary.LittleEndian
	typ := elf.ProgType(le.Uint32(b))
	var off, vaddr, filesz, memsz uint64
	var flags elf.ProgFlag
	if lay.word == 8 {
		flags, off, vaddr = elf.ProgFlag(le.Uint32(b[4:])), le.Uint64(b[8:]), le.Uint64(b[16:])
		filesz, memsz = le.Uint64(b[32:]), le.Uint64(b[40:])
	} else {
		off, vaddr = uint64(le.Uint32(b[4:])), uint64(le.Uint32(b[8:]))
		filesz, memsz, flags = uint64(le.Uint32(b[16:])), uint64(le.Uint32(b[20:])), elf.ProgFlag(le.Uint32(b[24:]))
	}
	if off > maxCoreBytes || filesz > maxCoreBytes || vaddr+memsz < vaddr || typ == elf.PT_LOAD && filesz > memsz {
		c.Damaged = append(c.Damaged, i)
		return nil
	}
	// What lies past the end of a core that was cut short is not there.
	if end := off + filesz; end > uint64(c.size) && filesz > 0 {
		c.Lacks = max(c.Lacks, end-uint64(c.size))
	}
	filesz = min(filesz, uint64(c.size)-min(off, uint64(c.size)))
	switch typ {
	case elf.PT_LOAD:
		if memsz > 0 && vaddr+memsz > vaddr {
			c.loads = append(c.loads, coreLoad{start: vaddr, end: vaddr + memsz, off: off,
				dumped: min(filesz, memsz), exec: flags&elf.PF_X != 0, read: flags&elf.PF_R != 0})
		}
	case elf.PT_NOTE:
		if c.notes += filesz; c.notes > maxCoreNotes {
			return fmt.Errorf("%w: notes of %d bytes", ErrNotCore, c.notes)
		}
		notes := make([]byte, filesz)
		if n, err := c.file.ReadAt(notes, int64(off)); n < len(notes) {
			return fmt.Errorf("%w: notes: %v", ErrNotCore, err)
		}
		c.readNotes(notes, lay)
	}
	return nil
}

// readNotes takes in the notes of a PT_NOTE segment; one that is malformed
// ends them.
func (c *Core) readNotes(b []byte, lay *coreLayout) {
	le := binary.LittleEndian
	for len(b) >= 12 {
		namesz, descsz, typ := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
		at := 12 + (namesz+3)&^3
		next := at + (descsz+3)&^3
		if at+descsz > uint64(len(b)) {
			return
		}
		name, desc := b[12:12+namesz], b[at:at+descsz]
		if bytes.Equal(name, []byte("CORE\x00")) || bytes.Equal(name, []byte("LINUX\x00")) {
			c.readNote(typ, desc, lay)
		}
		if next > uint64(len(b)) {
			return
		}
		b = b[next:]
	}
}

func (c *Core) readNote(typ uint32, d []byte, lay *coreLayout) {
	le := binary.LittleEndian
	switch typ {
	case ntPRStatus:
		set := regsetFor(c.arch)
		if len(d) < lay.prReg+set.size() || len(c.threads) >= maxCoreThreads {
			return
		}
		t := coreThread{tid: ThreadID(le.Uint32(d[lay.prPID:]))}
		set.decode(d[lay.prReg:], &t.regs)
		if c.arch == I386 {
			t.gs = gsOf(d[lay.prReg:])
		}
		if len(c.threads) == 0 {
			c.Signal = int(le.Uint16(d[lay.prSig:]))
			if c.pid == 0 {
				c.pid = int(t.tid)
			}
		}
		c.threads = append(c.threads, t)
	case ntARMTLS:
		if n := len(c.threads); n > 0 && len(d) >= 8 && c.arch == ARM64 {
			c.threads[n-1].regs.ThreadPointer = le.Uint64(d)
		}
	case nt386TLS:
		if n := len(c.threads); n > 0 && c.arch == I386 {
			c.threads[n-1].regs.ThreadPointer = segmentBase(d, c.threads[n-1].gs)
		}
	case floatNote(c.arch), ntXState:
		if n := len(c.threads); n > 0 {
			c.threads[n-1].floats = bytes.Clone(d[:min(len(d), maxFloatBlock)])
		}
	case ntPRPSInfo:
		if len(d) >= lay.psName+16 {
			c.pid = int(le.Uint32(d[lay.psPID:]))
			name, _, _ := bytes.Cut(d[lay.psName:lay.psName+16], []byte{0})
			c.Name = string(name)
			args, _, _ := bytes.Cut(d[lay.psName+16:min(len(d), lay.psName+16+80)], []byte{0})
			c.CommandLine = string(bytes.TrimRight(args, " "))
		}
	case ntAuxv:
		for ; len(d) >= 2*lay.word && len(c.auxv) < maxCoreAuxv; d = d[2*lay.word:] {
			c.auxv[lay.long(d)] = lay.long(d[lay.word:])
		}
	case ntFile:
		c.readFileNote(d, lay)
	}
}

// long reads a long.
func (lay *coreLayout) long(b []byte) uint64 {
	if lay.word == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

// readFileNote reads the mapped files: a count and a page size, then start,
// end and file offset in pages of each, then their names.
func (c *Core) readFileNote(d []byte, lay *coreLayout) {
	w := uint64(lay.word)
	if uint64(len(d)) < 2*w {
		return
	}
	n, page := lay.long(d), lay.long(d[w:])
	d = d[2*w:]
	if n > uint64(len(d))/(3*w) {
		return
	}
	names := d[n*3*w:]
	for ; n > 0; n-- {
		name, rest, ok := bytes.Cut(names, []byte{0})
		if !ok {
			return
		}
		f := coreFile{start: lay.long(d), end: lay.long(d[w:]), off: lay.long(d[2*w:]) * page, path: string(name)}
		if f.end > f.start && len(c.files) < maxCoreFiles {
			c.files = append(c.files, f)
		}
		d, names = d[3*w:], rest
	}
}
