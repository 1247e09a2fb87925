package unwind

import "unsafe"

// Compiled rows are kept by pages of code, so that a few functions of a large
// library cost only themselves and a row takes four bytes.
const (
	pageBits  = 12
	groupBits = 8       // pages that are looked up together
	maxGroups = 1 << 14 // 16 GB of code
)

// rows are the compiled rows of a Table. Addresses are relative to its base.
type rows struct {
	groups []*[1 << groupBits]uint32 // by page: 1 + index of its first piece
	pieces []piece
	rows   []compiledRow
	rules  []*[ruleChunk]Rule
	nrules int
	index  []uint16 // hash table of rules: 0 is free, else 1 + a rule's number
	after  []uint16 // by rule: which one came after it last
	last   uint16   // the rule of the last row
	nrows  int      // of the rules, those that are whole rows
}

const ruleChunk = 16

// piece is the part of an FDE that lies in one page: the code from offset
// start to last in the page, and the place of its rows.
type piece struct {
	start, last uint16
	next        uint32 // 1 + index of the next piece of the page
	first       uint32 // in rows.rows; they end where those of the next piece begin
}

// compiledRow says that from offset start in the page on rule applies.
type compiledRow struct{ start, rule uint16 }

// find returns the rule for a relative address, or nil when none is kept.
func (k *rows) find(rel uint64) *Rule {
	g := rel >> (pageBits + groupBits)
	if g >= uint64(len(k.groups)) || k.groups[g] == nil {
		return nil
	}
	at := uint16(rel & (1<<pageBits - 1))
	for i := k.groups[g][rel>>pageBits&(1<<groupBits-1)]; i != 0; {
		p := &k.pieces[i-1]
		if at >= p.start && at <= p.last {
			end := uint32(len(k.rows))
			if int(i) < len(k.pieces) {
				end = k.pieces[i].first
			}
			return k.rule(k.rows[p.first:end], at)
		}
		i = p.next
	}
	return nil
}

// inside reports whether one of the pieces holds a relative address and the one
// before it.
func (k *rows) inside(rel uint64) bool {
	g := rel >> (pageBits + groupBits)
	at := uint16(rel & (1<<pageBits - 1))
	if at == 0 || g >= uint64(len(k.groups)) || k.groups[g] == nil {
		return false
	}
	for i := k.groups[g][rel>>pageBits&(1<<groupBits-1)]; i != 0; {
		p := &k.pieces[i-1]
		if at > p.start && at <= p.last {
			return true
		}
		i = p.next
	}
	return false
}

// rule returns the rule of the last row that begins at or below at.
func (k *rows) rule(of []compiledRow, at uint16) *Rule {
	lo, hi := 0, len(of)
	for hi-lo > 1 {
		if mid := int(uint(lo+hi) >> 1); of[mid].start <= at {
			lo = mid
		} else {
			hi = mid
		}
	}
	return k.number(of[lo].rule)
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
	if k.nrules > 0 {
		if id = k.after[k.last]; k.number(id).same(&r) {
			k.last = id
			return id, true
		}
	}
	if id, ok = k.numberOf(&r); ok {
		if k.nrules > 1 {
			k.after[k.last] = id
		}
		k.last = id
	}
	return id, ok
}

// number returns a rule by its number.
func (k *rows) number(id uint16) *Rule { return &k.rules[id/ruleChunk][id%ruleChunk] }

// numberOf returns the number of a rule, which is added when it is new. ok is
// false when there are too many.
func (k *rows) numberOf(r *Rule) (id uint16, ok bool) {
	if 4*(k.nrules+1) > 3*len(k.index) {
		k.growIndex()
	}
	mask := uint32(len(k.index) - 1)
	i := r.hash() & mask
	for ; k.index[i] != 0; i = (i + 1) & mask {
		if id := k.index[i] - 1; k.number(id).same(r) {
			return id, true
		}
	}
	if k.nrules >= maxRules {
		return 0, false
	}
	if k.nrules%ruleChunk == 0 {
		k.rules = append(k.rules, new([ruleChunk]Rule))
	}
	id = uint16(k.nrules)
	*k.number(id) = *r
	k.nrules++
	k.index[i] = id + 1
	k.after = append(withRoom(k.after), 0)
	if r.row != nil {
		k.nrows++
	}
	return id, true
}

