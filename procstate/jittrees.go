package procstate

import (
	"encoding/binary"
	"slices"
	"sort"
	"time"
)

// From GCC 13 on libgcc keeps objects in a tree, by the addresses of their code
// (unwind-dw2-btree.h):
//
//	tree        the root; nodes that are free; the version
//	node        the version; how many entries, and of what kind, four bytes each
//	inner node  entries: the last address that is looked for in a node; that node
//	leaf        entries: address and size of code; its object
//
// Who changes a node, or which is the root, sets the lowest bit of the version, and
// counts the version on when that is done. What was read between two looks at the
// version is what there was, if the version was the same and the bit clear. It may
// lead elsewhere by then: a node is looked at for its version before that of the
// node that led to it is compared.
const (
	nodeHeader   = 16
	nodeInner    = 0
	nodeLeaf     = 1
	maxInner     = 15 // entries
	maxLeaf      = 10
	innerEntry   = 16 // bytes
	leafEntry    = 24
	treeNode     = nodeHeader + maxInner*innerEntry
	versionBusy  = 1
	maxTreeDepth = 16
	treeTries    = 4 // while it is being changed
)

// Reading objects of a tree of a process that runs takes so long at once, and from then on
// a part of the time (jitShare).
const treeBurst = 50 * time.Millisecond

// jitTree is the tree of a libgcc.
type jitTree struct {
	addr  uint64
	arch  *Arch
	empty uint64 // the last epoch in which it was
}

// jitTrees is what is known of trees. Objects are read when code is asked for that they
// are said to be of.
type jitTrees struct {
	all     []jitTree
	objects map[uint64]*JITObject // by their address
	code    jitCode
	seen    map[*JITObject]uint64 // in which epoch they were there, and the same
	size    int                   // of objects
	walk    uint64                // in which
	left    uint64                // so many bytes may be read still
	since   time.Time             // and since when objects have been read
	spent   time.Duration         // for so long
}

// inTrees returns the object of the code at a run-time address that is in a tree, nil when
// there is none.
func (j *JITObjects) inTrees(addr uint64) *JITObject {
	t := &j.trees
	known := t.code.at(addr)
	if known != nil && t.seen[known] == j.epoch {
		return known
	}
	gone, changing := true, false
	for i := range t.all {
		tree := &t.all[i]
		if tree.empty == j.epoch {
			gone = false
			continue
		}
		at, ok := tree.find(addr, j.epoch, j.readMemory)
		if !ok && !j.readMemory(tree.addr, j.word[:8]) {
			continue
		}
		gone, changing = false, changing || !ok
		if at == 0 {
			continue
		}
		if o := j.treeObject(tree, at, addr); o != nil {
			return o
		}
	}
	if known != nil && gone && j.live != nil {
		return known // as it was
	}
	if known != nil && !changing {
		j.treeForget(known)
	}
	return nil
}

// treeObject returns the object at an address, which a tree says is of the code at another
// one; nil when it is not, and when there is no time to read it.
func (j *JITObjects) treeObject(tree *jitTree, at, addr uint64) *JITObject {
	t := &j.trees
	if !j.readMemory(at, j.word[:]) {
		return nil
	}
	e := jitOfLibgcc.entryOf(j.word[:])
	o := t.objects[at]
	if o != nil && o.entry == e {
		part := o.holder(addr)
		if part == nil || t.seen[part] == j.epoch {
			return part
		}
		if part.same(j.readMemory) {
			t.seen[part] = j.epoch
			j.isThere(part)
			return part
		}
	}
	if t.walk != j.walks {
		t.walk, t.left = j.walks, maxJITBytes
	}
	began := time.Now()
	if since := began.Sub(t.since); since > jitShare*t.spent {
		t.since, t.spent = began, 0
	} else if j.live != nil && t.spent > treeBurst {
		return nil
	}
	j.treeForget(o)
	o = j.open(&jitDescriptor{layout: &jitOfLibgcc, arch: tree.arch}, at, e, &t.left)
	j.treeKeep(o)
	t.spent += time.Since(began)
	if o = o.holder(addr); o != nil {
		t.seen[o] = j.epoch
		j.isThere(o)
	}
	return o
}

