package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// The unwind tables of the running kernel (ORC, arch/x86/include/asm/orc_types.h),
// read where they lie in its memory, an entry when it is asked for. For each
// piece of code there is its beginning, relative to where that number is, and
// an entry at the same place in another array.

// orcRule is an entry: how to find the caller's frame.
type orcRule struct {
	spOffset, bpOffset int16
	spReg, bpReg, typ  uint8
	signal             bool
}

// Registers and types, by their numbers in entries of Linux 6.4.
const (
	orcUndefined = iota
	orcPrevSP
	orcDX
	orcDI
	orcBP
	orcSP
	orcR10
	orcR13
	orcBPIndirect
	orcSPIndirect
)
const (
	orcTypeUndefined = iota
	orcTypeEndOfStack
	orcTypeCall
	orcTypeRegs
	orcTypeRegsPartial
)

const orcEntryBytes = 6

// orcEntryFields are the members of struct orc_entry: offset and size, in bits.
var orcEntryFields = map[string][2]uint32{
	"sp_offset": {0, 16}, "bp_offset": {16, 16}, "sp_reg": {32, 4}, "bp_reg": {36, 4}, "type": {40, 3}, "signal": {43, 1},
}

// orcRegisters are the registers by their numbers in entries.
type orcRegisters [16]uint8

const orcUnknown = 15 // no register

// The numberings of Linux 6.4, and of 7.3.
var orcNumberings = []*orcRegisters{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, orcUnknown, orcUnknown, orcUnknown, orcUnknown, orcUnknown, orcUnknown},
	{orcUndefined, orcUnknown, orcDX, orcSP, orcBP, orcUnknown, orcR10, orcR13, orcPrevSP, orcSPIndirect, orcBPIndirect,
		orcUnknown, orcUnknown, orcUnknown, orcUnknown, orcUnknown},
}

func (r *orcRegisters) decode(b []byte) orcRule {
	return orcRule{
		spOffset: int16(binary.LittleEndian.Uint16(b)),
		bpOffset: int16(binary.LittleEndian.Uint16(b[2:])),
		spReg:    r[b[4]&15], bpReg: r[b[4]>>4], typ: b[5] & 7, signal: b[5]&8 != 0,
	}
}

// orcTable is that of the kernel or of a module.
type orcTable struct {
	ips, entries uint64 // addresses of the arrays
	n            int    // their length
}

// memoryReader reads memory as kernelMemory does.
type memoryReader interface {
	read(addr uint64, n int) ([]byte, error)
	readBoth(addr1 uint64, n1 int, addr2 uint64, n2 int) (b1, b2 []byte, err error)
	read32(addr uint64) (uint32, error)
}

// kernelORC is all tables.
type kernelORC struct {
	mem       memoryReader
	layout    kernelLayout
	registers *orcRegisters
	text, end uint64 // code of the kernel itself
	table     orcTable
	lookup    uint64 // address of an array: the entry in force at each block of code
	modules   []orcModule
	rules     [4096]orcKnown
	blocks    [1024]orcRows
	lookups   [64]orcLookups
}

// orcKnown is what is known of an instruction.
type orcKnown struct {
	pc uint64
	orcRule
	ok bool
}

// orcRow is an entry with the address from which on it holds.
type orcRow struct {
	start uint64
	orcRule
}

// orcRows are the rows in force in a block of code.
type orcRows struct {
	block uint64 // its address by its size; 0: none is known
	rows  []orcRow
}

// orcLookups is a part of the lookup array, as it is read at a time.
type orcLookups struct {
	part uint64 // its number plus one; 0: none is known
	rows [orcLookupPart + 1]uint32
}

// orcLookupPart is of how many blocks of code.
const orcLookupPart = 256

type orcModule struct {
	name       string
	from, to   uint64 // its code; more than that as long as it is not examined
	table      orcTable
	isExamined bool
}

var errNoORC = errors.New("the kernel has no unwind tables that are known")

