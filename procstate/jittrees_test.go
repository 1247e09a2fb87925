package procstate

import (
	"encoding/binary"
	"slices"
	"testing"
)

// Where a jitMemory has its tree, and the nodes.
const (
	treeTestRoot  = 0x2000
	treeTestNodes = 0x100000
)

// treeEntry is an entry of a leaf.
type treeEntry struct{ start, size, object uint64 }

// tree makes a tree of entries, which are in order, with so many of them in a leaf and
// so many nodes in an inner one. It returns the addresses of the nodes.
func (m *jitMemory) tree(entries []treeEntry, leaf, inner int) (nodes []uint64) {
	version := m.words[treeTestRoot+treeLockAt] + 4
	node := func(kind, n int) uint64 {
		at := treeTestNodes + uint64(len(nodes))*0x100
		for i := uint64(0); i < 0x100; i += 8 {
			m.words[at+i] = 0xdead
		}
		m.words[at], m.words[at+8] = version, uint64(n)|uint64(kind)<<32
		nodes = append(nodes, at)
		return at
	}
	type below struct{ last, node uint64 }
	var level []below
	for part := range slices.Chunk(entries, leaf) {
		at := node(nodeLeaf, len(part))
		for i, e := range part {
			word := at + nodeHeader + leafEntry*uint64(i)
			m.words[word], m.words[word+8], m.words[word+16] = e.start, e.size, e.object
		}
		last := part[len(part)-1]
		level = append(level, below{last.start + last.size - 1, at})
	}
	for len(level) > 1 {
		var above []below
		for part := range slices.Chunk(level, inner) {
			at := node(nodeInner, len(part))
			for i, b := range part {
				word := at + nodeHeader + innerEntry*uint64(i)
				m.words[word], m.words[word+8] = b.last, b.node
				if i == len(part)-1 {
					m.words[word] = 0 // whatever it is, there is no node behind
				}
			}
			above = append(above, below{part[len(part)-1].last, at})
		}
		level = above
	}
	m.words[treeTestRoot], m.words[treeTestRoot+8], m.words[treeTestRoot+treeLockAt] = 0, 0, version
	if len(level) > 0 {
		m.words[treeTestRoot] = level[0].node
	}
	return nodes
}

func treeEntries(n int) (entries []treeEntry) {
	for i := range uint64(n) {
		entries = append(entries, treeEntry{0x400000 + 0x1000*i, 0x10 + 0x10*(i%0x80), 0x800000 + 0x40*i})
	}
	return entries
}

// Each address leads to the object that it was registered for, those beside to none.
func TestJITTreeFind(t *testing.T) {
	for _, shape := range [][3]int{{0, 1, 2}, {1, 10, 15}, {10, 10, 15}, {11, 10, 15}, {700, 10, 15}, {700, 4, 3}, {300, 1, 2}} {
		m := newJITMemory()
		entries := treeEntries(shape[0])
		m.tree(entries, shape[1], shape[2])
		tree := jitTree{addr: treeTestRoot}
		want := map[uint64]uint64{0: 0, ^uint64(0): 0, 0x400000 - 1: 0}
		for _, e := range entries {
			want[e.start], want[e.start+e.size-1], want[e.start+e.size], want[e.start-1] = e.object, e.object, 0, 0
		}
		for addr, object := range want {
			if got, ok := tree.find(addr, 1, m.read); !ok || got != object {
				t.Errorf("%v: %#x, %v at %#x, want %#x", shape, got, ok, addr, object)
			}
		}
		if empty := tree.empty == 1; empty != (len(entries) == 0) {
			t.Errorf("%v: empty: %v", shape, empty)
		}
	}
}

// A tree of which a thread is changing anything on the way says nothing.
func TestJITTreeBusy(t *testing.T) {
	m := newJITMemory()
	entries := treeEntries(60)
	nodes := m.tree(entries, 10, 4)
	e := entries[len(entries)-1]
	tree := jitTree{addr: treeTestRoot}
	way := map[uint64]bool{treeTestRoot + treeLockAt: true}
	at, ok := tree.find(e.start, 1, func(addr uint64, buf []byte) bool {
		if slices.Contains(nodes, addr) {
			way[addr] = true
		}
		return m.read(addr, buf)
	})
	if !ok || at != e.object || len(way) != 4 {
		t.Fatalf("%#x, %v by way of %v", at, ok, way)
	}
	for lock := range way {
		for _, change := range []func(addr uint64, buf []byte){
			func(uint64, []byte) { m.words[lock] |= versionBusy },
			func(uint64, []byte) { m.words[lock] = m.words[lock]&^versionBusy + 4 }, // again and again
		} {
			if at, ok := tree.find(e.start, 1, func(addr uint64, buf []byte) bool {
				change(addr, buf)
				return m.read(addr, buf)
			}); ok {
				t.Errorf("%#x while %#x is changed", at, lock)
			}
		}
		m.words[lock] &^= versionBusy
	}
}