// treeForget takes what is known of an object away.
func (j *JITObjects) treeForget(o *JITObject) {
	t := &j.trees
	if o == nil || t.objects[o.at] == nil {
		return
	}
	o = t.objects[o.at]
	j.leave(o)
	delete(t.objects, o.at)
	t.size -= o.sizes()
	t.code = slices.DeleteFunc(t.code, func(r jitRange) bool { return r.object.at == o.at })
	for ; o != nil; o = o.more {
		delete(t.seen, o)
	}
}

// treeKeep keeps an object. Others that have been of the same code are no more.
func (j *JITObjects) treeKeep(o *JITObject) {
	t := &j.trees
	if t.objects == nil || t.size+o.sizes() > maxJITFrames {
		t.objects, t.seen, t.code, t.size = map[uint64]*JITObject{}, map[*JITObject]uint64{}, nil, 0
	}
	t.objects[o.at] = o
	t.size += o.sizes()
	for ; o != nil; o = o.more {
		for _, c := range o.code {
			for {
				i := sort.Search(len(t.code), func(i int) bool { return t.code[i].end > c.start })
				if i == len(t.code) || t.code[i].start >= c.end {
					t.code = slices.Insert(t.code, i, c)
					break
				}
				if t.code[i].object.at == o.at {
					break
				}
				j.treeForget(t.code[i].object)
			}
		}
	}
}

// find returns the address of the object that is said to be of the code at an address, 0
// where there is none. It reports false when the tree cannot be read, or is changed.
func (t *jitTree) find(addr, epoch uint64, read func(addr uint64, buf []byte) bool) (object uint64, ok bool) {
	for range treeTries {
		if object, ok = t.tryFind(addr, epoch, read); ok {
			return object, true
		}
	}
	return 0, false
}

func (t *jitTree) tryFind(addr, epoch uint64, read func(addr uint64, buf []byte) bool) (object uint64, ok bool) {
	le := binary.LittleEndian
	var b [treeNode]byte
	same := func(at, version uint64) bool { return read(at, b[:8]) && le.Uint64(b[:]) == version }
	if !read(t.addr, b[:treeLockAt+8]) {
		return 0, false
	}
	node, lock, version := le.Uint64(b[:]), t.addr+treeLockAt, le.Uint64(b[treeLockAt:])
	if version&versionBusy != 0 {
		return 0, false
	}
	if node == 0 {
		t.empty = epoch
		return 0, true
	}
	for range maxTreeDepth {
		if !read(node, b[:]) {
			return 0, false
		}
		own := le.Uint64(b[:])
		next, leaf, valid := nodeEntry(b[:], addr)
		if !same(lock, version) || own&versionBusy != 0 || !valid {
			return 0, false
		}
		if leaf || next == 0 {
			return next, same(node, own)
		}
		node, lock, version = next, node, own
	}
	return 0, false
}

// nodeEntry returns what a node says of an address: the node to look at next, or of a leaf
// the object, 0 when there is none. It reports false of what is no node.
func nodeEntry(node []byte, addr uint64) (next uint64, leaf, ok bool) {
	le := binary.LittleEndian
	n, kind, entries := int(le.Uint32(node[8:])), le.Uint32(node[12:]), node[nodeHeader:]
	switch {
	case kind == nodeInner && n <= maxInner:
		for ; n > 0; n-- {
			if n == 1 || le.Uint64(entries) >= addr {
				return le.Uint64(entries[8:]), false, true
			}
			entries = entries[innerEntry:]
		}
		return 0, false, true
	case kind == nodeLeaf && n <= maxLeaf:
		for ; n > 0; n-- {
			if start, size := le.Uint64(entries), le.Uint64(entries[8:]); addr-start < size {
				return le.Uint64(entries[16:]), true, true
			}
			entries = entries[leafEntry:]
		}
		return 0, true, true
	}
	return 0, false, false
}
