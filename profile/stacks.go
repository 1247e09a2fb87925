package profile

import (
	"iter"
	"math/bits"
)

// markerModule is the Module of a Loc that is a marker; its Addr is an index
// of Builder.markers.
const markerModule = 1<<32 - 1

// node is a frame in a tree of stacks. The parent of a frame is its caller.
type node struct {
	Loc
	parent uint32
}

// stacks keeps each distinct stack once, as a path in a tree: stacks share
// the frames that they have in common from the root on. A node is numbered as its
// word; node 0 is above all roots and is no frame. A stack is known by its leaf.
type stacks struct {
	list[word]
	links    int      // of the words
	children []uint32 // hash table of the nodes behind them by parent and place; 0 is free
	rare     []Loc    // what fits in no word
	rareIDs  map[Loc]uint32
}

// word is a frame, whose parent is the word before it, as that of most frames is. Where the
// parent is another one, a link to that comes between. A number may be noted behind a
// frame.
type word uint64

// Above its lower 48 bits, the address, a word has the number of the module, or tells
// what the lower ones are instead.
const (
	wordKind   = 48
	addrBits   = 1<<wordKind - 1
	rareWord   = 0xfffc << wordKind // an index of stacks.rare
	markerWord = 0xfffd << wordKind // an index of Builder.markers
	noteWord   = 0xfffe << wordKind // what is noted of the node before
	linkWord   = 0xffff << wordKind // the parent of the next word
)

// noParent stands for the parent of what is no node.
const noParent = 1<<32 - 1

func linkTo(parent uint32) word { return linkWord | word(parent) }

func (w word) isLink() bool { return w >= linkWord }

func (w word) isNode() bool { return w < noteWord }

// word returns that of a frame.
func (s *stacks) word(loc Loc) word {
	w := word(loc.Module)<<wordKind | word(loc.Addr&addrBits)
	switch {
	case loc.Module < rareWord>>wordKind && w.addr() == loc.Addr:
		return w
	case loc.Module == markerModule && loc.Addr <= addrBits:
		return markerWord | word(loc.Addr)
	}
	i, ok := s.rareIDs[loc]
	if !ok {
		if s.rareIDs == nil {
			s.rareIDs = map[Loc]uint32{}
		}
		i = uint32(len(s.rare))
		s.rare = append(s.rare, loc)
		s.rareIDs[loc] = i
	}
	return rareWord | word(i)
}

// addr returns the lower bits of a word, the highest of which stands for the upper ones.
func (w word) addr() uint64 { return uint64(int64(w<<(64-wordKind)) >> (64 - wordKind)) }

// locOf returns the frame of the word of a node.
func (s *stacks) locOf(w word) Loc {
	switch {
	case w < rareWord:
		return Loc{uint32(w >> wordKind), w.addr()}
	case w < markerWord:
		return s.rare[w&addrBits]
	}
	return Loc{markerModule, uint64(w & addrBits)}
}

// loc returns the frame of a node.
func (s *stacks) loc(n uint32) Loc { return s.locOf(*s.at(n)) }

// parent returns the parent of a node, that of node 0 being itself.
func (s *stacks) parent(n uint32) uint32 {
	if n == 0 {
		return 0
	}
	if w := *s.at(n - 1); w.isLink() {
		return uint32(w)
	}
	return n - 1
}

// noted returns what was noted of a node, if anything was.
func (s *stacks) noted(n uint32) (number uint32, ok bool) {
	if int(n)+1 == s.count {
		return 0, false
	}
	w := *s.at(n + 1)
	return uint32(w), w >= noteWord && !w.isLink()
}

// note notes a number of a node, where there is room for that: where it is the last one.
func (s *stacks) note(n, number uint32) (ok bool) {
	if int(n)+1 != s.count {
		return false
	}
	*s.add() = noteWord | word(number)
	return true
}

// Path is where a stack lies in the tree of a Builder: the nodes of its frames
// from the one that hangs below root on. The zero Path is that of no stack, as is one
// of another Builder, or from before it was reset.
type Path struct {
	tree  *[listChunk]word // the first of its chunks
	root  uint32
	leaf  uint32
	nodes []uint32
}

// Stack is a stack that was added to a Builder, until Reset.
type Stack struct{ leaf uint32 }

// Stack returns the stack that was added with the path last: see Builder.AddStack.
func (p *Path) Stack() Stack { return Stack{p.leaf} }

// maxPath is the number of frames up to which a path is remembered.
const maxPath = 1 << 12

const minTable = 1 << 10 // slots; a power of two

func newStacks() stacks {
	s := stacks{children: make([]uint32, minTable)}
	s.add() // node 0
	return s
}

// frames yields the nodes of all frames, callers before those that they call.
func (s *stacks) frames() iter.Seq2[uint32, node] {
	return func(yield func(uint32, node) bool) {
		parent := uint32(0)
		for i, w := range s.all() {
			n := uint32(i)
			switch {
			case w.isLink():
				parent = uint32(*w)
			case w.isNode():
				if n > 0 && !yield(n, node{s.locOf(*w), parent}) {
					return
				}
				parent = n
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
	for same < len(p.nodes) && same < len(stack) && *s.at(p.nodes[same]) == s.word(stack[same]) {
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
	p.leaf = leaf
	return leaf
}

// parents returns by number the parents of all nodes, that of node 0 being itself, and
// noParent for what is no node.
func (s *stacks) parents() []uint32 {
	parents := make([]uint32, s.count)
	for i, w := range s.all() {
		parents[i] = noParent
		if w.isNode() {
			parents[i] = s.parent(uint32(i))
		}
	}
	return parents
}

// child returns the node for loc below parent, made when there is none. A stack
// that was new has its nodes one after the other: they are looked at without
// waiting for memory to tell where they are.
func (s *stacks) child(parent uint32, loc Loc) uint32 {
	w := s.word(loc)
	next := parent + 1
	if int(next) == s.count {
		*s.add() = w
		return next
	}
	if *s.at(next) == w {
		return next
	}
	mask := uint32(len(s.children) - 1)
	i := hashChild(parent, w) & mask
	for ; s.children[i] != 0; i = (i + 1) & mask {
		if c := s.children[i]; *s.at(c) == w && *s.at(c - 1) == linkTo(parent) {
			return c
		}
	}
	*s.add() = linkTo(parent)
	c := uint32(s.count)
	*s.add() = w
	s.children[i] = c
	if s.links++; s.links > len(s.children)/2 {
		s.growChildren()
	}
	return c
}

func hashChild(parent uint32, w word) uint32 { return uint32(mix(uint64(w), uint64(parent))) }

func (s *stacks) growChildren() {
	s.children = make([]uint32, 2*len(s.children))
	mask := uint32(len(s.children) - 1)
	for link, w := range s.all() {
		if !w.isLink() {
			continue
		}
		c := uint32(link) + 1
		i := hashChild(uint32(*w), *s.at(c)) & mask
		for s.children[i] != 0 {
			i = (i + 1) & mask
		}
		s.children[i] = c
	}
}
