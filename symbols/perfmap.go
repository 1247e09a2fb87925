package symbols

import (
	"bytes"
	"errors"
	"io"
)

// perfMap reads a perf-PID.map file as it grows: lines of start, size and
// name of generated code, the numbers in hex.
type perfMap struct {
	off  int64  // what has been read
	tail []byte // the incomplete last line
	junk int    // bytes read since the last entry
	more bool   // there is more than was to be read
}

// The file may be of any size, and hold anything: links lead to any other.
const (
	maxPerfMapLine = 1 << 16
	perfMapChunk   = 1 << 18
	maxPerfMapJunk = 1 << 18   // without an entry
	maxPerfMap     = 128 << 20 // those of large programs reach a hundred
)

var (
	errPerfMapJunk = errors.New("this is no perf map")
	errPerfMapSize = errors.New("the perf map is too large")
)

// read adds the entries that were written since the last call, of so many bytes as are
// left to be read at most, which it takes from left; the next call goes on. They are
// valid since the given moment. After an error there is nothing more to be had.
func (p *perfMap) read(r io.ReaderAt, size int64, t *jitTable, since uint64, left *int64) error {
	if size < p.off { // written anew
		*p = perfMap{}
	}
	p.more = false
	buf := make([]byte, max(min(size-p.off, perfMapChunk, *left), 0))
	for p.off < size {
		if p.more = *left <= 0; p.more {
			return nil
		}
		n, err := r.ReadAt(buf[:min(size-p.off, int64(len(buf)), *left)], p.off)
		p.off += int64(n)
		*left -= int64(n)
		p.lines(buf[:n], t, since)
		switch {
		case p.junk > maxPerfMapJunk:
			return errPerfMapJunk
		case p.off > maxPerfMap:
			return errPerfMapSize
		case n == 0 || err != nil && err != io.EOF:
			return nil // an unreadable rest has no names
		}
	}
	return nil
}

// lines adds the entries of complete lines.
func (p *perfMap) lines(b []byte, t *jitTable, since uint64) {
	p.junk += len(b)
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		line := b[:i]
		if len(p.tail) > 0 {
			p.tail = append(p.tail, line...)
			line, p.tail = p.tail, p.tail[:0]
		}
		b = b[i+1:]
		if addPerfMapLine(line, t, since) {
			p.junk = len(b)
		}
	}
	if len(p.tail)+len(b) <= maxPerfMapLine {
		p.tail = append(p.tail, b...)
	}
}

// addPerfMapLine adds the entry of a line; other lines are passed over. It reports
// whether it is one.
func addPerfMapLine(line []byte, t *jitTable, since uint64) (ok bool) {
	start, n := perfMapNumber(line)
	if n == 0 {
		return false
	}
	line = line[n:]
	size, n := perfMapNumber(line)
	if n == 0 {
		return false
	}
	name := bytes.TrimRight(line[n:], "\r")
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	t.add(start, size, since, name, nil)
	return true
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