const (
	orcBlock     = 256       // LOOKUP_BLOCK_SIZE
	maxORC       = 1 << 24   // entries
	kernelImage  = 128 << 20 // more than a kernel has of code and data
	moduleSpace  = 0xffffffffa0000000
	moduleEnd    = 0xffffffffff000000
	movedSpace   = 0xffffffffc0000000 // where moduleSpace begins if the kernel itself may be there
	textAlign    = 4096
	orcFunctions = 512 // bytes looked at of a function
)

// kernelLayout is what must be known of the kernel's types.
type kernelLayout struct {
	// Offsets in struct module: of its tables, and of address and size of its code.
	// All are 0 when there are no modules.
	moduleArch, moduleText, moduleTextSize uint32
}

// orcLayout checks that entries are of the kind known.
func orcLayout(types *btf.Spec) (kernelLayout, error) {
	var l kernelLayout
	var entry *btf.Struct
	if err := types.TypeByName("orc_entry", &entry); err != nil {
		return l, fmt.Errorf("%w: %w", errNoORC, err)
	}
	known := 0
	for _, m := range entry.Members {
		at, ok := orcEntryFields[m.Name]
		size := uint32(m.BitfieldSize)
		if size == 0 {
			n, err := btf.Sizeof(m.Type)
			if err != nil {
				return l, err
			}
			size = uint32(8 * n)
		}
		if !ok || uint32(m.Offset) != at[0] || size != at[1] {
			return l, fmt.Errorf("%w: orc_entry.%s", errNoORC, m.Name)
		}
		known++
	}
	if known != len(orcEntryFields) || entry.Size != orcEntryBytes {
		return l, errNoORC
	}
	var module, arch *btf.Struct
	if types.TypeByName("module", &module) != nil || types.TypeByName("mod_arch_specific", &arch) != nil {
		return l, nil
	}
	want := []string{"num_orcs", "orc_unwind_ip", "orc_unwind"}
	for i, m := range arch.Members {
		if i < len(want) && (m.Name != want[i] || m.Offset.Bytes() != uint32(8*i)) {
			return l, nil
		}
	}
	offsets := map[string]uint32{}
	for _, m := range module.Members {
		offsets[m.Name] = m.Offset.Bytes()
	}
	var memory *btf.Struct // of a module's parts: the first is its code (enum mod_mem_type)
	if len(arch.Members) < len(want) || offsets["mem"] == 0 || types.TypeByName("module_memory", &memory) != nil {
		return l, nil
	}
	for _, m := range memory.Members {
		offsets["mem."+m.Name] = m.Offset.Bytes()
	}
	l.moduleArch, l.moduleText, l.moduleTextSize = offsets["arch"], offsets["mem"]+offsets["mem.base"], offsets["mem"]+offsets["mem.size"]
	return l, nil
}

// orcReaders are the functions that may search the tables; compilers put one into another.
var orcReaders = []string{"orc_find", "orc_find.part.0", "orc_find.constprop.0", "unwind_next_frame"}

// findORC finds the kernel's tables. Their symbols are not in every kernel's list,
// but functions are, and the one that searches the tables has their addresses in
// its instructions.
func findORC(mem *kernelMemory, layout kernelLayout) (*kernelORC, error) {
	k := &kernelORC{mem: mem, layout: layout}
	var err error
	if k.text, err = mem.symbol("_stext"); err != nil {
		return nil, err
	}
	if k.end, err = mem.symbol("_etext"); err != nil {
		return nil, err
	}
	candidates := map[uint64]bool{}
	var function uint64 // one of the kernel's
	for _, name := range orcReaders {
		addr, err := mem.symbol(name)
		if err != nil {
			continue
		}
		code, err := mem.read(addr, orcFunctions)
		if err != nil {
			continue
		}
		function = addr
		for i := range len(code) - 4 {
			v := uint64(int64(int32(binary.LittleEndian.Uint32(code[i:]))))
			if v > k.end && v < k.text+kernelImage {
				candidates[v] = true
			}
		}
	}
	var addrs []uint64
	for a := range candidates {
		addrs = append(addrs, a)
	}
	sort.Slice(addrs, func(i, j int) bool { return addrs[i] < addrs[j] })
	for _, ips := range addrs {
		if first, err := k.start(ips); err != nil || first < k.text || first >= k.text+textAlign {
			continue
		}
		for _, entries := range addrs {
			n := int(entries-ips) / 4
			lookup := (entries + uint64(n)*orcEntryBytes + 3) &^ 3
			if entries <= ips || (entries-ips)%4 != 0 || n > maxORC || !candidates[lookup] {
				continue
			}
			k.table, k.lookup = orcTable{ips, entries, n}, lookup
			return k, k.findRegisters(function)
		}
	}
	return nil, errNoORC
}

