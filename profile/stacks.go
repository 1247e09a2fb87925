package profile

import (
	"iter"
	"math/bits"
)

// markerModule is the Module of a Loc that is a marker; its Addr is an index
// of Builder.markers.
const markerModule = 1<<32 - 1

// node is a frame in a tree of stacks. Node 0 is above all roots and is no
// frame. The parent of a frame is its caller.
type node struct {
	addr           uint64
	module, parent uint32
}

// stands reports whether a node is one for loc.
func (n *node) stands(loc Loc) bool { return n.addr == loc.Addr && n.module == loc.Module }

// stacks keeps each distinct stack once, as a path in a tree: stacks share
// the frames that they have in common from the root on. A stack is known by
// its leaf's index.
type stacks struct {
	list[node]
	others   int      // of the nodes, those that do not follow their parent
	children []uint32 // hash table of these by parent and place; 0 is free
}

// Path is where a stack lies in the tree of a Builder: the nodes of its frames
// from the one that hangs below root on. The zero Path is that of no stack, as is one
// of another Builder, or from before it was reset.
type Path struct {
	tree  *[listChunk]node // the first of its chunks
	root  uint32
	nodes []uint32
}

// maxPath is the number of frames up to which a path is remembered.
const maxPath = 1 << 12

const minTable = 1 << 10 // slots; a power of two

func newStacks() stacks {
	s := stacks{children: make([]uint32, minTable)}
	s.add() // node 0
	return s
}

// frames yields the frames, callers before those that they call.
func (s *stacks) frames() iter.Seq2[int, *node] {
	return func(yield func(int, *node) bool) {
		for i, n := range s.all() {
			if i > 0 && !yield(i, n) {
				return
			}
		}
	}
}

// mix hashes two words by a multiplication of which it folds both halves.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd6e8feb86659fd93)
	return hi ^ lo
}

// leafOf returns the leaf of a stack, callers first, that hangs below the node root.
// The path is that of an earlier stack, which has the first same frames in common
// with this one or more, and becomes this one's.
func (s *stacks) leafOf(p *Path, stack []Loc, same int, root uint32) uint32 {
	if p.root != root || p.tree != s.chunks[0] {
		p.tree, p.root, p.nodes = s.chunks[0], root, p.nodes[:0]
	}
	same = min(same, len(p.nodes))
	for same < len(p.nodes) && same < len(stack) && s.at(p.nodes[same]).stands(stack[same]) {
		same++
	}
	p.nodes = p.nodes[:same]
	leaf := root
	if same > 0 {
		leaf = p.nodes[same-1]
	}
	for _, loc := range stack[same:] {
		leaf = s.child(leaf, loc)
		if len(p.nodes) < maxPath {
			p.nodes = append(p.nodes, leaf)
		}
	}
	return leaf
}

// parents returns the parents of all nodes, that of node 0 being itself.
func (s *stacks) parents() []uint32 {
	parents := make([]uint32, s.count)
	for i, n := range s.all() {
		parents[i] = n.parent
	}
	return parents
}

// child returns the node for loc below parent, made when there is none. A stack
// that was new has its nodes one after the other: they are looked at without
// waiting for memory to tell where they are.
func (s *stacks) child(parent uint32, loc Loc) uint32 {
	next := parent + 1
	if int(next) == s.count {
		return s.newNode(parent, loc)
	}
	if n := s.at(next); n.parent == parent && n.stands(loc) {
		return next
	}
	mask := uint32(len(s.children) - 1)
	i := hashChild(parent, loc) & mask
	for ; s.children[i] != 0; i = (i + 1) & mask {
		if n := s.at(s.children[i]); n.parent == parent && n.stands(loc) {
			return s.children[i]
		}
	}
	c := s.newNode(parent, loc)
	s.children[i] = c
	if s.others++; s.others > len(s.children)/2 {
		s.growChildren()
	}
	return c
}

func (s *stacks) newNode(parent uint32, loc Loc) uint32 {
	c := uint32(s.count)
	*s.add() = node{loc.Addr, loc.Module, parent}
	return c
}

func hashChild(parent uint32, loc Loc) uint32 {
	return uint32(mix(loc.Addr, uint64(parent)<<32|uint64(loc.Module)))
}

func (s *stacks) growChildren() {
	s.children = make([]uint32, 2*len(s.children))
	mask := uint32(len(s.children) - 1)
	for c, n := range s.frames() {
		if n.parent+1 == uint32(c) {
			continue
		}
		i := hashChild(n.parent, Loc{n.module, n.addr}) & mask
		for s.children[i] != 0 {
			i = (i + 1) & mask
		}
		s.children[i] = uint32(c)
	}
}
