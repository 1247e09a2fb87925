package dataflow

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// R_X86_64_IRELATIVE, R_AARCH64_IRELATIVE and R_386_IRELATIVE: the addend is the
// address of a resolver.
const (
	irelativeAMD64 = 37
	irelativeARM64 = 1032
	irelativeI386  = 42
)

// maxRelocs bounds the bytes that are read of a file's relocations. Many headers
// may be of the same.
const maxRelocs = 256 << 20

// eachRela calls visit for each entry of the file's RELA sections that the
// dynamic loader applies, or REL of i386, where the addend is at the place itself.
func (c *Code) eachRela(visit func(offset uint64, typ, sym uint32, addend uint64)) {
	left := uint64(maxRelocs)
	for _, s := range c.im.Sections() {
		typ := elf.SHT_RELA
		if c.arch == procstate.I386 {
			typ = elf.SHT_REL
		}
		if s.Type != typ || s.Flags&elf.SHF_ALLOC == 0 || left == 0 {
			continue
		}
		_ = c.im.SectionParts(s, left, func(b []byte) { // damaged: what could be read
			le := binary.LittleEndian
			left -= uint64(len(b))
			for ; typ == elf.SHT_REL && len(b) >= 8; b = b[8:] {
				info := le.Uint32(b[4:])
				visit(uint64(le.Uint32(b)), info&0xff, info>>8, 0)
			}
			for ; typ == elf.SHT_RELA && len(b) >= 24; b = b[24:] {
				info := le.Uint64(b[8:])
				visit(le.Uint64(b), uint32(info), uint32(info>>32), le.Uint64(b[16:]))
			}
		})
	}
}

// findRelocated adds to taken the code addresses that relocations put into
// data: tables of functions, but also of labels.
func (c *Code) findRelocated() {
	c.eachRela(func(offset uint64, typ, _ uint32, addend uint64) {
		switch {
		case c.arch == procstate.AMD64 && (elf.R_X86_64(typ) == elf.R_X86_64_RELATIVE || typ == irelativeAMD64):
		case c.arch == procstate.ARM64 && (elf.R_AARCH64(typ) == elf.R_AARCH64_RELATIVE || typ == irelativeARM64):
		case c.arch == procstate.I386 && (elf.R_386(typ) == elf.R_386_RELATIVE || typ == irelativeI386):
			var b [4]byte
			if c.im.ReadVaddr(b[:], offset) != nil {
				return
			}
			addend = uint64(binary.LittleEndian.Uint32(b[:]))
		default:
			return
		}
		c.take(addend)
	})
}

// maxData bounds the bytes of a data section that are looked at, and maxAllData
// those of all.
const (
	maxData    = 64 << 20
	maxAllData = 256 << 20
)

// findPointers adds to taken what in the data of a program that is not
// relocated looks like code addresses.
func (c *Code) findPointers() {
	if c.im.Type() != elf.ET_EXEC {
		return
	}
	width := c.arch.AddressWidth
	left := uint64(maxAllData)
	for _, s := range c.im.Sections() {
		if s.Flags&elf.SHF_ALLOC == 0 || s.Flags&elf.SHF_EXECINSTR != 0 || left == 0 ||
			s.Type != elf.SHT_PROGBITS && s.Type != elf.SHT_INIT_ARRAY && s.Type != elf.SHT_FINI_ARRAY {
			continue
		}
		_ = c.im.SectionParts(s, min(maxData, left), func(b []byte) { // damaged: what could be read
			left -= uint64(len(b))
			for ; len(b) >= width; b = b[width:] {
				if v := c.word(b); v >= c.lo {
					c.take(v)
				}
			}
		})
	}
}