// findRegisters finds out how registers are numbered: where a function begins, the
// caller's stack pointer is 8 bytes above its own.
func (k *kernelORC) findRegisters(function uint64) error {
	for _, numbering := range orcNumberings {
		k.registers = numbering
		k.forget()
		r, ok := k.rule(function)
		if ok && r == (orcRule{spOffset: 8, spReg: orcSP, typ: orcTypeCall}) {
			return nil
		}
	}
	return fmt.Errorf("%w: registers", errNoORC)
}

// start returns where the code of the entry begins whose number is at an address.
func (k *kernelORC) start(at uint64) (uint64, error) {
	v, err := k.mem.read32(at)
	return at + uint64(int64(int32(v))), err
}

// rule returns the entry for the instruction at pc; false when it is in no table.
func (k *kernelORC) rule(pc uint64) (orcRule, bool) {
	r := &k.rules[orcHash(pc)%uint64(len(k.rules))]
	if r.pc != pc {
		r.pc = pc
		r.orcRule, r.ok = k.find(pc)
	}
	return r.orcRule, r.ok
}

func (k *kernelORC) forget() {
	k.modules = nil
	clear(k.rules[:])
	for i := range k.blocks {
		k.blocks[i].block = 0
	}
	for i := range k.lookups {
		k.lookups[i].part = 0
	}
}

func (k *kernelORC) isText(pc uint64) bool { return pc >= k.text && pc < k.end || k.isModuleSpace(pc) }

func (k *kernelORC) isModuleSpace(pc uint64) bool {
	return pc >= moduleSpace && pc < moduleEnd && (k.end < moduleSpace || pc >= movedSpace)
}

func (k *kernelORC) isGenerated(pc uint64) bool {
	if !k.isModuleSpace(pc) {
		return false
	}
	_, known := k.rule(pc)
	return !known
}

func orcHash(v uint64) uint64 { return v * 0x9e3779b97f4a7c15 >> 40 }

// find looks for the entry.
func (k *kernelORC) find(pc uint64) (orcRule, bool) {
	block := pc / orcBlock
	b := &k.blocks[orcHash(block)%uint64(len(k.blocks))]
	if b.block != block {
		b.block, b.rows = block, k.load(b.rows[:0], block*orcBlock)
	}
	n := sort.Search(len(b.rows), func(i int) bool { return b.rows[i].start > pc })
	if n == 0 {
		return orcRule{}, false
	}
	return b.rows[n-1].orcRule, true
}

// load appends the rows in force in the block of code at an address.
func (k *kernelORC) load(rows []orcRow, at uint64) []orcRow {
	if at >= k.text && at < k.end {
		from, to, ok := k.rowsOf((at - k.text) / orcBlock)
		if !ok || to < from || to >= k.table.n {
			return nil
		}
		return k.read(rows, k.table, from, to+1)
	}
	if !k.isModuleSpace(at) {
		return nil
	}
	if rows = k.loadOfModule(rows, at); len(rows) == 0 {
		k.readModules()
		rows = k.loadOfModule(rows, at)
	}
	return rows
}