func (k *rows) growIndex() {
	k.index = make([]uint16, max(64, 2*len(k.index)))
	mask := uint32(len(k.index) - 1)
	for id := range k.nrules {
		i := k.number(uint16(id)).hash() & mask
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
	return *r == *o
}

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

// add keeps a row that begins at an offset in the page of the piece being
// made, which began at index first. A row that is as the one before is merged.
func (k *rows) add(first int, start, rule uint16) {
	if n := len(k.rows); n > first {
		switch last := &k.rows[n-1]; {
		case last.rule == rule:
			return
		case last.start == start:
			last.rule = rule
			return
		}
	}
	k.rows = append(withRoom(k.rows), compiledRow{start, rule})
}

// keep makes a piece of the rows from index first on, for the relative
// addresses [start, end) of one page. ok is false when the address is too high
// to be kept.
func (k *rows) keep(first int, start, end uint64) bool {
	g := start >> (pageBits + groupBits)
	if g >= maxGroups {
		return false
	}
	for uint64(len(k.groups)) <= g {
		k.groups = append(k.groups, nil)
	}
	if k.groups[g] == nil {
		k.groups[g] = new([1 << groupBits]uint32)
	}
	head := &k.groups[g][start>>pageBits&(1<<groupBits-1)]
	k.pieces = append(withRoom(k.pieces), piece{
		start: uint16(start & (1<<pageBits - 1)),
		last:  uint16((end - 1) & (1<<pageBits - 1)),
		next:  *head,
		first: uint32(first),
	})
	*head = uint32(len(k.pieces))
	return true
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
	n := cap(k.groups)*8 + cap(k.pieces)*int(unsafe.Sizeof(piece{})) + cap(k.rows)*int(unsafe.Sizeof(compiledRow{}))
	for _, g := range k.groups {
		if g != nil {
			n += int(unsafe.Sizeof(*g))
		}
	}
	n += len(k.rules) * int(unsafe.Sizeof([ruleChunk]Rule{}))
	n += (cap(k.index) + cap(k.after)) * 2
	n += k.nrows * int(unsafe.Sizeof(Row{}))
	return int64(n)
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
		t.kept = rows{}
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
	f, p, k := &t.fde, &t.prog, &t.kept
	low := t.base + (vaddr-t.base)&^(page-1)
	from, to := max(low, f.start), min(low+page, f.end)
	if low+page < low {
		to = f.end
	}
	first := len(k.rows)
	at := from // the end of what is compiled
	for more := true; more && p.loc < to; {
		var end uint64
		var why Reason
		end, more, why = p.next()
		if why != ReasonNone {
			if vaddr >= at {
				k.rows = k.rows[:first]
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
				up = p.pushedBefore(end)
			}
			p.row.CFA.Offset += up
			added := t.addRow(first, low, start, end)
			p.row.CFA.Offset -= up
			if !added {
				k.rows = k.rows[:first]
				return nil, errTooManyRules
			}
			at = end
		}
		p.loc = end
	}
	r := k.rule(k.rows[first:], uint16(vaddr-low))
	if !k.keep(first, from-t.base, to-t.base) {
		k.rows = k.rows[:first]
	}
	return r, ReasonNone
}

// addRow keeps the present row for [start, end), in the page that begins at
// low.
func (t *Table) addRow(first int, low, start, end uint64) bool {
	p, k := &t.prog, &t.kept
	off, threshold, plt := pltExpression(p.arch, p.bytesOf(p.row.CFA))
	if !plt {
		up := p.row.pushed(p.arch)
		p.row.raiseCFA(up)
		id, ok := k.intern(p)
		p.row.raiseCFA(-up)
		if ok {
			k.add(first, uint16(start-low), id)
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
		k.add(first, uint16(at-low), id)
		if next < at {
			break // past the last address
		}
		at = next
	}
	return true
}

// size is the memory of the Table in bytes, without the windows that it shares.
func (t *Table) size() int64 {
	n := t.kept.size()
	for _, s := range t.sources {
		n += int64(cap(s.data) + cap(s.index)*24 + len(s.cies)*1200)
		if s.hdr != nil {
			n += int64(8 * len(s.hdr.firsts))
		}
	}
	return n
}
