package unwind

import (
	"cmp"
	"slices"
)

// CallTree merges walks into a tree, so that the stacks of a thousand threads
// are one picture: stacks that agree from the bottom up share a path. What it
// is to agree is the tree's FrameKey.
type CallTree struct {
	root CallNode
	key  FrameKey
}

// CallNode is a frame that walks have in common; the root of a tree stands
// for no frame.
type CallNode struct {
	// Frame is the first that was merged here, and Walker that which has its
	// name.
	Frame  Frame
	Walker *Walker

	// Walks are those that end here, complete or not.
	Walks []Walk

	// Count is the number of walks that go through or end here.
	Count int

	key      FrameID
	parent   *CallNode
	children []*CallNode
	index    map[FrameID]*CallNode
}

// FrameID is what a FrameKey makes of a frame: equal IDs are the same node.
type FrameID struct {
	Name string
	N    uint64
}

// FrameKey tells which frames are the same for a CallTree. The Walker is that of the Walk,
// which may be nil.
type FrameKey func(w *Walker, f *Frame) FrameID

// ByAddress keeps frames apart by their address.
func ByAddress(_ *Walker, f *Frame) FrameID { return FrameID{N: f.PC()} }

// ByLibraryAddress merges frames that are at one link-time address of one file, as those of
// processes that have it at different addresses; those of no file are kept apart by address.
func ByLibraryAddress(w *Walker, f *Frame) FrameID {
	if w == nil {
		return ByAddress(w, f)
	}
	if lib, vaddr, ok := w.Library(f); ok && lib.Image != nil {
		return FrameID{Name: lib.Path + "\x00" + lib.Image.BuildID(), N: vaddr}
	}
	return ByAddress(w, f)
}

// ByFunction merges frames of one function; those without a name are kept
// apart by address.
func ByFunction(w *Walker, f *Frame) FrameID {
	if w == nil {
		return ByAddress(w, f)
	}
	if sym, ok := w.Name(f); ok {
		return FrameID{Name: sym.Name}
	}
	return ByAddress(w, f)
}

// LineLookup is implemented by a SymbolLookup that knows source lines.
type LineLookup interface {
	// SourceLine returns the source file and line of a run-time address.
	SourceLine(addr uint64) (file string, line int, ok bool)
}

// ByLine merges frames of one line of one function, where the Walker's
// SymbolLookup is a LineLookup; otherwise it is ByFunction.
func ByLine(w *Walker, f *Frame) FrameID {
	id := ByFunction(w, f)
	if id.Name == "" {
		return id
	}
	if l, ok := w.lookup.(LineLookup); ok {
		if file, line, ok := l.SourceLine(f.LookupPC()); ok {
			return FrameID{Name: id.Name + "\x00" + file, N: uint64(line)}
		}
	}
	return id
}

// NewCallTree makes an empty tree; key is ByAddress, ByLibraryAddress, ByFunction, ByLine or
// a caller's own. The zero CallTree is an empty one by address.
func NewCallTree(key FrameKey) *CallTree { return &CallTree{key: key} }

// Add merges a walk into the tree and returns the node of its top frame: the
// root for a walk without frames.
func (t *CallTree) Add(walk Walk) *CallNode {
	n, key := &t.root, t.key
	if key == nil {
		key = ByAddress
	}
	n.Count++
	for i := range slices.Backward(walk.Frames) {
		f := &walk.Frames[i]
		n = n.child(key(walk.Walker, f), f, walk.Walker)
		n.Count++
	}
	n.Walks = append(n.Walks, walk)
	return n
}

// child returns the child of a key, making it when there is none.
func (n *CallNode) child(key FrameID, f *Frame, w *Walker) *CallNode {
	if c := n.index[key]; c != nil {
		return c
	}
	c := &CallNode{Frame: *f, Walker: w, key: key, parent: n}
	if n.index == nil {
		n.index = make(map[FrameID]*CallNode)
	}
	n.index[key] = c
	n.children = append(n.children, c)
	return c
}

// Root returns the root, which stands for no frame. Its children are the
// bottoms of the stacks.
func (t *CallTree) Root() *CallNode { return &t.root }

// Parent returns the caller's node, nil for the root.
func (n *CallNode) Parent() *CallNode { return n.parent }

// Children returns the callees, those of most walks first, among equals by
// key. The slice must not be modified and is valid until the next Add.
func (n *CallNode) Children() []*CallNode {
	slices.SortStableFunc(n.children, func(a, b *CallNode) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.key.Name, b.key.Name), cmp.Compare(a.key.N, b.key.N))
	})
	return n.children
}

// Visit calls f for every node but the root, callers before callees, with
// depth 0 for the bottoms of stacks.
func (t *CallTree) Visit(f func(n *CallNode, depth int)) {
	type step struct {
		n     *CallNode
		depth int
	}
	var todo []step
	push := func(n *CallNode, depth int) {
		for _, c := range slices.Backward(n.Children()) {
			todo = append(todo, step{c, depth})
		}
	}
	for push(&t.root, 0); len(todo) > 0; {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		f(s.n, s.depth)
		push(s.n, s.depth+1)
	}
}