// rowsOf returns the numbers of the rows that are in force at the beginning and at the
// end of a block of the kernel's own code.
func (k *kernelORC) rowsOf(block uint64) (from, to int, ok bool) {
	part, i := block/orcLookupPart, block%orcLookupPart
	l := &k.lookups[part%uint64(len(k.lookups))]
	if l.part != part+1 {
		blocks := (k.end-k.text-1)/orcBlock + 1 - part*orcLookupPart // and one row more, for the end
		b, err := k.mem.read(k.lookup+part*orcLookupPart*4, 4*int(min(blocks, orcLookupPart)+1))
		if err != nil {
			return 0, 0, false
		}
		l.part, l.rows = part+1, [len(l.rows)]uint32{}
		for j := range len(b) / 4 {
			l.rows[j] = binary.NativeEndian.Uint32(b[4*j:])
		}
	}
	return int(l.rows[i]), int(l.rows[i+1]), true
}

// read appends the rows [from, to) of a table, or as many as a block can have.
func (k *kernelORC) read(rows []orcRow, t orcTable, from, to int) []orcRow {
	n := min(to-from, orcBlock+1)
	ips := t.ips + uint64(from)*4
	starts, entries, err := k.mem.readBoth(ips, 4*n, t.entries+uint64(from)*orcEntryBytes, orcEntryBytes*n)
	if err != nil {
		return nil
	}
	for i := range n {
		start := ips + uint64(4*i) + uint64(int64(int32(binary.NativeEndian.Uint32(starts[4*i:]))))
		rows = append(rows, orcRow{start, k.registers.decode(entries[orcEntryBytes*i:])})
	}
	return rows
}

// readModules reads which modules there are now.
func (k *kernelORC) readModules() {
	k.modules = nil
	text, err := os.ReadFile("/proc/modules")
	if err != nil || k.layout.moduleArch == 0 {
		return
	}
	for line := range strings.Lines(string(text)) {
		// name size references users state address
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		size, err1 := strconv.ParseUint(f[1], 10, 32)
		addr, err2 := strconv.ParseUint(strings.TrimPrefix(f[5], "0x"), 16, 64)
		if err1 == nil && err2 == nil {
			k.modules = append(k.modules, orcModule{name: f[0], from: addr, to: addr + size})
		}
	}
}

// loadOfModule appends the rows in force in a block of a module's code.
func (k *kernelORC) loadOfModule(rows []orcRow, at uint64) []orcRow {
	for i := range k.modules {
		m := &k.modules[i]
		if at >= m.from && at < m.to && !m.isExamined {
			k.examine(m)
		}
		if at < m.from || at >= m.to {
			continue // or its data, whose place another's code may have
		}
		var fail error
		n := sort.Search(m.table.n, func(i int) bool {
			start, err := k.start(m.table.ips + uint64(i)*4)
			fail = errors.Join(fail, err)
			return start > at
		})
		if fail == nil {
			return k.read(rows, m.table, max(n-1, 0), m.table.n)
		}
	}
	return nil
}

// examine finds a module's code and tables: none of both where that fails.
func (k *kernelORC) examine(m *orcModule) {
	m.isExamined, m.to = true, m.from
	text, err := os.ReadFile("/sys/module/" + m.name + "/sections/.gnu.linkonce.this_module")
	if err != nil {
		return
	}
	if addr, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(string(text)), "0x"), 16, 64); err == nil {
		k.readModule(m, addr)
	}
}

// readModule reads code and tables of the module whose struct module is at an address.
func (k *kernelORC) readModule(m *orcModule, module uint64) {
	b, err := k.mem.read(module+uint64(k.layout.moduleText), 8)
	if err != nil || binary.LittleEndian.Uint64(b) != m.from {
		return
	}
	size, err := k.mem.read32(module + uint64(k.layout.moduleTextSize))
	if err != nil {
		return
	}
	if b, err = k.mem.read(module+uint64(k.layout.moduleArch), 24); err != nil { // num_orcs, orc_unwind_ip, orc_unwind
		return
	}
	if n := binary.LittleEndian.Uint32(b); n <= maxORC {
		m.table = orcTable{ips: binary.LittleEndian.Uint64(b[8:]), entries: binary.LittleEndian.Uint64(b[16:]), n: int(n)}
		m.to = m.from + uint64(size)
	}
}
