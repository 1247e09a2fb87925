// Package perftest makes recordings as perf does, for tests: of other machines, with what this one's perf
// does not write, and with mistakes.
package perftest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"
)

// Attr is an event, as struct perf_event_attr has it.
type Attr struct {
	Type, StackUser                                                     uint32
	Config, Period, SampleType, ReadFormat, Flags, BranchType, RegsUser uint64
	RegsIntr                                                            uint64
	Name                                                                string
	ID                                                                  uint64
}

// SampleIDAll is the flag by which all records have a trailer.
const SampleIDAll = 1 << 18

// Recording is one under way.
type Recording struct {
	Attrs   []Attr
	Machine string // uname -m; what follows may be empty too
	Host    string
	Release string
	BuildID [][]byte // records of build IDs, as BuildIDRecord makes them

	data []byte
}

// Bytes puts values one behind the other, little-endian; strings end with a NUL and are padded to 8.
func Bytes(values ...any) (b []byte) {
	le := binary.LittleEndian
	for _, v := range values {
		switch v := v.(type) {
		case uint16:
			b = le.AppendUint16(b, v)
		case int:
			b = le.AppendUint32(b, uint32(v))
		case uint32:
			b = le.AppendUint32(b, v)
		case uint64:
			b = le.AppendUint64(b, v)
		case []uint64:
			for _, w := range v {
				b = le.AppendUint64(b, w)
			}
		case []byte:
			b = append(b, v...)
		case string:
			b = append(b, v...)
			b = append(b, make([]byte, 8-len(v)%8)...)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

// Record makes a record with its header.
func Record(typ uint32, misc uint16, values ...any) []byte {
	body := Bytes(values...)
	if len(body)+8 > math.MaxUint16 {
		panic("record too long")
	}
	return Bytes(typ, misc, uint16(len(body)+8), body)
}

// Add adds a record.
func (r *Recording) Add(typ uint32, misc uint16, values ...any) {
	r.data = append(r.data, Record(typ, misc, values...)...)
}

// AddBytes adds bytes where records are.
func (r *Recording) AddBytes(b []byte) { r.data = append(r.data, b...) }

// Data returns the records alone, as files beside the one with the header have them.
func (r *Recording) Data() []byte { return r.data }

// FinishRound ends a round.
func (r *Recording) FinishRound() { r.Add(68, 0) }

// BuildIDRecord makes the record of a build ID.
func BuildIDRecord(typ uint32, misc uint16, pid int, id []byte, path string) []byte {
	padded := make([]byte, 24)
	copy(padded, id)
	if misc&(1<<15) != 0 {
		padded[20] = byte(len(id))
	}
	return Record(typ, misc, pid, padded, path)
}

// Compress replaces the records that there are by compressed ones, each of which holds so many bytes of
// them: of the newer sort every other.
func (r *Recording) Compress(each int) {
	var packed buffer
	z, err := zstd.NewWriter(&packed, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(64<<10))
	if err != nil {
		panic(err)
	}
	data := r.data
	r.data = nil
	for i := 0; len(data) > 0; i++ {
		n := min(each, len(data))
		if _, err := z.Write(data[:n]); err != nil {
			panic(err)
		}
		data = data[n:]
		if err := z.Flush(); err != nil {
			panic(err)
		}
		if i%2 == 0 {
			r.Add(81, 0, []byte(packed))
		} else {
			padding := make([]byte, (8-len(packed)%8)%8)
			r.Add(83, 0, uint64(len(packed)), []byte(packed), padding)
		}
		packed = packed[:0]
	}
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

const attrBytes = 112

func (a *Attr) bytes() []byte {
	b := make([]byte, attrBytes)
	copy(b, Bytes(a.Type, attrBytes, a.Config, a.Period, a.SampleType, a.ReadFormat, a.Flags))
	copy(b[72:], Bytes(a.BranchType, a.RegsUser, a.StackUser, 0, a.RegsIntr))
	return b
}

// text is a string as features have it.
func text(s string) []byte { return Bytes(uint32(len(Bytes(s))), s) }

// features are the parts behind the records, by number.
func (r *Recording) features() map[int][]byte {
	f := map[int][]byte{}
	for number, s := range map[int]string{3: r.Host, 4: r.Release, 6: r.Machine} {
		if s != "" {
			f[number] = text(s)
		}
	}
	for _, b := range r.BuildID {
		f[2] = append(f[2], b...)
	}
	named := Bytes(len(r.Attrs), attrBytes)
	for i := range r.Attrs {
		a := &r.Attrs[i]
		named = append(named, Bytes(a.bytes(), 1, text(a.Name), a.ID)...)
	}
	f[12] = named
	return f
}

// File returns the recording as it is on disk.
func (r *Recording) File() []byte {
	const header, each = 104, attrBytes + 16
	idsAt := uint64(header)
	attrsAt := idsAt + 8*uint64(len(r.Attrs))
	dataAt := attrsAt + each*uint64(len(r.Attrs))
	features := r.features()
	var set [4]uint64
	for number := range features {
		set[number/64] |= 1 << (number % 64)
	}
	b := Bytes([]byte("PERFILE2"), uint64(header), uint64(each), attrsAt, each*uint64(len(r.Attrs)),
		dataAt, uint64(len(r.data)), uint64(0), uint64(0), set[:])
	for i := range r.Attrs {
		b = append(b, Bytes(r.Attrs[i].ID)...)
	}
	for i := range r.Attrs {
		b = append(b, Bytes(r.Attrs[i].bytes(), idsAt+8*uint64(i), uint64(8))...)
	}
	b = append(b, r.data...)
	at := uint64(len(b) + 16*len(features))
	var table, parts []byte
	for number := range 256 {
		if part, ok := features[number]; ok {
			table = append(table, Bytes(at+uint64(len(parts)), uint64(len(part)))...)
			parts = append(parts, part...)
		}
	}
	return append(append(b, table...), parts...)
}

// Pipe returns the recording as it goes through a pipe.
func (r *Recording) Pipe() []byte {
	b := Bytes([]byte("PERFILE2"), uint64(16))
	for i := range r.Attrs {
		b = append(b, Record(64, 0, r.Attrs[i].bytes(), r.Attrs[i].ID)...)
	}
	features := r.features()
	for number := range 256 {
		if part, ok := features[number]; ok && number != 2 {
			b = append(b, Record(80, 0, uint64(number), part)...)
		}
	}
	b = append(b, r.data...)
	for _, id := range r.BuildID { // which come at the end
		b = append(b, Bytes(uint32(67), id[4:])...)
	}
	return b
}