// A tree that becomes another one while it is read, with other things in place of its
// nodes, says what it was or what it is.
func TestJITTreeChanged(t *testing.T) {
	entries := treeEntries(60)
	others := slices.Clone(entries)
	for i := range others {
		others[i].object += 1 << 32
	}
	for i, e := range entries {
		for when := 1; ; when++ {
			m, reads := newJITMemory(), 0
			m.tree(entries, 10, 4)
			tree := jitTree{addr: treeTestRoot}
			at, ok := tree.find(e.start, 1, func(addr uint64, buf []byte) bool {
				if reads++; reads == when {
					m.tree(others, 2, 5)
				}
				return m.read(addr, buf)
			})
			if !ok || at != e.object && at != others[i].object || when == 1 && at == e.object {
				t.Fatalf("%#x, %v when it changed before read %d of %d, want %#x or %#x", at, ok, when, reads, e.object, others[i].object)
			}
			if when > reads {
				break
			}
		}
	}
}

// Trees that are anything but trees cost a bounded amount of work.
func TestJITTreeHostile(t *testing.T) {
	for name, node := range map[string]func(at uint64) [treeNode / 8]uint64{
		"a cycle": func(at uint64) (n [treeNode / 8]uint64) {
			n[1], n[2], n[3] = 1, ^uint64(0), at
			return n
		},
		"without end": func(at uint64) (n [treeNode / 8]uint64) {
			n[1], n[2], n[3] = 1, ^uint64(0), at+treeNode
			return n
		},
		"many entries":      func(uint64) (n [treeNode / 8]uint64) { n[1] = 1<<32 - 1; return n },
		"a leaf with many":  func(uint64) (n [treeNode / 8]uint64) { n[1] = nodeLeaf<<32 | maxLeaf + 1; return n },
		"of no kind":        func(uint64) (n [treeNode / 8]uint64) { n[1] = 7<<32 | 1; return n },
		"the end of memory": func(uint64) (n [treeNode / 8]uint64) { n[1], n[2], n[3] = 1, ^uint64(0), ^uint64(0)-8; return n },
		"itself the object": func(at uint64) (n [treeNode / 8]uint64) { n[1], n[3], n[4] = nodeLeaf<<32|1, ^uint64(0), at; return n },
		"free":              func(uint64) (n [treeNode / 8]uint64) { n[1] = 2 << 32; return n },
		"all bits": func(uint64) (n [treeNode / 8]uint64) {
			for i := range n {
				n[i] = ^uint64(0)
			}
			return n
		},
		"nothing in a node":  func(uint64) (n [treeNode / 8]uint64) { return n },
		"nothing in a leaf":  func(uint64) (n [treeNode / 8]uint64) { n[1] = nodeLeaf << 32; return n },
		"the tree as a node": func(uint64) (n [treeNode / 8]uint64) { n[1], n[2], n[3] = 1, ^uint64(0), treeTestRoot; return n },
	} {
		t.Run(name, func(t *testing.T) {
			reads, size := 0, 0
			p := jitProcessOf(t, func(at uint64, buf []byte) bool {
				reads++
				size += len(buf)
				if at+uint64(len(buf)) < at {
					t.Errorf("%d bytes at %#x", len(buf), at)
				}
				words := node(at)
				if at == treeTestRoot {
					words = [treeNode / 8]uint64{treeTestNodes}
				}
				for i := range buf {
					buf[i] = byte(words[i/8%len(words)] >> (i % 8 * 8))
				}
				return true
			})
			p.setRoots(frameRoots{tree: treeTestRoot})
			j := JITObjectsOf(p)
			for range 3 {
				j.Begin()
				if o := j.At(0x400000); o != nil {
					t.Errorf("%+v", o)
				}
			}
			if reads > 3*treeTries*(2*maxTreeDepth+4)+3*maxFrameTables || size > 3*(maxFrameInfo+2*frameInfoPage)+reads*treeNode {
				t.Errorf("%d reads of %d bytes in all", reads, size)
			}
		})
	}
}

// setRoots makes the program of the process have a libgcc.
func (p *jitProcess) setRoots(roots frameRoots) {
	im := p.Libraries().Libraries()[0].Image
	im.jit.once.Do(func() {})
	im.jit.vaddr = 0
	im.jit.rootsOnce.Do(func() { im.jit.roots = roots })
}

