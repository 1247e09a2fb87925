package procstate

import (
	"encoding/binary"
	"testing"
)

// wordMemory is memory of single words; all else cannot be read.
type wordMemory map[uint64]uint64

func (m wordMemory) ReadWord(addr uint64) (uint64, bool) {
	v, ok := m[addr]
	return v, ok
}

func (m wordMemory) ReadMemory(addr uint64, buf []byte) (int, error) {
	for n := 0; n < len(buf); n += 8 {
		v, ok := m[addr+uint64(n)]
		if !ok {
			return n, ErrUnreadable
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		copy(buf[n:], b[:])
	}
	return len(buf), nil
}

// A thread's storage is where its vector says, if it has one for the file by then.
func TestThreadStorageAt(t *testing.T) {
	const tp, vector = 0x7000, 0x9000
	glibc := ThreadStorage{FromThreadPointer: 8, Entry: 16 * 3, Module: 3, Count: -16}
	musl := ThreadStorage{FromThreadPointer: 8, Entry: 8 * 3, Module: 3}
	for name, c := range map[string]struct {
		storage ThreadStorage
		memory  wordMemory
		want    uint64 // 0: there is none
	}{
		"static":             {ThreadStorage{FromThreadPointer: ^uint64(0x40 - 1)}, nil, tp - 0x40},
		"glibc":              {glibc, wordMemory{tp + 8: vector, vector - 16: 5, vector + 48: 0xa000}, 0xa000},
		"musl":               {musl, wordMemory{tp + 8: vector, vector: 3, vector + 24: 0xb000}, 0xb000},
		"not allocated":      {glibc, wordMemory{tp + 8: vector, vector - 16: 5, vector + 48: ^uint64(0)}, 0},
		"nothing there":      {musl, wordMemory{tp + 8: vector, vector: 3, vector + 24: 0}, 0},
		"a vector of before": {glibc, wordMemory{tp + 8: vector, vector - 16: 2, vector + 48: 0xa000}, 0},
		"no vector":          {glibc, wordMemory{}, 0},
		"nonsense":           {glibc, wordMemory{tp + 8: vector, vector - 16: 1 << 40, vector + 48: 0xa000}, 0},
	} {
		if got, ok := c.storage.At(c.memory, AMD64, tp); ok != (c.want != 0) || ok && got != c.want {
			t.Errorf("%s: %#x, %v", name, got, ok)
		}
	}
}

// The record is that of the object which the map has for the key, and a map that cannot be is none.
func TestMapContext(t *testing.T) {
	const (
		variable, slot, handle = 0x1000, 0x1100, 0x1108
		object, key, undefined = 0x2001, 0x3001, 0x11
		table, value, record   = 0x4001, 0x5001, 0x6000
	)
	good := func() wordMemory {
		m := wordMemory{
			variable: slot, variable + 8: handle, variable + 16: 7, variable + 24: undefined,
			slot: object, handle: key, object - 1 + 24: table,
			table - 1 + 16: 1 << 32, table - 1 + 24: 1 << 32, table - 1 + 32: 2 << 32, // an entry and one deleted, two buckets
			value - 1 + 24: 0, value - 1 + 32: record,
		}
		entries := uint64(table - 1 + 40 + 16)
		m[entries], m[entries+8] = 0x7001, 0x7101
		m[entries+24], m[entries+32] = key, value
		return m
	}
	const first = table - 1 + 40 + 16
	for name, c := range map[string]struct {
		change func(wordMemory)
		want   uint64
	}{
		"Node 24":               {func(m wordMemory) {}, record},
		"Node 22":               {func(m wordMemory) { m[value-1+24], m[value-1+32] = record, 0x123 }, record},
		"nothing told":          {func(m wordMemory) { m[variable] = 0 }, 0},
		"no context":            {func(m wordMemory) { m[slot] = undefined }, 0},
		"of another":            {func(m wordMemory) { m[first+24] = 0x3101 }, 0},
		"left":                  {func(m wordMemory) { m[first+32] = undefined }, 0},
		"no key":                {func(m wordMemory) { delete(m, handle) }, 0},
		"too many entries":      {func(m wordMemory) { m[table-1+16] = 65 << 32 }, 0},
		"far too many":          {func(m wordMemory) { m[table-1+16] = ^uint64(0) }, 0},
		"too many buckets":      {func(m wordMemory) { m[table-1+32] = 1 << 50 }, 0},
		"a table that is gone":  {func(m wordMemory) { delete(m, table-1+16); delete(m, table-1+24) }, 0},
		"an object that is not": {func(m wordMemory) { m[first+32] = 0xdead0001 }, 0},
	} {
		m := good()
		c.change(m)
		if at, ok := nodeMap.find(m, variable); at != c.want || !ok && c.want != 0 {
			t.Errorf("%s: %#x, %v, want %#x", name, at, ok, uint64(c.want))
		}
	}
}
