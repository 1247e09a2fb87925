package variables

import (
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// The containers of C++'s library whose elements lie in nodes, each by itself, or
// in blocks.

// cppCounted writes the number of elements of a container of libc++, where the
// debug information does not tell where they are.
func (p *printer) cppCounted(v, count *Value) bool {
	n, ok := count.first().number()
	if !ok || n > maxArray {
		return false
	}
	p.b.WriteString(withElements(v.cppName(), n))
	return true
}

// llvmNode returns the type of the nodes of a container of libc++, which is the
// argument of the allocator in a compressed pair, and what each has; nil when the
// debug information has not got it.
func llvmNode(pair *Value) (node *symbols.Type, value *symbols.Member) {
	if pair == nil {
		return nil, nil
	}
	allocator := pair.typeArgument(1)
	if allocator == nil {
		return nil, nil
	}
	args := allocator.Strip().Definition().Arguments()
	if len(args) == 0 {
		return nil, nil
	}
	node = args[0].Strip().Definition()
	return node, memberWithin(node, "__value_", 0)
}

// memberWithin returns the member of a name of a struct or of a union without a name in
// it, with the offset in the struct; nil when there is none.
func memberWithin(t *symbols.Type, name string, depth int) *symbols.Member {
	for _, m := range t.Members() {
		if m.Name == name && !m.Base {
			return &m
		}
		if m.Name == "" && !m.Base && depth < 4 && m.Type.Strip().IsStruct() {
			if in := memberWithin(m.Type.Strip(), name, depth+1); in != nil {
				found := *in
				found.Offset += m.Offset
				return &found
			}
		}
	}
	return nil
}

// llvmElement returns what a node of a container of libc++ has: of maps a pair,
// which is within a struct of its own.
func (f *frame) llvmElement(node uint64, value *symbols.Member) *Value {
	v := f.at(value.Type, node+value.Offset)
	if name := v.Type.Strip().Name; strings.HasPrefix(name, "__value_type") || strings.HasPrefix(name, "__hash_value_type") {
		return v.findAny("__cc_", "__cc")
	}
	return v
}

// llvmNodes writes the elements of a list or hash table of libc++, given the pairs
// that have the pointer to the first node and the allocator.
func (p *printer) llvmNodes(v, count, first, allocator *Value, write func(i int, v *Value)) bool {
	n, ok := count.first().number()
	node, known := first.number()
	t, value := llvmNode(allocator)
	if !ok || !known || value == nil || n > maxArray {
		return p.cppCounted(v, count)
	}
	return p.chain(withElements(v.cppName(), n), n, func() *Value {
		if node == 0 {
			return nil
		}
		this := v.f.llvmElement(node, value)
		to, ok := v.f.at(t, node).find("__next_").number()
		if !ok {
			return nil
		}
		node = to
		return this
	}, write)
}

// writer returns what writes the elements of a map or set.
func (p *printer) writer(v *Value, depth int) func(i int, v *Value) {
	if strings.HasSuffix(v.cppName(), "map") {
		return p.keyed(depth)
	}
	return p.numbered(depth)
}

// maxTreeHops bounds the way from one node of a tree to the next: a red-black
// tree of 2^63 nodes is no deeper.
const maxTreeHops = 128

// treeLinks are the names of the pointers in the nodes of a tree.
type treeLinks struct{ left, right, parent string }

// cppTree writes a map or set, the nodes of which are a red-black tree, in order.
func (p *printer) cppTree(v *Value, depth int) bool {
	tree := v.find("_M_t")
	if tree == nil {
		return p.llvmTree(v, depth)
	}
	header, elem := tree.find("_M_impl", "_M_header"), tree.typeArgument(1)
	n, ok := tree.find("_M_impl", "_M_node_count").number()
	if !ok || header == nil || !header.memory || elem == nil || n > maxArray {
		return false
	}
	off, ok := v.f.behind(header.Type, elem)
	head := withElements(v.cppName(), n)
	if !ok {
		p.b.WriteString(head)
		return true
	}
	first, ok := header.find("_M_left").number()
	next := v.f.inOrder(header.Type, first, header.addr, treeLinks{"_M_left", "_M_right", "_M_parent"})
	return ok && p.chain(head, n, func() *Value {
		node := next()
		if node == 0 {
			return nil
		}
		return v.f.at(elem, node+off)
	}, p.writer(v, depth))
}

// llvmTree is cppTree for libc++.
func (p *printer) llvmTree(v *Value, depth int) bool {
	tree := v.find("__tree_")
	if tree == nil {
		return false
	}
	count, begin := tree.findAny("__size_", "__pair3_"), tree.find("__begin_node_")
	n, ok := count.first().number()
	first, known := begin.number()
	t, value := llvmNode(tree.find("__pair1_"))
	end := tree.find("__pair1_").first()
	if !ok || !known || value == nil || end == nil || !end.memory || n > maxArray {
		return p.cppCounted(v, count)
	}
	next := v.f.inOrder(t, first, end.addr, treeLinks{"__left_", "__right_", "__parent_"})
	return p.chain(withElements(v.cppName(), n), n, func() *Value {
		node := next()
		if node == 0 {
			return nil
		}
		return v.f.llvmElement(node, value)
	}, p.writer(v, depth))
}

// inOrder returns what gives the addresses of the nodes of a tree in order, from
// the first until end, which is the parent of the root; then, and when a node
// cannot be read, 0.
func (f *frame) inOrder(t *symbols.Type, first, end uint64, name treeLinks) func() uint64 {
	node, ok := first, true
	link := func(of uint64, name string) uint64 {
		to, known := f.at(t, of).find(name).number()
		ok = ok && known
		return to
	}
	return func() uint64 {
		if !ok || node == end || node == 0 {
			return 0
		}
		this, hops := node, 0
		if right := link(node, name.right); right != 0 {
			node = right
			for left := link(node, name.left); ok && left != 0 && hops < maxTreeHops; hops++ {
				node = left
				left = link(node, name.left)
			}
		} else {
			for ; ok && hops < maxTreeHops; hops++ {
				from := node
				if node = link(node, name.parent); node == end || link(node, name.right) != from {
					break
				}
			}
		}
		if !ok || hops == maxTreeHops {
			node, ok = 0, false
		}
		return this
	}
}

// cppHash writes an unordered map or set, the nodes of which are a list.
func (p *printer) cppHash(v *Value, depth int) bool {
	table := v.find("_M_h")
	if table == nil {
		if table = v.find("__table_"); table == nil {
			return false
		}
		pair := table.find("__p1_")
		return p.llvmNodes(v, table.findAny("__size_", "__p2_"), pair.first().find("__next_"), pair, p.writer(v, depth))
	}
	first := table.find("_M_before_begin", "_M_nxt")
	n, ok := table.find("_M_element_count").number()
	if !ok || first.pointee() == nil || n > maxArray {
		return false
	}
	return p.nodes(v.f, withElements(v.cppName(), n), n, first, "_M_nxt", table.typeArgument(1), p.writer(v, depth))
}

// nodes writes the n elements of a list, given the pointer to the first node and
// the name of the one to the next in each.
func (p *printer) nodes(f *frame, head string, n uint64, first *Value, next string, elem *symbols.Type, write func(i int, v *Value)) bool {
	node, ok := first.number()
	base := first.pointee()
	if !ok || elem == nil || base == nil {
		return false
	}
	off, ok := f.behind(base, elem)
	if !ok {
		p.b.WriteString(head)
		return true
	}
	return p.chain(head, n, func() *Value {
		if node == 0 {
			return nil
		}
		this := f.at(elem, node+off)
		to, ok := f.at(base, node).find(next).number()
		if !ok {
			return nil
		}
		node = to
		return this
	}, write)
}

func (p *printer) cppList(v *Value, depth int) bool {
	size := v.find("_M_impl", "_M_node", "_M_size")
	if size == nil {
		return p.llvmNodes(v, v.findAny("__size_", "__size_alloc_"), v.find("__end_", "__next_"), v.find("__size_alloc_"), p.numbered(depth))
	}
	n, ok := size.number()
	first := v.find("_M_impl", "_M_node", "_M_next")
	return ok && n <= maxArray && first != nil && p.nodes(v.f, withElements("std::list", n), n, first, "_M_next", v.typeArgument(0), p.numbered(depth))
}

// cppForwardList writes a list that does not know its length: it is counted up to
// the limit.
func (p *printer) cppForwardList(v *Value, depth int) bool {
	first := v.find("_M_impl", "_M_head", "_M_next")
	node, ok := first.number()
	base := first.pointee()
	if !ok || base == nil {
		return false
	}
	if node == 0 {
		p.b.WriteString("empty std::forward_list")
		return true
	}
	n := uint64(0)
	for ; node != 0 && n <= uint64(p.o.Elements); n++ {
		if node, ok = v.f.at(base, node).find("_M_next").number(); !ok {
			return false
		}
	}
	return p.nodes(v.f, "std::forward_list", n, first, "_M_next", v.typeArgument(0), p.numbered(depth))
}

// cppDeque writes a deque: blocks of elements, of which the first and the last may
// be used in part, in the order of a table of them.
func (p *printer) cppDeque(v *Value, depth int) bool {
	start, finish := v.find("_M_impl", "_M_start"), v.find("_M_impl", "_M_finish")
	if start == nil {
		return p.cppCounted(v, v.find("__size_"))
	}
	elem := start.find("_M_cur").pointee()
	s, ok := numbers(start.find("_M_cur"), start.find("_M_first"), start.find("_M_last"), start.find("_M_node"))
	e, known := numbers(finish.find("_M_cur"), finish.find("_M_first"), finish.find("_M_last"), finish.find("_M_node"))
	blocks := start.find("_M_node").pointee() // pointers to them
	if !ok || !known || elem == nil || blocks == nil {
		return false
	}
	size, ok := v.f.sizeOf(elem)
	word := uint64(v.f.arch().AddressWidth)
	if !ok || size == 0 || s[1] > s[0] || s[0] > s[2] || e[1] > e[0] || e[0] > e[2] || s[3] > e[3] || (e[3]-s[3])%word != 0 || e[3]-s[3] > maxArray {
		return false
	}
	block := (s[2] - s[1]) / size
	if block == 0 || e[2]-e[1] != s[2]-s[1] || block > maxArray {
		return false
	}
	skip := (s[0] - s[1]) / size
	n := (e[3]-s[3])/word*block + (e[0]-e[1])/size - skip
	if n > maxArray {
		return false
	}
	at, left, table := s[0], block-skip, s[3]
	return p.chain(withElements("std::deque", n), n, func() *Value {
		if left == 0 {
			table += word
			if at, ok = v.f.at(blocks, table).number(); !ok {
				return nil
			}
			left = block
		}
		this := v.f.at(elem, at)
		at, left = at+size, left-1
		return this
	}, func(_ int, v *Value) { p.value(v, depth) })
}
