package dataflow

import (
	"debug/elf"
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// findSpans takes the executable sections, or the executable segments of a
// file without sections.
func (c *Code) findSpans() {
	for _, s := range c.im.Sections() {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Flags&elf.SHF_ALLOC != 0 && s.Type != elf.SHT_NOBITS {
			c.addSpan(s.Vaddr, s.Size)
		}
	}
	if len(c.spans) == 0 {
		for _, s := range c.im.Segments() {
			if s.Flags&elf.PF_X != 0 {
				c.addSpan(s.Vaddr, s.Filesz)
			}
		}
	}
	slices.SortFunc(c.spans, func(a, b span) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	})
	left, end := uint64(c.im.Size()), uint64(0)
	for i, s := range c.spans {
		if s.lo < end || s.hi-s.lo > left { // overlapping, in memory or in the file: a hostile file
			c.spans = c.spans[:i]
			break
		}
		left, end = left-(s.hi-s.lo), s.hi
	}
}

func (c *Code) addSpan(vaddr, size uint64) {
	if off, ok := c.im.OffsetOfVaddr(vaddr, size); !ok || size == 0 || size > maxText || off+size > uint64(c.im.Size()) {
		return
	}
	c.spans = append(c.spans, span{vaddr, vaddr + size})
}

// read returns a copy of the code at [lo, hi), nil when it cannot be read.
func (c *Code) read(lo, hi uint64) []byte {
	b := make([]byte, hi-lo)
	if c.im.ReadVaddr(b, lo) != nil {
		return nil
	}
	return b
}

// isPadding reports whether an instruction is one that fills gaps.
func isPadding(code []byte, in *isa.Inst) bool {
	if in.Flow == isa.Trap {
		return code[0] == 0xcc || len(code) == 4 && code[0]|code[1]|code[2]|code[3] == 0
	}
	if in.Flow != isa.Next {
		return false
	}
	if len(code) == 4 && code[0] == 0x1f && code[1] == 0x20 && code[2] == 0x03 && code[3] == 0xd5 {
		return true // AArch64 nop
	}
	if op := &in.Ops[0]; (code[0] == 0x8d || code[0] == 0x89 || code[0] == 0x2e && code[1] == 0x8d) && in.NumOps == 1 && op.Kind == isa.Set && op.Dst == op.Src && op.Imm == 0 {
		return true // of i386: lea 0(%esi),%esi, mov %esi,%esi
	}
	for len(code) > 1 && (code[0] == 0x66 || code[0] == 0x2e) {
		code = code[1:]
	}
	if code[0] == 0x90 || code[0] == 0xcc {
		return true
	}
	return len(code) > 2 && code[0] == 0x0f && code[1] == 0x1f || isZero(code)
}

// pads is isPadding for an instruction of the file.
func (c *Code) pads(addr uint64, in *isa.Inst) bool {
	var b [16]byte
	return c.im.ReadVaddr(b[:in.Len], addr) == nil && isPadding(b[:in.Len], in)
}

// findFunctions fills starts, evidence, taken and incoming.
func (c *Code) findFunctions() {
	marks := map[uint32]uint8{}
	if c.alone != nil {
		marks[0] = declared | called
		c.markCalled(marks)
		c.setStarts(marks)
		return
	}
	for _, starts := range [][]uint64{c.im.FuncStarts(), c.told} {
		for _, v := range starts {
			if _, ok := c.spanOf(v); ok {
				marks[c.off(v)] |= declared
			}
		}
	}
	if e := c.im.Entry(); e != 0 {
		if _, ok := c.spanOf(e); ok {
			marks[c.off(e)] |= declared
		}
	}
	for _, s := range c.spans {
		marks[c.off(s.lo)] |= 0
	}
	c.markStubs(marks)
	c.markCalled(marks)
	c.setStarts(marks)
}

// setStarts keeps where functions begin, and looks for the jumps between them.
func (c *Code) setStarts(marks map[uint32]uint8) {
	c.starts = make([]uint32, 0, len(marks))
	for o := range marks {
		c.starts = append(c.starts, o)
	}
	slices.Sort(c.starts)
	c.evidence = make([]uint8, len(c.starts))
	for i, o := range c.starts {
		c.evidence[i] = marks[o]
	}
	c.findJumps()
	c.skimmed = nil
}

// markStubs marks the entries of the procedure linkage table. Its first
// entry, where the others go to have their function looked up, is entered
// with a word pushed.
func (c *Code) markStubs(marks map[uint32]uint8) {
	s, ok := c.im.Section(".plt")
	if !ok || s.Size > maxText {
		return
	}
	within, ok := c.spanOf(s.Vaddr)
	if !ok {
		return
	}
	s.Size = min(s.Size, within.hi-s.Vaddr)
	head, step := uint64(16), uint64(16)
	if c.arch == procstate.ARM64 {
		// The first entry is twice as long, and pushes the word itself.
		head = 32
		marks[c.off(s.Vaddr)] |= called | stub
	}
	var in isa.Inst
	code := c.read(s.Vaddr, s.Vaddr+min(s.Size, 16))
	if c.dec(code, s.Vaddr, &in) && in.Flow == isa.IndirectJump {
		// A static program's, for functions that are chosen at its start.
		head, step = 0, 16
		if len(code) == 16 && c.dec(code[8:], s.Vaddr+8, &in) && in.Flow == isa.IndirectJump {
			step = 8
		}
	} else if c.arch != procstate.ARM64 {
		marks[c.off(s.Vaddr)] |= continued
	}
	for o := head; o < s.Size; o += step {
		marks[c.off(s.Vaddr+o)] |= called | stub
	}
}

