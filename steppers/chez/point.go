package chez

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
)

// layout is how headers of places of return are laid out, which changed twice.
type layout uint8

const (
	unknown layout = iota
	plain          // livemask, toplink, frame-size, mv-return-address: up to 9.5
	compact        // Racket's, and 10: toplink, mv-return-address, livemask, frame-size
	later          // or mv-return-address, livemask, toplink, frame-size; both mostly toplink, mask+size+mode
)

// Tags of code objects: the low byte of their first word.
const (
	plainCode   = 0x3e
	compactCode = 0xbe
	codeHead    = 64 // bytes before their code

	systemCode       = 1 << 8 // flags
	continuationCode = 2 << 8
)

// point is a place of return: the size of the frame that goes on there in bytes, 0 for that of underflow, and
// the code object that it is in.
type point struct {
	size, code uint64
	header     [32]byte
}

// headerLen returns the bytes of a header in front of a place of return, by the last of them.
func (l layout) headerLen(header []byte) int {
	if l != plain && header[len(header)-8]&1 != 0 {
		return 16
	}
	return 32
}

// pointAt returns the place of return at an address.
func (vm *machine) pointAt(ra uint64) (p point, ok bool) {
	m := vm.w.MappingAt(ra - 1)
	if m == nil || m.Image != nil || ra-m.Start < uint64(len(p.header)) {
		return p, false
	}
	if len(mcode.Read(vm.w, m, ra-uint64(len(p.header)), p.header[:])) < len(p.header) {
		return p, false
	}
	if known, ok := vm.points[ra]; ok && vm.layout != unknown {
		n := vm.layout.headerLen(p.header[:])
		if bytes.Equal(known.header[len(p.header)-n:], p.header[len(p.header)-n:]) {
			return known, true
		}
	}
	layouts := []layout{vm.layout}
	if vm.layout == unknown {
		layouts = []layout{plain, compact, later}
	}
	for _, l := range layouts {
		if found := p; vm.parse(l, ra, &found) {
			if vm.layout == unknown && l.headerLen(p.header[:]) == 32 {
				vm.layout = l // the compact ones are the same in two
			}
			if len(vm.points) >= maxPoints {
				clear(vm.points)
			}
			vm.points[ra] = found
			return found, true
		}
	}
	return p, false
}

// parse takes a header apart.
func (vm *machine) parse(l layout, ra uint64, p *point) bool {
	word := func(before int) uint64 { return binary.LittleEndian.Uint64(p.header[len(p.header)-before:]) }
	top, tag := 0, uint64(compactCode)
	switch last := word(8); {
	case l == plain:
		top, tag, p.size = 24, plainCode, word(16)
	case last&1 != 0:
		const words = 31
		top, p.size = 16, last>>2&words*8
	case l == compact:
		top, p.size = 32, last
	default:
		top, p.size = 16, last
	}
	object := ra - uint64(top) - word(top) + 1 // pointers to objects of that kind are tagged by -1
	if word(top) >= maxCode || p.size%8 != 0 || p.size > maxFrame || object%16 != 0 {
		return false
	}
	kind, ok := vm.codeObject(object, ra)
	p.code = object
	return ok && kind&0xff == tag && (p.size > 0 || kind&systemCode != 0)
}

// codeObject returns the first word of a code object, if it is one that has code at an address, or right before.
func (vm *machine) codeObject(object, pc uint64) (kind uint64, ok bool) {
	const most = 1 << 16
	var head [16]byte
	m := vm.w.MappingAt(object)
	if m == nil || m.Image != nil || len(mcode.Read(vm.w, m, object, head[:])) < len(head) {
		return 0, false
	}
	kind, size := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	isCode := kind < most && (kind&0xff == plainCode || kind&0xff == compactCode)
	return kind, isCode && size < maxCode && pc >= object+codeHead && pc-object-codeHead <= size
}

// pointBehind returns the place of return whose header stands at an address, or behind what a jump is filled up with.
func (vm *machine) pointBehind(addr uint64) (p point, ok bool) {
	const fill = "\x0f\x1f\x80\x00\x00\x00\x00" // nopl 0(%rax)
	code := vm.codeAt(addr)
	for {
		if len(code) < 32 {
			return p, false
		}
		for _, n := range [...]int{16, 32} {
			last := code[n-8:]
			if vm.layout != plain && (n == 16) != (last[0]&1 != 0) {
				continue
			}
			if p, ok = vm.pointAt(addr + uint64(n)); ok {
				return p, true
			}
		}
		if !bytes.HasPrefix(code, []byte(fill)) {
			return p, false
		}
		addr, code = addr+uint64(len(fill)), code[len(fill):]
	}
}

// objectAt returns the code object that has code at an address: the one that is given, the one that had it before, or
// that which stands before.
func (vm *machine) objectAt(pc, given uint64) (object uint64, ok bool) {
	const most, step = 16 << 10, 16
	for _, object := range [...]uint64{given, vm.codes[pc].object} {
		if object != 0 {
			if _, ok := vm.codeObject(object, pc); ok {
				return object, true
			}
		}
	}
	m := vm.w.MappingAt(pc)
	if m == nil || m.Image != nil {
		return 0, false
	}
	from := max(m.Start, pc-min(pc, most)) &^ (step - 1)
	vm.before = slices.Grow(vm.before[:0], most+step)[:pc-from]
	code := mcode.Read(vm.w, m, from, vm.before)
	for at := len(code) - codeHead; at >= 0; at-- {
		if (from+uint64(at))%step != 0 {
			continue
		}
		if kind := binary.LittleEndian.Uint64(code[at:]); kind>>16 != 0 || kind&0xff != plainCode && kind&0xff != compactCode {
			continue
		}
		if _, ok := vm.codeObject(from+uint64(at), pc); ok {
			return from + uint64(at), true
		}
	}
	return 0, false
}
