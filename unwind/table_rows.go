package unwind

import (
	"slices"
	"unsafe"
)

// Compiled rows are kept by pages of code, so that a few functions of a large
// library cost only themselves, a row takes four bytes, and all that an address
// is looked up in lies side by side.
const (
	pageBits  = 12
	groupBits = 4       // pages that are allocated together
	maxGroups = 1 << 16 // 4 GB of code
)

// rows are the compiled rows of a Table. Addresses are relative to its base.
type rows struct {
	groups []*[1 << groupBits][]compiledRow // by page, in order of address
	made   []compiledRow                    // of a piece of a page, before they are kept: the window's
	bytes  int64                            // in groups, and in the rows of all pages
	all    *rulePool
	added  int      // bytes of the rules that all had not had before
	rules  []*Rule  // by number, of all
	index  []uint16 // hash table of rules: 0 is free, else 1 + a rule's number
	after  []uint16 // by rule: which one came after it last
	last   uint16   // the rule of the last row
}

// compiledRow says that from an offset in the page on rule applies, or that
// nothing is kept there.
type compiledRow struct {
	start uint16 // the offset, whether the piece of an FDE in the page begins, and with which row
	rule  uint16 // notKept, or a rule's number
}

const (
	offsetMask  = 1<<pageBits - 1
	pieceBegins = 1 << 15
	firstOfFDE  = 1 << 14 // with it: it is the FDE's first row, if part of that is in an earlier page
	notKept     = 1<<16 - 1
)

// in returns the rows of the page of a relative address, and the index of the one
// for it; no rows when none is kept.
func (k *rows) in(rel uint64) (page []compiledRow, i int) {
	g := rel >> (pageBits + groupBits)
	if g >= uint64(len(k.groups)) || k.groups[g] == nil {
		return nil, 0
	}
	page = k.groups[g][rel>>pageBits&(1<<groupBits-1)]
	i = rowsBelow(page, uint16(rel&offsetMask)+1) - 1
	if i < 0 || page[i].rule == notKept {
		return nil, 0
	}
	return page, i
}

// at returns the row for a relative address, or nil when none is kept.
func (k *rows) at(rel uint64) *compiledRow {
	if page, i := k.in(rel); page != nil {
		return &page[i]
	}
	return nil
}

// endsPiece reports whether the row before it is the last one of its piece.
func (r compiledRow) endsPiece() bool { return r.start&pieceBegins != 0 || r.rule == notKept }

// rowsBelow returns how many rows of a page begin below an offset. Where rows are
// spread evenly it looks at one or two lines of the cache.
func rowsBelow(page []compiledRow, off uint16) int {
	i := len(page) * int(off) >> pageBits
	for i < len(page) && page[i].start&offsetMask < off {
		i++
	}
	for i > 0 && page[i-1].start&offsetMask >= off {
		i--
	}
	return i
}

// find returns the rule for a relative address, or nil when none is kept.
func (k *rows) find(rel uint64) *Rule {
	if row := k.at(rel); row != nil {
		return k.number(row.rule)
	}
	return nil
}

// inside reports whether a relative address and the one before it are in one
// piece of an FDE that is kept.
func (k *rows) inside(rel uint64) bool {
	row := k.at(rel)
	return row != nil && row.start&^firstOfFDE != uint16(rel&offsetMask)|pieceBegins
}

// maxRules is one less than what a compiledRow can tell apart.
const maxRules = 1<<16 - 1

// intern returns the number of p.row's rule. ok is false when there are too
// many.
func (k *rows) intern(p *program) (id uint16, ok bool) {
	r, compact := p.compact()
	if !compact {
		row := p.ownRow()
		r = Rule{row: &row}
	}
	// Functions save registers in the same order.
	if len(k.rules) > 0 {
		if id = k.after[k.last]; k.number(id).same(&r) {
			k.last = id
			return id, true
		}
	}
	if id, ok = k.numberOf(&r); ok {
		if len(k.rules) > 1 {
			k.after[k.last] = id
		}
		k.last = id
	}
	return id, ok
}

// number returns a rule by its number.
func (k *rows) number(id uint16) *Rule { return k.rules[id] }