// markCalled marks the targets of direct calls, and what begins as functions
// do and has its address taken. Bytes that are no code make
// calls too: a single call to a place where other code runs on is not
// believed.
func (c *Code) markCalled(marks map[uint32]uint8) {
	var targets []uint32
	for i := range c.spans {
		var consts constants
		calledNext := uint64(0) // the target of a call of the next instruction
		c.sweep(i, func(addr uint64, in *isa.Inst, _ bool) {
			if in.Flow == isa.Call {
				c.askedPC(&consts, addr, 0, in)
				calledNext = 0
				if in.Target == addr+uint64(in.Len) {
					calledNext = in.Target
				}
				if _, ok := c.spanOf(in.Target); ok && in.Target != addr+uint64(in.Len) {
					targets = appendFew(targets, c.off(in.Target), 2)
				}
				return
			}
			if in.Table != 0 {
				c.tables = append(c.tables, in.Table)
			}
			if c.askedPC(&consts, addr, calledNext, in) {
				return
			}
			for i := range in.Ops[:in.NumOps] {
				if v, known := consts.apply(&in.Ops[i]); known {
					c.take(v)
				}
			}
		})
	}
	slices.Sort(c.tables)
	c.tables = slices.Compact(c.tables)
	labels := c.labels()
	if c.alone == nil {
		c.findRelocated()
		c.findPointers()
	}
	c.taken = slices.Clone(sortFew(c.taken, 1))
	slices.Sort(targets)
	i := 0
	for n := range c.spans {
		afterCall := false // which may not return
		c.sweep(n, func(addr uint64, in *isa.Inst, fresh bool) {
			defer func() {
				if afterCall && c.pads(addr, in) {
					return
				}
				afterCall = in.Flow == isa.Call || in.Flow == isa.IndirectCall || in.Flow == isa.Syscall
			}()
			o := c.off(addr)
			for i < len(targets) && targets[i] < o {
				i++ // within an instruction
			}
			n := 0
			for ; i < len(targets) && targets[i] == o; i++ {
				n++
			}
			if n > 1 || n == 1 && (fresh || afterCall || addr%16 == 0 || marks[o] != 0) {
				marks[o] |= called
			}
			switch {
			case !lowersSP(c.arch, in):
			case fresh && c.isTaken(addr) && !labels[o]:
				marks[o] |= called // by address
			case c.nops && c.isBehindFill(addr):
				marks[o] |= 0
			}
		})
	}
}

// isBehindFill reports whether what GraalVM fills gaps between functions with stands before an
// address at which one could begin: int3, more than once.
func (c *Code) isBehindFill(addr uint64) bool {
	const int3 = 0xcc
	var b [2]byte
	return c.arch.PCAlign == 1 && addr%16 == 0 && c.im.ReadVaddr(b[:], addr-2) == nil && b == [2]byte{int3, int3}
}

// take notes that something refers to vaddr, when code could begin there.
func (c *Code) take(vaddr uint64) {
	vaddr &= c.arch.AddrMask
	if _, ok := c.spanOf(vaddr); ok && vaddr%uint64(c.arch.PCAlign) == 0 {
		c.taken = appendFew(c.taken, c.off(vaddr), 1)
	}
}

// appendFew appends an address to a list of which only so many of each are asked for.
// When there is no more room it is put in order and the others go, and it grows
// only where that does not help.
func appendFew(list []uint32, addr uint32, few int) []uint32 {
	const small = 1 << 14
	if len(list) == cap(list) && len(list) >= small {
		if list = sortFew(list, few); len(list) > cap(list)/2 {
			list = slices.Grow(list, len(list)/2)
		}
	}
	return append(list, addr)
}

// sortFew puts a list in order and leaves so many of each address.
func sortFew(list []uint32, few int) []uint32 {
	slices.Sort(list)
	n := 0
	for _, addr := range list {
		if n < few || list[n-few] != addr {
			list[n] = addr
			n++
		}
	}
	return list[:n]
}

// constants are the addresses that the code before put into registers. AArch64
// takes two instructions for one: adrp, and an addition that follows it.
type constants [procstate.MaxRegs]uint64

// apply follows an operation and returns the constant that it makes.
func (k *constants) apply(op *isa.Op) (v uint64, known bool) {
	if op.Dst >= procstate.MaxRegs || op.Src >= procstate.MaxRegs {
		return 0, false
	}
	switch op.Kind {
	case isa.Const:
		v = uint64(op.Imm)
	case isa.Set:
		if k[op.Src] != 0 {
			v = k[op.Src] + uint64(op.Imm)
		}
	case isa.Store, isa.StoreIndexed, isa.Scratch, isa.Compare:
		return 0, false
	}
	k[op.Dst] = v
	return v, v != 0
}

