package profile

import (
	"bufio"
	"encoding/binary"
	"io"
)

// pprofEncoder writes the fields of a pprof file one by one, and the table of
// strings as the last: nothing is kept of samples, which are many.
type pprofEncoder struct {
	w   *bufio.Writer // keeps the first error for close
	key []byte
	stringTable
}

func newPprofEncoder(w io.Writer) *pprofEncoder {
	return &pprofEncoder{w: bufio.NewWriter(w), stringTable: newStringTable()}
}

// stringTable numbers strings. Number 0 is the empty one.
type stringTable struct {
	strings []string
	ids     map[string]int64
}

func newStringTable() stringTable {
	return stringTable{[]string{""}, map[string]int64{"": 0}}
}

// text returns the number of a string.
func (t *stringTable) text(s string) int64 {
	id, ok := t.ids[s]
	if !ok {
		id = int64(len(t.strings))
		t.strings = append(t.strings, s)
		t.ids[s] = id
	}
	return id
}

// number writes a field of the file that is a number.
func (e *pprofEncoder) number(field uint64, v int64) {
	e.key = appendNumber(e.key[:0], field, v)
	e.w.Write(e.key)
}

// message writes a field of the file that is a message or packed numbers.
func (e *pprofEncoder) message(field uint64, body []byte) {
	e.key = appendKey(e.key[:0], field, len(body))
	e.w.Write(e.key)
	e.w.Write(body)
}

// close writes the table of strings and what is still in the buffer.
func (e *pprofEncoder) close() error {
	for _, s := range e.strings {
		e.key = appendKey(e.key[:0], 6, len(s))
		e.w.Write(e.key)
		e.w.WriteString(s)
	}
	return e.w.Flush()
}

// wireBytes is protobuf's type of a field with a length.
const wireBytes = 2

func appendKey(b []byte, field uint64, length int) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireBytes), uint64(length))
}

func appendMessage(b []byte, field uint64, body []byte) []byte {
	return append(appendKey(b, field, len(body)), body...)
}

// appendNumber appends nothing for 0, as protobuf has it.
func appendNumber(b []byte, field uint64, v int64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3), uint64(v))
}

func appendFlag(b []byte, field uint64, set bool) []byte {
	if !set {
		return b
	}
	return appendNumber(b, field, 1)
}
