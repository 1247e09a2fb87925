package symbols

import (
	"bytes"
	"io"
)

// perfMap reads a perf-PID.map file as it grows: lines of start, size and
// name of generated code, the numbers in hex.
type perfMap struct {
	off  int64  // what has been read
	tail []byte // the incomplete last line
}

const (
	maxPerfMapLine = 1 << 16
	perfMapChunk   = 1 << 18
	maxPerfMapRead = 1 << 30 // at a time: the file may be of any size
)

// read adds the entries that were written since the last call; where these are
// very many, the next call goes on. They are valid since the given moment.
func (p *perfMap) read(r io.ReaderAt, size int64, t *jitTable, since uint64) error {
	if size < p.off { // written anew
		p.off, p.tail = 0, nil
	}
	size = min(size, p.off+maxPerfMapRead)
	buf := make([]byte, min(size-p.off, perfMapChunk))
	for p.off < size {
		n, err := r.ReadAt(buf[:min(size-p.off, int64(len(buf)))], p.off)
		p.off += int64(n)
		p.lines(buf[:n], t, since)
		if n == 0 || err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}

// lines adds the entries of complete lines.
func (p *perfMap) lines(b []byte, t *jitTable, since uint64) {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		if len(p.tail) > 0 {
			p.tail = append(p.tail, b[:i]...)
			addPerfMapLine(p.tail, t, since)
			p.tail = p.tail[:0]
		} else {
			addPerfMapLine(b[:i], t, since)
		}
		b = b[i+1:]
	}
	if len(p.tail)+len(b) <= maxPerfMapLine {
		p.tail = append(p.tail, b...)
	}
}

// addPerfMapLine adds the entry of a line; other lines are passed over.
func addPerfMapLine(line []byte, t *jitTable, since uint64) {
	start, n := perfMapNumber(line)
	if n == 0 {
		return
	}
	line = line[n:]
	size, n := perfMapNumber(line)
	if n == 0 {
		return
	}
	name := bytes.TrimRight(line[n:], "\r")
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	t.add(start, size, since, name, nil)
}

// perfMapNumber reads a hex number and the blank behind it.
func perfMapNumber(b []byte) (v uint64, n int) {
	if len(b) > 2 && b[0] == '0' && b[1]|0x20 == 'x' {
		n = 2
	}
	v, m := hexPrefix(b[n:])
	n += m
	if m == 0 || n >= len(b) || b[n] != ' ' {
		return 0, 0
	}
	return v, n + 1
}