// findJumps collects the jumps that leave their region, and finds functions
// that do not return by where they are called: what ends two functions at
// least is none that comes back.
func (c *Code) findJumps() {
	ends := map[uint64]int{} // how many functions end with a call of it
	for i := range c.spans {
		region := span{}
		callee := uint64(0) // that was called right before, but for padding
		c.sweep(i, func(addr uint64, in *isa.Inst, _ bool) {
			if callee != 0 {
				switch {
				case c.startsAt(addr)&(declared|called) != 0:
					ends[callee]++
					callee = 0
				case !c.pads(addr, in):
					callee = 0
				}
			}
			if in.Flow == isa.Call {
				callee = in.Target
			}
			if in.Flow != isa.Jump && in.Flow != isa.CondJump {
				return
			}
			if addr < region.lo || addr >= region.hi {
				region, _ = c.region(addr)
			}
			if in.Target >= region.lo && in.Target < region.hi {
				return
			}
			if _, ok := c.spanOf(in.Target); ok {
				c.incoming = append(c.incoming, jump{c.off(in.Target), c.off(addr)})
			}
		})
	}
	for callee, n := range ends {
		if n > 1 {
			c.returns[callee] = false
		}
	}
	slices.SortFunc(c.incoming, func(a, b jump) int {
		if a.target != b.target {
			return int(int64(a.target) - int64(b.target))
		}
		return int(int64(a.source) - int64(b.source))
	})
}

// region returns the region that holds vaddr, which must be in a span, and
// the evidence for its start.
func (c *Code) region(vaddr uint64) (span, uint8) {
	o := c.off(vaddr)
	i := sort.Search(len(c.starts), func(i int) bool { return c.starts[i] > o }) - 1
	s, _ := c.spanOf(vaddr)
	if i < 0 {
		return s, 0
	}
	r := span{c.lo + uint64(c.starts[i]), s.hi}
	if i+1 < len(c.starts) {
		r.hi = min(r.hi, c.lo+uint64(c.starts[i+1]))
	}
	return r, c.evidence[i]
}

// startsAt returns the evidence that a function starts at vaddr.
func (c *Code) startsAt(vaddr uint64) uint8 {
	if i, ok := slices.BinarySearch(c.starts, c.off(vaddr)); ok {
		return c.evidence[i]
	}
	return 0
}

// isTaken reports whether the address is one that code or data refers to.
func (c *Code) isTaken(vaddr uint64) bool {
	_, ok := slices.BinarySearch(c.taken, c.off(vaddr))
	return ok
}

// nextTaken returns the first address from vaddr on that code or data refers
// to, or the end of all.
func (c *Code) nextTaken(vaddr uint64) uint64 {
	if i, _ := slices.BinarySearch(c.taken, c.off(vaddr)); i < len(c.taken) {
		return c.lo + uint64(c.taken[i])
	}
	return ^uint64(0)
}

// jumpedTo reports whether another region jumps to vaddr.
func (c *Code) jumpedTo(vaddr uint64) bool {
	return len(c.jumpsInto(span{vaddr, vaddr + 1})) > 0
}

// jumpedToByFunction reports whether one of the regions that jump to vaddr begins
// with a function: others may be parts of the function there.
func (c *Code) jumpedToByFunction(vaddr uint64) bool {
	for _, j := range c.jumpsInto(span{vaddr, vaddr + 1}) {
		r, ev := c.region(c.lo + uint64(j.source))
		if ev&(declared|called) != 0 && !c.isPart(r, ev) {
			return true
		}
	}
	return false
}

// isPart reports whether a region that is declared begins with a part of a
// function: others jump there, and nothing calls it.
func (c *Code) isPart(r span, ev uint8) bool {
	return ev&declared != 0 && ev&called == 0 && c.jumpedTo(r.lo) && !c.isTaken(r.lo)
}

// isShared reports whether a region is one in which the seldom executed parts
// of many functions lie together: many others jump into it.
func (c *Code) isShared(r span) bool {
	const many = 30
	jumps := c.jumpsInto(span{r.lo + 1, max(r.hi, r.lo+2)})
	if len(jumps) < many {
		return false
	}
	shared, ok := c.shared[r.lo]
	if !ok {
		from := map[uint64]bool{}
		for _, j := range jumps {
			s, _ := c.region(c.lo + uint64(j.source))
			if from[s.lo] = true; len(from) >= many {
				break
			}
		}
		shared = len(from) >= many
		c.shared[r.lo] = shared
	}
	return shared
}

// jumpsInto returns the jumps from elsewhere into a region.
func (c *Code) jumpsInto(r span) []jump {
	lo, hi := c.off(r.lo), c.off(r.hi-1)
	i := sort.Search(len(c.incoming), func(i int) bool { return c.incoming[i].target >= lo })
	j := sort.Search(len(c.incoming), func(i int) bool { return c.incoming[i].target > hi })
	return c.incoming[i:j]
}