// word reads an address of the file.
func (c *Code) word(b []byte) uint64 {
	if c.arch.AddressWidth == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

// noReturnNames are functions of the usual libraries that never return.
var noReturnNames = map[string]bool{
	"abort": true, "exit": true, "_exit": true, "_Exit": true, "quick_exit": true, "__stack_chk_fail": true,
	"__assert_fail": true, "__assert_perror_fail": true, "__assert": true, "__fortify_fail": true, "__chk_fail": true,
	"longjmp": true, "_longjmp": true, "siglongjmp": true, "__longjmp_chk": true, "pthread_exit": true,
	"err": true, "errx": true, "verr": true, "verrx": true, "__libc_start_main": true,
	"__cxa_throw": true, "__cxa_rethrow": true, "__cxa_bad_cast": true, "__cxa_bad_typeid": true,
	"__cxa_throw_bad_array_new_length": true, "__cxa_throw_bad_array_length": true, "__cxa_pure_virtual": true,
	"_Unwind_Resume": true, "_ZSt9terminatev": true, "__clang_call_terminate": true,
	"Py_FatalError": true, "_Py_FatalErrorFunc": true,
}

// neverReturns reports whether a function of that name never returns.
func neverReturns(name string) bool {
	return noReturnNames[name] || strings.HasPrefix(name, "_ZSt") && strings.Contains(name[4:min(len(name), 12)], "__throw")
}

// findNoReturn finds the words that the dynamic loader fills with the address
// of a function that never returns.
func (c *Code) findNoReturn() {
	dynsym, ok1 := c.im.Section(".dynsym")
	dynstr, ok2 := c.im.Section(".dynstr")
	if !ok1 || !ok2 {
		return
	}
	syms, err1 := c.im.SectionBytes(dynsym, maxRelocs)
	strs, err2 := c.im.SectionBytes(dynstr, maxRelocs)
	if err1 != nil || err2 != nil {
		return
	}
	size := uint64(24)
	if c.arch.AddressWidth == 4 {
		size = 16
	}
	c.eachRela(func(offset uint64, _, sym uint32, _ uint64) {
		at := uint64(sym) * size
		if sym == 0 || at+size > uint64(len(syms)) {
			return
		}
		name := uint64(binary.LittleEndian.Uint32(syms[at:]))
		if name >= uint64(len(strs)) {
			return
		}
		b := strs[name:min(name+64, uint64(len(strs)))]
		if end := bytes.IndexByte(b, 0); end >= 0 && neverReturns(string(b[:end])) {
			c.noReturn[offset] = true
		}
	})
}

// Bounds of the search for a way out of a function.
const (
	maxCallDepth   = 4
	maxReturnSteps = 4000
)

// doesReturn reports whether a function may return: whether some path from
// its start reaches a return or leaves for where nothing is known. When the
// search gets too long the answer is yes.
func (c *Code) doesReturn(vaddr uint64) bool {
	if r, ok := c.returns[vaddr]; ok {
		return r
	}
	if c.depth >= maxCallDepth || c.spent > c.budget {
		return true
	}
	c.depth++
	c.returns[vaddr] = true // for a function that calls itself
	r := c.searchReturn(vaddr)
	c.returns[vaddr] = r
	c.depth--
	return r
}

func (c *Code) searchReturn(vaddr uint64) bool {
	var in isa.Inst
	var buf [16]byte
	seen := map[uint64]bool{}
	work := []uint64{vaddr}
	steps := 0
	defer func() { c.spent += steps }()
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for !seen[at] {
			seen[at] = true
			if steps++; steps > maxReturnSteps {
				return true
			}
			s, ok := c.fileSpanOf(at)
			if !ok {
				return true
			}
			b := buf[:min(uint64(len(buf)), s.hi-at)]
			if c.im.ReadVaddr(b, at) != nil || !c.dec(b, at, &in) {
				return true
			}
			at += uint64(in.Len)
			switch in.Flow {
			case isa.Return:
				return true
			case isa.IndirectJump:
				if in.Reg != procstate.NoReg || in.Target == 0 || !c.noReturn[in.Target] {
					return true
				}
			case isa.Jump, isa.CondJump:
				work = append(work, in.Target)
			case isa.Call:
				if !c.doesReturn(in.Target) {
					in.Flow = isa.Trap
				}
			case isa.IndirectCall:
				if in.Target != 0 && c.noReturn[in.Target] {
					in.Flow = isa.Trap
				}
			}
			if in.Ends() {
				break
			}
		}
	}
	return false
}
