package profile

import "iter"

// list is a slice that grows in chunks: without copies, of which the old one would be
// garbage, and its elements stay where they are.
type list[T any] struct {
	chunks []*[listChunk]T
	count  int
}

const listChunk = 1 << 10

// at returns an element.
func (l *list[T]) at(i uint32) *T { return &l.chunks[i/listChunk][i%listChunk] }

// add returns a new last element, which is zero.
func (l *list[T]) add() *T {
	i := l.count
	if i%listChunk == 0 {
		l.chunks = append(l.chunks, new([listChunk]T))
	}
	l.count++
	return &l.chunks[i/listChunk][i%listChunk]
}

// all yields the elements.
func (l *list[T]) all() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for i := range l.count {
			if !yield(i, l.at(uint32(i))) {
				return
			}
		}
	}
}
