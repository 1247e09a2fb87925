package variables

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/swbpf/swbpf/symbols"
)

// counts returns the numbers of elements of an array's dimensions.
func (v *Value) counts(t *symbols.Type) (counts []int64) {
	dims := t.Dimensions()
	for i := range dims {
		counts = append(counts, v.f.count(&dims[i]))
	}
	return counts
}

// array writes an array of the given dimensions.
func (p *printer) array(v *Value, t *symbols.Type, counts []int64, depth int) {
	if !p.enter() {
		return
	}
	defer p.leave()
	elem := t.Elem()
	size, ok := v.f.sizeOf(elem)
	if len(counts) == 0 || !ok || slices.Min(counts) < 0 {
		if v.memory { // of unknown size: as C has it, its address
			p.b.WriteString(hex(v.addr))
		} else {
			p.b.WriteString("<incomplete type>")
		}
		return
	}
	if x, ok := textOf(elem); ok && !t.Vector && len(counts) == 1 && p.chars(v, x, counts[0]) {
		return
	}
	if err := v.readable(); err != nil && size > 0 && counts[0] > 0 {
		p.b.WriteString(Unknown(err))
		return
	}
	for _, n := range counts[1:] {
		if n > 0 && size > maxArray/uint64(n) {
			p.b.WriteString("<incomplete type>")
			return
		}
		size *= uint64(n)
	}
	around := p.vector
	p.vector = t.Vector
	defer func() { p.vector = around }()
	p.elements(v, size, counts[0], func(part *Value) {
		if len(counts) > 1 {
			part.Type = v.Type
			p.array(part, t, counts[1:], depth)
			return
		}
		p.value(part.as(elem), depth)
	})
}

// cut returns n bytes of a value, without a type.
func (v *Value) cut(off, n uint64) *Value {
	c := &Value{Type: v.Type, f: v.f, size: n, sized: true}
	if v.memory {
		c.memory, c.addr, c.block = true, v.addr+off, v.block
	} else if off <= uint64(len(v.data)) && n <= uint64(len(v.data))-off {
		c.data, c.why = v.data[off:off+n], v.why[off:off+n]
	}
	return c
}

// as returns the value as one of another type of its size.
func (v *Value) as(t *symbols.Type) *Value {
	c := *v
	c.Type = t
	return &c
}

// Bounds on the memory that is read of an array, in bytes.
const (
	arrayRead    = 1 << 16 // at a time
	maxArrayRead = 1 << 20
)

// readable returns why the memory of a value cannot be read.
func (v *Value) readable() error {
	if !v.memory {
		return nil
	}
	_, err := v.bytes(0, 1)
	return err
}

// window returns the element of an array, n elements of a size, at an index,
// with the memory around it.
func (v *Value) window(i, n int64, size uint64) *Value {
	off := uint64(i) * size
	part := v.cut(off, size)
	if v.memory && size > 0 && size <= arrayRead && !v.single && v.block.at(part.addr, int(size)) == nil {
		b := make([]byte, min(uint64(n-i)*size, arrayRead/size*size))
		if v.single = v.f.r.read(part.addr, b) != nil; !v.single {
			v.block = &block{part.addr, b}
			part.block = v.block
		}
	}
	return part
}

// elements writes the n elements of an array, of size bytes each, by write;
// equal ones in a row once.
func (p *printer) elements(v *Value, size uint64, n int64, write func(part *Value)) {
	array := *v
	p.b.WriteByte('{')
	text := func(i int64) string {
		from := p.b.Len()
		write(array.window(i, n, size))
		s := string(p.b.Bytes()[from:])
		p.b.Truncate(from)
		return s
	}
	// last is the last element that may be looked at. Those without a size are
	// all the same.
	last := n - 1
	if size > 0 {
		last = min(last, int64(maxArrayRead/size))
	}
	shown := 0
	for i := int64(0); i < n; {
		if shown >= p.o.Elements || p.b.Len() > maxText || i > last {
			p.b.WriteString("...")
			break
		}
		if i > 0 {
			p.b.WriteString(", ")
		}
		s := text(i)
		run := int64(1)
		if size == 0 {
			run = n - i
		}
		for p.o.Repeats > 0 && i+run <= last && text(i+run) == s {
			run++
			run += array.sameBytes(i+run-1, last, size)
		}
		if run > int64(p.o.Repeats) && p.o.Repeats > 0 {
			fmt.Fprintf(&p.b, "%s <repeats %d times>", s, run)
			i += run
			shown += p.o.Repeats
			continue
		}
		p.b.WriteString(s)
		i++
		shown++
	}
	p.b.WriteByte('}')
}

// sameBytes returns how many elements after the one at an index, up to the
// last, have the same bytes as it.
func (v *Value) sameBytes(i, last int64, size uint64) (count int64) {
	if size == 0 || size > arrayRead/2 {
		return 0
	}
	for i < last {
		v.window(i, last+1, size)
		b := v.block.at(v.addr+uint64(i)*size, int(size))
		if b == nil {
			return count
		}
		b = v.block.data[v.addr+uint64(i)*size-v.block.addr:]
		n := int64(min(uint64(len(b))/size, uint64(last-i+1))) - 1
		b = b[:uint64(n+1)*size]
		if n == 0 {
			v.block = nil // to be read from the element on
			continue
		}
		if !bytes.Equal(b[size:], b[:uint64(n)*size]) {
			for n = 0; bytes.Equal(b[uint64(n)*size:][:size], b[uint64(n+1)*size:][:size]); n++ {
			}
			return count + n
		}
		count, i = count+n, i+n
	}
	return count
}