// numberOf returns the number of a rule, which is added when it is new. ok is
// false when there are too many.
func (k *rows) numberOf(r *Rule) (id uint16, ok bool) {
	if 4*(len(k.rules)+1) > 3*len(k.index) {
		k.growIndex()
	}
	mask, hash := uint32(len(k.index)-1), r.hash()
	i := hash & mask
	for ; k.index[i] != 0; i = (i + 1) & mask {
		if id := k.index[i] - 1; k.number(id).same(r) {
			return id, true
		}
	}
	if len(k.rules) >= maxRules {
		return 0, false
	}
	id = uint16(len(k.rules))
	known, grown := k.all.shared(r, hash)
	k.added += grown
	k.rules = append(withRoom(k.rules), known)
	k.index[i] = id + 1
	k.after = append(withRoom(k.after), 0)
	return id, true
}

func (k *rows) growIndex() {
	k.index = make([]uint16, max(64, 2*len(k.index)))
	mask := uint32(len(k.index) - 1)
	for id, r := range k.rules {
		i := r.hash() & mask
		for k.index[i] != 0 {
			i = (i + 1) & mask
		}
		k.index[i] = uint16(id + 1)
	}
}

// same reports whether two rules say the same.
func (r *Rule) same(o *Rule) bool {
	if r.row != nil || o.row != nil {
		return r.row != nil && o.row != nil && *r.row == *o.row
	}
	return *(*ruleWords)(unsafe.Pointer(r)) == *(*ruleWords)(unsafe.Pointer(o))
}

// ruleWords are a Rule's bytes, which are compared at once. It has no padding.
type ruleWords [unsafe.Sizeof(Rule{}) / 8]uint64

// hash is the same for rules that say the same.
func (r *Rule) hash() uint32 {
	const factor = 0x9e3779b97f4a7c15
	if r.row != nil {
		h := uint64(r.row.CFA.Kind) ^ uint64(r.row.CFA.Offset)<<8
		for i := range r.row.Regs {
			reg := &r.row.Regs[i]
			h = (h ^ uint64(reg.Kind) ^ uint64(reg.Reg)<<8 ^ uint64(reg.size)<<16 ^ uint64(reg.Offset)<<24) * factor
		}
		for i := range len(r.row.code) {
			h = (h ^ uint64(r.row.code[i])) * factor
		}
		return uint32(h >> 32)
	}
	h := r.carry ^ uint64(uint32(r.cfaOff))<<32 ^ uint64(uint16(r.raOff))<<16 ^ uint64(r.cfaReg)<<8 ^ uint64(r.flags)
	for i := range r.n {
		h = (h ^ uint64(r.reg[i])<<16 ^ uint64(uint16(r.off[i]))) * factor
	}
	return uint32(h * factor >> 32)
}

// add adds a row that begins at an offset in its page to those of the piece being
// made. A row that is as the one before is merged.
func (k *rows) add(start, rule uint16) {
	if n := len(k.made); n > 0 {
		switch last := &k.made[n-1]; {
		case last.rule == rule:
			return
		case last.start == start:
			last.rule = rule
			return
		}
	}
	k.made = append(k.made, compiledRow{start, rule})
}

// keep puts the rows of a piece, that of the relative addresses [start, end) of
// one page, among the others of the page. first is whether the FDE begins with the
// first of them. They are not kept when the address is too high.
func (k *rows) keep(start, end uint64, first bool) {
	g := start >> (pageBits + groupBits)
	if g >= maxGroups {
		return
	}
	if n := int(g) + 1; n > len(k.groups) {
		k.groups = append(k.groups, make([]*[1 << groupBits][]compiledRow, n-len(k.groups))...)
	}
	if k.groups[g] == nil {
		k.groups[g] = new([1 << groupBits][]compiledRow)
		k.bytes += int64(unsafe.Sizeof(*k.groups[g]))
	}
	page := &k.groups[g][start>>pageBits&(1<<groupBits-1)]
	old, to := *page, uint16((end-1)&offsetMask)+1
	before, after := old[:rowsBelow(old, uint16(start&offsetMask))], old[rowsBelow(old, to):]
	k.made[0].start |= pieceBegins
	if first {
		k.made[0].start |= firstOfFDE
	}
	if to <= offsetMask && (len(after) == 0 || after[0].start&offsetMask != to) {
		k.made = append(k.made, compiledRow{to, notKept})
	}
	*page = slices.Concat(before, k.made, after)
	k.bytes += int64(cap(*page)-cap(old)) * int64(unsafe.Sizeof(compiledRow{}))
}

