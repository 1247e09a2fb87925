package postgres

import (
	"bytes"
	"path/filepath"

	"github.com/swbpf/swbpf/procstate"
)

// Query finds the text of what a server process executes: a statement, or several that a client has sent together. It is what
// debug_query_string points to (src/backend/tcop/postgres.c), of whatever version, in parallel workers too, and nothing
// while the process waits for a client.
type Query struct{ at uint64 }

// NewQuery returns nil where the libraries are not those of a server process.
func NewQuery(libs procstate.LibraryState) *Query {
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil || filepath.Base(lib.Image.Path) != "postgres" || lib.Image.Arch().AddressWidth != 8 {
			continue
		}
		if sym, ok := lib.Image.ExportedSymbol("debug_query_string"); ok {
			return &Query{sym.Value + lib.Bias}
		}
	}
	return nil
}

// maxQuery bounds what is read of a text, in bytes.
const maxQuery = 64 << 10

// Read reads the text, of a process that stands still or a copy of it; of a very long one the beginning, and "" where
// there is none.
func (q *Query) Read(m procstate.Memory) string {
	at, ok := m.ReadWord(q.at)
	if !ok || at < leastAddress {
		return ""
	}
	const page = 4 << 10
	var text []byte
	var b [page]byte
	for len(text) < maxQuery {
		from := at + uint64(len(text))
		n := procstate.ReadPart(m, from, b[:page-from%page])
		if n == 0 {
			break
		}
		piece, _, ends := bytes.Cut(b[:n], []byte{0})
		if text = append(text, piece...); ends {
			break
		}
	}
	return string(bytes.TrimSpace(text))
}