// frameFixture returns the call frame information of an object file, with the end that
// libgcc wants, where it is, and where a function is that it is of.
func frameFixture(t *testing.T, name string) (frames []byte, at, code uint64) {
	t.Helper()
	linked, err := LinkJITObject(jitFixture(t, name))
	if err != nil {
		t.Fatal(err)
	}
	s, _ := linked.Section(".eh_frame")
	frames, err = linked.SectionBytes(s, maxFrameInfo)
	if err != nil {
		t.Fatal(err)
	}
	frames = append(frames, make([]byte, 2*frameInfoPage)...)
	left := uint64(len(frames))
	_, ranges, err := readFrameInfo(s.Vaddr, &left, func(addr uint64, buf []byte) bool { return copy(buf, frames[addr-s.Vaddr:]) == len(buf) })
	if err != nil {
		t.Fatal(err)
	}
	return frames, s.Vaddr, ranges[0].start
}

// object makes an object of libgcc at an address.
func (m *jitMemory) object(at, frames, flags uint64) {
	for i := uint64(0); i < 48; i += 8 {
		m.words[at+i] = 0
	}
	m.words[at+24], m.words[at+32] = frames, flags
}

// What is in a tree, or in a list, is found as long as it is there, by itself or with
// others, sorted or not.
func TestJITObjectsOfLibgcc(t *testing.T) {
	const one, two, sorted, table, list = jitTestHeap, jitTestHeap + 0x100, jitTestHeap + 0x200, jitTestHeap + 0x300, jitTestHeap + 0x400
	frames, framesAt, code := frameFixture(t, "rtdyld.o")
	others, othersAt, other := frameFixture(t, "jitlink.o")
	for _, roots := range []frameRoots{{tree: treeTestRoot}, {lists: []uint64{list}}} {
		for _, flags := range []uint64{0, objectSorted, objectArray, objectArray | objectSorted} {
			m := newJITMemory()
			m.files[framesAt], m.files[othersAt] = frames, others
			show := func(objects ...uint64) {
				var entries []treeEntry
				m.words[list] = 0
				for _, o := range objects {
					m.words[o+40], m.words[list] = m.words[list], o
					entries = append(entries, treeEntry{min(code, other), max(code, other), o})
				}
				m.tree(entries, 10, 15)
			}
			m.words[table], m.words[table+8], m.words[table+16] = framesAt, othersAt, 0
			m.words[sorted] = framesAt
			if flags&objectArray != 0 {
				m.words[sorted] = table
			}
			first := m.words[sorted]
			if flags&objectSorted != 0 {
				first = sorted
			}
			m.object(one, first, flags|0x7f8)
			m.object(two, othersAt, 0x7f8)
			show()
			p := jitProcessOf(t, m.read)
			p.setRoots(roots)
			j := JITObjectsOf(p)
			at := func(addr uint64) *JITObject {
				j.Begin()
				return j.At(addr)
			}
			fail := func(what string) { t.Errorf("%+v, flags %#x: %s", roots, flags, what) }
			if at(code) != nil {
				fail("there before it is told")
			}
			show(one)
			o, also := at(code), at(other)
			if o == nil || !o.Holds(code) || at(code) != o {
				fail("not found, or another each time")
			}
			if (also != nil) != (flags&objectArray != 0) || also != nil && !also.Holds(other) {
				fail("what it is told with is found where there is none, or not found")
			}
			show(two)
			if at(code) != nil || at(other) == nil || at(other) == also {
				fail("another in its place is not found, or it is there still")
			}
			show(one)
			if o = at(code); o == nil {
				fail("not found again")
			}
			m.files[framesAt] = slices.Clone(frames)
			m.files[framesAt][20] ^= 1 // of the CIE
			if now := at(code); now == o {
				fail("the same when it has changed")
			}
			show()
			if at(code) != nil || at(other) != nil {
				fail("there when it is no more")
			}
		}
	}
}

// What start files tell of the program itself is in its file, and not read.
func TestJITObjectsInFile(t *testing.T) {
	const list, inFile = jitTestHeap + 0x400, 0x800
	frames, framesAt, code := frameFixture(t, "rtdyld.o")
	m := newJITMemory()
	m.files[framesAt] = frames
	m.object(jitTestHeap, framesAt, 0x7f8)
	m.object(jitTestHeap+0x100, inFile, 0x7f8)
	m.words[list], m.words[jitTestHeap+0x100+40] = jitTestHeap+0x100, jitTestHeap
	p := jitProcessOf(t, func(addr uint64, buf []byte) bool {
		if addr < 0x1000 {
			t.Errorf("%d bytes read at %#x", len(buf), addr)
		}
		return m.read(addr, buf)
	})
	p.setRoots(frameRoots{lists: []uint64{list}})
	if JITObjectsOf(p).At(code) == nil {
		t.Error("what is registered besides is not found")
	}
}