// withRoom returns s with room for another element, and not much more: there are
// many tables.
func withRoom[T any](s []T) []T {
	if len(s) < cap(s) {
		return s
	}
	return append(make([]T, 0, len(s)+max(16, len(s)/4)), s...)
}

// size is the memory in use, in bytes.
func (k *rows) size() int64 {
	return k.bytes + int64(k.added+(cap(k.groups)+cap(k.rules))*8+(cap(k.index)+cap(k.after))*2)
}

// compile executes the FDE of vaddr over the page of vaddr, keeps the rows and
// returns the rule for vaddr.
func (t *Table) compile(vaddr uint64) *Rule {
	if why := t.seek(vaddr); why != ReasonNone {
		return ruleFor(why)
	}
	r, why := t.compileFDE(vaddr)
	if why == errTooManyRules {
		// No real code has so many in one image: begin again.
		t.kept = rows{all: t.kept.all}
		t.prog.start(t.img.Arch(), &t.fde)
		r, why = t.compileFDE(vaddr)
	}
	if why != ReasonNone {
		return ruleFor(why)
	}
	return r
}

// errTooManyRules is not a Reason that is ever shown.
const errTooManyRules = NumReasons

func (t *Table) compileFDE(vaddr uint64) (*Rule, Reason) {
	const page = 1 << pageBits
	f, p, k := &t.fde, t.prog, &t.kept
	low := t.base + (vaddr-t.base)&^(page-1)
	from, to := max(low, f.start), min(low+page, f.end)
	if low+page < low {
		to = f.end
	}
	k.made = k.made[:0]
	at := from // the end of what is compiled
	first := false
	for more := true; more && p.loc < to; {
		var end uint64
		var why Reason
		end, more, why = p.next()
		if why != ReasonNone {
			if vaddr >= at {
				return nil, why
			}
			to = at
			break
		}
		if !more || end > to {
			end = to
		}
		if end > from {
			start := max(p.loc, from)
			up := int64(0)
			if p.loc == f.start {
				up, first = p.pushedBefore(end), true
			}
			p.row.CFA.Offset += up
			added := t.addRow(low, start, end)
			p.row.CFA.Offset -= up
			if !added {
				return nil, errTooManyRules
			}
			at = end
		}
		p.loc = end
	}
	r := k.number(k.made[rowsBelow(k.made, uint16(vaddr-low)+1)-1].rule)
	k.keep(from-t.base, to-t.base, first)
	return r, ReasonNone
}

// addRow adds the present row for [start, end) to those of a piece, in the page
// that begins at low.
func (t *Table) addRow(low, start, end uint64) bool {
	p, k := t.prog, &t.kept
	var off int64
	var threshold uint64
	plt := p.row.CFA.Kind == ValExpression
	if plt {
		off, threshold, plt = pltExpression(p.arch, p.bytesOf(p.row.CFA))
	}
	if !plt {
		up := p.row.pushed(p.arch)
		p.row.raiseCFA(up)
		id, ok := k.intern(p)
		p.row.raiseCFA(-up)
		if ok {
			k.add(uint16(start-low), id)
		}
		return ok
	}
	// The CFA depends on the low bits of the PC: one row for each half of a
	// slot of 16 bytes.
	saved := p.row.CFA
	defer func() { p.row.CFA = saved }()
	for at := start; at < end; {
		p.row.CFA = RegRule{Kind: InReg, Reg: p.arch.SP, Offset: off}
		next := at&^15 + threshold
		if at&15 >= threshold {
			p.row.CFA.Offset += int64(p.arch.AddressWidth)
			next = at&^15 + 16
		}
		id, ok := k.intern(p)
		if !ok {
			return false
		}
		k.add(uint16(at-low), id)
		if next < at {
			break // past the last address
		}
		at = next
	}
	return true
}

// What CIEs take, in bytes: a map of few, and one with its place there.
const (
	emptyMap = 192
	cieBytes = int64(unsafe.Sizeof(cie{})) + 16
)

// size is the memory of the Table in bytes, without the windows and the rules that it
// has from others.
func (t *Table) size() int64 {
	n := t.kept.size()
	for _, s := range t.sources {
		n += int64(unsafe.Sizeof(*s)) + int64(cap(s.data)+cap(s.index)*24) + emptyMap + int64(len(s.cies))*cieBytes
		if s.hdr != nil {
			n += int64(unsafe.Sizeof(*s.hdr)) + int64(8*len(s.hdr.firsts))
		}
	}
	return n
}
