package postgres

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// queryMemory is memory from testBase on: a word, and what follows it.
type queryMemory []byte

func (m queryMemory) ReadMemory(addr uint64, buf []byte) (int, error) {
	n := 0
	if at := addr - testBase; at < uint64(len(m)) {
		n = copy(buf, m[at:])
	}
	if n < len(buf) {
		return n, fmt.Errorf("%#x: %w", addr, procstate.ErrUnreadable)
	}
	return n, nil
}

func (m queryMemory) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	_, err := m.ReadMemory(addr, b[:])
	return binary.LittleEndian.Uint64(b[:]), err == nil
}

// TestQuery: what is executed is read as far as it can be, and no longer.
func TestQuery(t *testing.T) {
	long := strings.Repeat("select 1; ", maxQuery/5)
	for _, tc := range []struct {
		name   string
		at     uint64
		memory string
		want   string
	}{
		{"nothing", 0, "select 1\x00", ""},
		{"no address", 8, "select 1\x00", ""},
		{"not there", testBase - 1, "select 1\x00", ""},
		{"empty", testBase + 8, "\x00", ""},
		{"blanks", testBase + 8, " \n\x00", ""},
		{"a statement", testBase + 8, "\nselect 1;\n\x00select 2\x00", "select 1;"},
		{"across pages", testBase + 8, long[:10000] + "\x00", strings.TrimSpace(long[:10000])},
		{"without an end", testBase + 8, "select 1", "select 1"},
		{"very long", testBase + 8, long, long[:maxQuery-8]},
		{"high", ^uint64(0) - 3, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := queryMemory(append(binary.LittleEndian.AppendUint64(nil, tc.at), tc.memory...))
			got := (&Query{testBase}).Read(m)
			if len(got) > maxQuery+4096 || !strings.HasPrefix(got, tc.want) || len(tc.want) < maxQuery/2 && got != tc.want {
				t.Errorf("%d bytes: %.100q, want %d: %.100q", len(got), got, len(tc.want), tc.want)
			}
		})
	}
	if got := new(Query).Read(queryMemory(nil)); got != "" {
		t.Errorf("the zero Query: %q", got)
	}
}