// Of a process that runs on, code of a tree that has been there a moment ago is known, as
// long as nothing else is in its place, and as long as nothing can be read.
func TestJITTreeGone(t *testing.T) {
	frames, framesAt, code := frameFixture(t, "rtdyld.o")
	m := newJITMemory()
	m.files[framesAt] = frames
	m.object(jitTestHeap, framesAt, 0x7f8)
	m.tree([]treeEntry{{code, 16, jitTestHeap}}, 10, 15)
	process := jitProcessOf(t, m.read)
	process.setRoots(frameRoots{tree: treeTestRoot})
	j := JITObjectsOf(liveJITProcess{process})
	o := j.At(code)
	if o == nil {
		t.Fatal("it is not there")
	}
	later := func() *JITObject {
		j.Begin()
		j.epoch++
		return j.At(code)
	}
	words := m.words
	m.words, m.files = nil, nil
	if later() != o {
		t.Error("the process has ended, and it is not known")
	}
	m.words = words
	m.words[treeTestRoot] = 0
	if later() != o {
		t.Error("it is unloaded, and not known")
	}
	m.words[code] = 0
	if later() != nil {
		t.Error("there is something else, and it is known still")
	}
}

// Where other memory is in the place of code that is no more, it was that code which a sample
// has met if it was there shortly before.
func TestJITTreeGoneLately(t *testing.T) {
	frames, framesAt, code := frameFixture(t, "rtdyld.o")
	m := newJITMemory()
	m.files[framesAt] = frames
	m.object(jitTestHeap, framesAt, 0x7f8)
	m.tree([]treeEntry{{code, 16, jitTestHeap}}, 10, 15)
	process := jitProcessOf(t, m.read)
	process.setRoots(frameRoots{tree: treeTestRoot})
	snap := NewSnapshot(AMD64, 1, "", process.Libraries())
	j := newJITObjects(snap)
	j.live = liveJITProcess{process}
	o := j.At(code)
	if o == nil {
		t.Fatal("it is not there")
	}
	m.words[treeTestRoot], m.words[code] = 0, 0
	for _, sample := range []struct {
		late uint64 // after it was seen, in ns
		want *JITObject
	}{{0, o}, {uint64(jitLately) - 1, o}, {uint64(jitLately), nil}} {
		snap.SetTime(o.there + sample.late)
		j.Begin()
		j.epoch++
		if was := j.At(code); was != sample.want {
			t.Errorf("%d ns later: %v, want %v", sample.late, was, sample.want)
		}
	}
}

// The memory of a process may hold anything: its tree is at the start, and addresses in
// it count from there.
func FuzzJITTree(f *testing.F) {
	m := newJITMemory()
	nodes := m.tree(treeEntries(30), 10, 15)
	memory := make([]byte, 0x100*(len(nodes)+1))
	for addr, w := range m.words {
		switch {
		case addr >= treeTestNodes:
			binary.LittleEndian.PutUint64(memory[0x100+addr-treeTestNodes:], w)
		case addr == treeTestRoot+treeLockAt:
			binary.LittleEndian.PutUint64(memory[treeLockAt:], w)
		}
	}
	binary.LittleEndian.PutUint64(memory, treeTestRoot+0x100*uint64(len(nodes)))
	for i, at := range nodes { // inner nodes lead to what is here too
		if m.words[at+8]>>32 == nodeInner {
			for n := range m.words[at+8] & 0xff {
				binary.LittleEndian.PutUint64(memory[0x100+0x100*uint64(i)+nodeHeader+innerEntry*n+8:], treeTestRoot+0x100+0x100*n)
			}
		}
	}
	f.Add(memory, uint64(0x400000+0x1000*17))
	f.Fuzz(func(t *testing.T, memory []byte, addr uint64) {
		reads := 0
		p := jitProcessOf(t, func(addr uint64, buf []byte) bool {
			reads++
			off := addr - treeTestRoot
			return off <= uint64(len(memory)) && uint64(len(buf)) <= uint64(len(memory))-off && copy(buf, memory[off:]) == len(buf)
		})
		p.setRoots(frameRoots{tree: treeTestRoot})
		j := JITObjectsOf(p)
		for range 2 {
			j.Begin()
			if o := j.At(addr); o != nil && !o.Holds(addr) {
				t.Errorf("%+v is not of %#x", o, addr)
			}
		}
		if reads > 4*treeTries*maxTreeDepth+4*maxFrameTables+8*len(memory)/12 {
			t.Errorf("%d reads of %d bytes", reads, len(memory))
		}
	})
}
