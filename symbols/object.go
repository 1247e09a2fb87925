package symbols

import (
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
)

// newObjectBuilder makes the builder of an index of symbols that name data.
func newObjectBuilder(im *procstate.Image) *symtabBuilder {
	b := &symtabBuilder{upTo: ^uint64(0), objects: true}
	const flags = elf.SHF_ALLOC | elf.SHF_EXECINSTR | elf.SHF_TLS
	for _, s := range im.Sections() {
		if s.Flags&flags == elf.SHF_ALLOC && s.Size > 0 && s.Vaddr+s.Size > s.Vaddr {
			b.code = append(b.code, codeRange{s.Vaddr, s.Vaddr + s.Size})
		}
	}
	if len(b.code) == 0 {
		for _, s := range im.Segments() {
			if s.Flags&elf.PF_X == 0 && s.Vaddr+s.Memsz > s.Vaddr {
				b.code = append(b.code, codeRange{s.Vaddr, s.Vaddr + s.Memsz})
			}
		}
	}
	b.sortCode()
	return b
}

// object returns the symbol of the data at a link-time address of a file. Only
// a symbol with a size names data.
func (s *Symbolizer) object(im *procstate.Image, vaddr uint64) (l Line, ok bool) {
	f := s.file(im)
	f.openOnce.Do(func() { s.open(f) })
	f.objectsOnce.Do(func() {
		b := newObjectBuilder(im)
		s.note(f.addTables(b))
		f.objects = b.build()
		s.budget.charge(f.objects.memory())
	})
	return s.symbol(f.objects, vaddr)
}

// ObjectAt names the variable, or table of the compiler's, that holds the
// run-time address addr, or else the function whose code does, if they are
// those of a file.
func (l *Lookup) ObjectAt(addr uint64) (sym procstate.Symbol, ok bool) {
	if l.libs == nil {
		return sym, false
	}
	for _, lib := range l.libs.Libraries() {
		if lib.Image == nil {
			continue
		}
		vaddr := addr - lib.Bias
		for _, seg := range lib.Image.Segments() {
			if vaddr-seg.Vaddr >= seg.Memsz {
				continue
			}
			if o, ok := l.s.object(lib.Image, vaddr); ok {
				return procstate.Symbol{Name: o.Function, Offset: vaddr - o.FunctionStart, Object: lib.Image}, true
			}
			if seg.Flags&elf.PF_X == 0 {
				return sym, false
			}
			return l.SymbolAt(addr)
		}
	}
	return sym, false
}
