package procstate

import (
	"encoding/binary"
	"unicode/utf8"
)

// GoLabel is a label that a goroutine has given itself (runtime/pprof).
type GoLabel struct{ Key, Value string }

// Limits of what is read of a goroutine's labels. Those of Go are a slice of pairs of strings.
const (
	maxGoLabels     = 32
	maxGoLabelBytes = 1 << 10 // of a string
	goLabelBytes    = 2 * goStringSize
	goSliceHead     = 16 // where it is, and how long
)

// readGoLabels reads the labels at an address; none when they cannot be what Go makes, in order of their keys.
func readGoLabels(m Memory, at uint64) (labels []GoLabel) {
	var head [goSliceHead]byte
	if n := ReadPart(m, at, head[:]); n < len(head) {
		return nil
	}
	start, end := goLabelList(head[:])
	list := make([]byte, end-start)
	if n := ReadPart(m, start, list); n < len(list) {
		return nil
	}
	for ; len(list) > 0; list = list[goLabelBytes:] {
		key, ok1 := readGoText(m, list)
		value, ok2 := readGoText(m, list[goStringSize:])
		if !ok1 || !ok2 || len(labels) > 0 && key <= labels[len(labels)-1].Key {
			return nil
		}
		labels = append(labels, GoLabel{key, value})
	}
	return labels
}

// goLabelList returns where the pairs of labels are, by the head of their slice.
func goLabelList(head []byte) (start, end uint64) {
	start = binary.LittleEndian.Uint64(head)
	end = start + goLabelBytes*min(binary.LittleEndian.Uint64(head[8:]), maxGoLabels)
	if end < start {
		return 0, 0
	}
	return start, end
}

// goTextRange returns where the characters of a string are, up to a bound.
func goTextRange(b []byte) (start, end uint64) {
	start = binary.LittleEndian.Uint64(b)
	end = start + min(binary.LittleEndian.Uint64(b[8:]), maxGoLabelBytes)
	if end < start {
		return 0, 0
	}
	return start, end
}

// readGoText reads a string, or its beginning.
func readGoText(m Memory, b []byte) (string, bool) {
	start, end := goTextRange(b)
	text := make([]byte, end-start)
	if n := ReadPart(m, start, text); n < len(text) {
		return "", false
	}
	for cut := 0; len(text) == maxGoLabelBytes && cut < utf8.UTFMax && !utf8.Valid(text); cut++ {
		text = text[:len(text)-1] // in the middle of a character
	}
	return string(text), utf8.Valid(text)
}

// What is copied of labels while a process stands: of so many different ones, and so many bytes of their strings.
const (
	maxLabelled = 1 << 11
	labelBudget = 4 << 20
)

// copyLabels copies the labels at some addresses: their slices, the pairs of strings in these, and what those are.
func (c *goroutineCopy) copyLabels() {
	next := func(size int, each func(b []byte)) { // what was copied last, in pieces of a size
		first := len(c.out.regions) - len(c.batch.local)
		pieces := c.out.regions[first:]
		c.batch.run()
		c.batch.reset()
		for i := range pieces {
			for b := pieces[i].Data; len(b) >= size; b = b[size:] {
				each(b[:size])
			}
		}
	}
	c.batch.reset()
	for at := range c.labels {
		c.add(at, at+goSliceHead)
	}
	next(goSliceHead, func(b []byte) { c.add(goLabelList(b)) })
	left := uint64(labelBudget)
	next(goStringSize, func(b []byte) {
		if start, end := goTextRange(b); end-start <= left {
			left -= end - start
			c.add(start, end)
		}
	})
	c.batch.run()
	c.batch.reset()
}
