package procstate

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"iter"
)

// ThreadContextSymbol is the thread-local variable by which a program tells profilers what each of its
// threads works on: the address of a record, or 0. OpenTelemetry's SDKs and what builds on them have it (OTEP 4947,
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md).
const ThreadContextSymbol = "otel_thread_ctx_v1"

// MapContextSymbol is the variable of programs in JavaScript by Node.js: it leads to the record by way of the map of the current
// asynchronous context, in which an object has its address (nodejs_v1_dev, a proposal for OpenTelemetry's profiler).
const MapContextSymbol = "otel_thread_ctx_nodejs_v1"

// ThreadContextPlace is where the threads of a process have the address of that record.
type ThreadContextPlace struct {
	ThreadStorage
	Offset uint64     // of the variable in the storage
	Map    MapContext // where that is MapContextSymbol; else zero
}

// MapContext are the distances, in bytes, on the way by a map of V8's.
type MapContext struct {
	Table     int // from a map to the address of its table
	TableHead int // from that to the counts of what it has
	Record    int // from an object to the address of the record, or to 0 and then that
}

// nodeMap is what they are in Node.js, whose V8 compresses no pointers. From 24 on objects have a word more before the fields
// of what is not JavaScript, for a garbage collector of C++, which they do not use.
var nodeMap = MapContext{Table: 24, TableHead: 16, Record: 24}

// contextVariable is the variable of a file.
type contextVariable struct {
	offset uint64 // in the storage
	isMap  bool   // it is MapContextSymbol
}

// contextVariable returns the one of a file, nil when it has none.
func (im *Image) contextVariable() *contextVariable {
	v := im.context.Load()
	if v == nil {
		v = noContext
		for _, name := range []string{ThreadContextSymbol, MapContextSymbol} {
			if s, ok := im.ExportedSymbol(name); ok && s.Type == elf.STT_TLS && im.Arch() != nil && im.Arch().AddressWidth == 8 {
				v = &contextVariable{s.Value, name == MapContextSymbol}
				break
			}
		}
		im.context.Store(v)
	}
	if v == noContext {
		return nil
	}
	return v
}

var noContext = new(contextVariable)

// ThreadContextPlaceOf finds out where the threads of a process have it, if one of its files, or its program, does.
func ThreadContextPlaceOf(p ProcessState) (place ThreadContextPlace, ok bool) {
	for _, lib := range LibrariesOf(p.Libraries()) {
		if lib.Image == nil || lib.Image.Arch() != p.Arch() {
			continue
		}
		v := lib.Image.contextVariable()
		if v == nil {
			continue
		}
		place.ThreadStorage, ok = ThreadStorageOf(p, lib.Image, lib.Bias, lib.Path == p.ExecutablePath() || lib.Image.IsProgram())
		if place.Offset = v.offset; v.isMap {
			place.Map = nodeMap
		}
		return place, ok
	}
	return place, false
}

// ThreadContext is what a thread works on.
type ThreadContext struct {
	TraceID    [16]byte // as in W3C's Trace Context; zero without a trace, and then so is SpanID
	SpanID     [8]byte
	Flags      uint8  // of the trace
	attributes []byte // well-formed
}

// HasTrace reports whether the thread works on a trace.
func (c *ThreadContext) HasTrace() bool { return c.TraceID != [16]byte{} && c.SpanID != [8]byte{} }

// Sizes of a thread's record.
const (
	ThreadContextHead = 16 + 8 + 1 + 1 + 2
	maxThreadContext  = 640 // what its head tells of, at most
)

// ThreadContextSize is how long a record is, its head included, by that: 0 when it is not valid.
func ThreadContextSize(head []byte) int {
	if len(head) < ThreadContextHead || head[24] != 1 {
		return 0
	}
	return min(ThreadContextHead+int(binary.LittleEndian.Uint16(head[26:])), maxThreadContext)
}

// ParseThreadContext parses a record, of which the end may be missing, and with it attributes. It is kept, not copied.
func ParseThreadContext(record []byte) (c ThreadContext, ok bool) {
	size := ThreadContextSize(record)
	if size == 0 {
		return c, false
	}
	copy(c.TraceID[:], record)
	copy(c.SpanID[:], record[16:])
	c.Flags = record[25]
	all := record[ThreadContextHead:min(size, len(record))]
	c.attributes = all
	for len(all) >= 2 && len(all) >= 2+int(all[1]) {
		all = all[2+int(all[1]):]
	}
	c.attributes = c.attributes[:len(c.attributes)-len(all)]
	return c, true
}

// Attributes yields the thread's attributes, by indexes of the process's ThreadKeys. Values point into the record.
func (c *ThreadContext) Attributes() iter.Seq2[uint8, []byte] {
	return func(yield func(uint8, []byte) bool) {
		for b := c.attributes; len(b) > 0; {
			key, value := b[0], b[2:2+int(b[1])]
			b = b[2+int(b[1]):]
			if !hasAttribute(b, key) && !yield(key, value) { // the last one counts
				return
			}
		}
	}
}

// hasAttribute reports whether one has a key.
func hasAttribute(b []byte, key uint8) bool {
	for ; len(b) > 0; b = b[2+int(b[1]):] {
		if b[0] == key {
			return true
		}
	}
	return false
}

// ReadThreadContext reads a thread's record, given where its process has the address; nil when there is none.
func ReadThreadContext(m Memory, a *Arch, place ThreadContextPlace, threadPointer uint64) []byte {
	base, ok := place.At(m, a, threadPointer)
	if !ok || threadPointer == 0 {
		return nil
	}
	at, ok := m.ReadWord(base + place.Offset)
	if place.Map != (MapContext{}) {
		at, ok = place.Map.find(m, base+place.Offset)
	}
	if !ok || at == 0 {
		return nil
	}
	record := make([]byte, maxThreadContext)
	n := ThreadContextSize(record[:ReadPart(m, at, record[:ThreadContextHead])])
	if n == 0 {
		return nil
	}
	return record[:ThreadContextHead+ReadPart(m, at+ThreadContextHead, record[ThreadContextHead:n])]
}

// maxMapContext bounds the entries of a map, and its buckets, as MAX_MAP of bpf/record.h.
const maxMapContext = 64

// find returns the address of the record that MapContextSymbol leads to, which is at variable: its words are the addresses of
// where the map is and the key, a hash, and what is in place of a map, or an object, where there is none. Addresses of objects
// have the lowest bit set.
func (c *MapContext) find(m Memory, variable uint64) (at uint64, ok bool) {
	word := func(addr uint64) uint64 {
		v, _ := m.ReadWord(addr)
		return v
	}
	slot, undefined := word(variable), word(variable+24)
	if slot == 0 {
		return 0, false
	}
	object, key := word(slot), word(word(variable+8))
	if object == 0 || object == undefined || key == 0 {
		return 0, false
	}
	table := word(object-1+uint64(c.Table)) - 1 + uint64(c.TableHead)
	n, buckets := word(table)>>32+word(table+8)>>32, word(table+16)>>32
	if n > maxMapContext || buckets > maxMapContext {
		return 0, false
	}
	for entry := table + 24 + 8*buckets; n > 0; n, entry = n-1, entry+24 {
		if word(entry) == key {
			if object = word(entry + 8); object == undefined {
				return 0, false
			}
			at = object - 1 + uint64(c.Record)
			return cmp.Or(word(at), word(at+8)), true
		}
	}
	return 0, false
}
