package profile

import "math/bits"

// markerModule is the Module of a Loc that is a marker; its Addr is an index
// of Builder.markers.
const markerModule = 1<<32 - 1

// node is a frame in a tree of stacks. Node 0 is above all roots and is no
// frame. The parent of a frame is its caller.
type node struct {
	addr           uint64
	module, parent uint32
}

// stacks keeps each distinct stack once, as a path in a tree: stacks share
// the frames that they have in common from the root on. A stack is known by
// its leaf's index.
type stacks struct {
	nodes    []node
	children []uint32   // hash table of nodes by parent and place; 0 is free
	leaves   []leafSlot // hash table of stacks by all their frames
	used     int        // slots of leaves
}

// leafSlot is a stack that was added. The leaf is never 0 in a used slot.
type leafSlot struct{ hash, leaf uint32 }

const minTable = 1 << 10 // slots; a power of two

func newStacks() stacks {
	return stacks{
		nodes:    make([]node, 1, minTable),
		children: make([]uint32, minTable),
		leaves:   make([]leafSlot, minTable),
	}
}

// mix hashes two words by a multiplication of which it folds both halves.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd6e8feb86659fd93)
	return hi ^ lo
}

// hashStack hashes frames in two lanes, which the processor runs abreast.
func hashStack(stack []Loc, root uint32) uint32 {
	h0, h1 := uint64(root), uint64(len(stack))
	for len(stack) >= 2 {
		h0 = mix(h0^stack[0].Addr, uint64(stack[0].Module))
		h1 = mix(h1^stack[1].Addr, uint64(stack[1].Module))
		stack = stack[2:]
	}
	if len(stack) == 1 {
		h0 = mix(h0^stack[0].Addr, uint64(stack[0].Module))
	}
	return uint32(mix(h0, h1))
}

// add returns the leaf of a stack, leaf first, that hangs below the node root.
func (s *stacks) add(stack []Loc, root uint32) uint32 {
	if len(stack) == 0 {
		return root
	}
	h := hashStack(stack, root)
	mask := uint32(len(s.leaves) - 1)
	i := h & mask
	for ; s.leaves[i].leaf != 0; i = (i + 1) & mask {
		if s.leaves[i].hash == h && s.equal(s.leaves[i].leaf, stack, root) {
			return s.leaves[i].leaf
		}
	}
	leaf := root
	for j := len(stack) - 1; j >= 0; j-- {
		leaf = s.child(leaf, stack[j])
	}
	s.leaves[i] = leafSlot{h, leaf}
	if s.used++; s.used > len(s.leaves)/2 {
		s.growLeaves()
	}
	return leaf
}

// equal reports whether leaf ends the path of stack below root.
func (s *stacks) equal(leaf uint32, stack []Loc, root uint32) bool {
	nodes := s.nodes
	for i := range stack {
		n := &nodes[leaf]
		if leaf == 0 || n.addr != stack[i].Addr || n.module != stack[i].Module {
			return false
		}
		leaf = n.parent
	}
	return leaf == root
}

// child returns the node for loc below parent, made when there is none.
func (s *stacks) child(parent uint32, loc Loc) uint32 {
	mask := uint32(len(s.children) - 1)
	i := hashChild(parent, loc) & mask
	for ; s.children[i] != 0; i = (i + 1) & mask {
		n := &s.nodes[s.children[i]]
		if n.parent == parent && n.addr == loc.Addr && n.module == loc.Module {
			return s.children[i]
		}
	}
	c := uint32(len(s.nodes))
	s.nodes = append(s.nodes, node{loc.Addr, loc.Module, parent})
	s.children[i] = c
	if len(s.nodes) > len(s.children)/2 {
		s.growChildren()
	}
	return c
}

func hashChild(parent uint32, loc Loc) uint32 {
	return uint32(mix(loc.Addr, uint64(parent)<<32|uint64(loc.Module)))
}

func (s *stacks) growLeaves() {
	old := s.leaves
	s.leaves = make([]leafSlot, 2*len(old))
	mask := uint32(len(s.leaves) - 1)
	for _, slot := range old {
		if slot.leaf == 0 {
			continue
		}
		i := slot.hash & mask
		for s.leaves[i].leaf != 0 {
			i = (i + 1) & mask
		}
		s.leaves[i] = slot
	}
}

func (s *stacks) growChildren() {
	s.children = make([]uint32, 2*len(s.children))
	mask := uint32(len(s.children) - 1)
	for c := 1; c < len(s.nodes); c++ {
		n := &s.nodes[c]
		i := hashChild(n.parent, Loc{n.module, n.addr}) & mask
		for s.children[i] != 0 {
			i = (i + 1) & mask
		}
		s.children[i] = uint32(c)
	}
}
