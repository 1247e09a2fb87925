package procstate

import (
	"debug/elf"
	"encoding/binary"
	"iter"
)

// ThreadContextSymbol is the thread-local variable by which a program tells profilers what each of its
// threads works on: the address of a record, or 0. OpenTelemetry's SDKs and what builds on them have it (OTEP 4947,
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4947-thread-ctx.md).
const ThreadContextSymbol = "otel_thread_ctx_v1"

// ThreadContextPlace is where the threads of a process have the address of that record.
type ThreadContextPlace struct {
	ThreadStorage
	Offset uint64 // of the variable in the storage
}

// threadContextOffset returns where the variable is in a file's storage, if it has one.
func (im *Image) threadContextOffset() (off uint64, ok bool) {
	switch im.contextOffset.Load() {
	case noContext:
		return 0, false
	case 0:
		s, ok := im.ExportedSymbol(ThreadContextSymbol)
		if !ok || s.Type != elf.STT_TLS || im.Arch() == nil || im.Arch().AddressWidth != 8 {
			im.contextOffset.Store(noContext)
			return 0, false
		}
		im.contextOffset.Store(s.Value + 1)
	}
	return im.contextOffset.Load() - 1, true
}

// noContext is Image.contextOffset of a file without.
const noContext = ^uint64(0)

// ThreadContextPlaceOf finds out where the threads of a process have it, if one of its files, or its program, does.
func ThreadContextPlaceOf(p ProcessState) (place ThreadContextPlace, ok bool) {
	for _, lib := range LibrariesOf(p.Libraries()) {
		if lib.Image == nil || lib.Image.Arch() != p.Arch() {
			continue
		}
		if off, has := lib.Image.threadContextOffset(); has {
			storage, ok := ThreadStorageOf(p, lib.Image, lib.Bias, lib.Path == p.ExecutablePath() || lib.Image.IsProgram())
			return ThreadContextPlace{storage, off}, ok
		}
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
