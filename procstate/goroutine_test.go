package procstate

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"
)

// fakeGo is a process of a Go program, whose memory is told by the test.
type fakeGo struct {
	libs AddressSpace
	read func(addr uint64, buf []byte) int
}

func (p *fakeGo) Arch() *Arch                  { return AMD64 }
func (p *fakeGo) PID() int                     { return 0 }
func (p *fakeGo) ExecutablePath() string       { return "" }
func (p *fakeGo) Threads() ([]ThreadID, error) { return []ThreadID{1}, nil }
func (p *fakeGo) Registers(_ ThreadID, regs *Regs) error {
	*regs = Regs{ThreadPointer: 0x7000}
	return nil
}
func (p *fakeGo) Libraries() LibraryState   { return &p.libs }
func (p *fakeGo) BeforeWalk(ThreadID) error { return nil }
func (p *fakeGo) AfterWalk(ThreadID) error  { return nil }

func (p *fakeGo) ReadMemory(addr uint64, buf []byte) (int, error) {
	n := p.read(addr, buf)
	if n < len(buf) {
		return n, ErrUnreadable
	}
	return n, nil
}

func (p *fakeGo) ReadWord(addr uint64) (uint64, bool) {
	var b [8]byte
	if p.read(addr, b[:]) < len(b) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// newFakeGo maps a Go program where it was linked to be, with no memory.
func newFakeGo(t testing.TB, im *Image) *fakeGo {
	t.Helper()
	p := &fakeGo{read: func(uint64, []byte) int { return 0 }}
	for _, s := range im.Segments() {
		p.libs.Insert(&Mapping{Start: s.Vaddr &^ 4095, End: (s.Vaddr + s.Memsz + 4095) &^ 4095, Offset: s.Off &^ 4095, Image: im})
	}
	return p
}

// fakeGs is a memory with a list of goroutines.
type fakeGs struct {
	rt    *GoRuntime
	allgs uint64
	n     uint64            // said to be in the list
	at    map[uint64][]byte // pieces of memory
}

func (m *fakeGs) read(addr uint64, buf []byte) int {
	for at, b := range m.at {
		if addr-at < uint64(len(b)) {
			return copy(buf, b[addr-at:])
		}
	}
	return 0
}

// set makes a list of these g.
func (m *fakeGs) set(gs ...uint64) {
	const array = 0x100000
	head := binary.LittleEndian.AppendUint64(nil, array)
	m.at[m.allgs] = binary.LittleEndian.AppendUint64(head, m.n)
	var list []byte
	for _, g := range gs {
		list = binary.LittleEndian.AppendUint64(list, g)
	}
	m.at[array] = list
}

// g makes the head of a g.
func (m *fakeGs) g(addr, id uint64, status GoStatus, start uint64) []byte {
	b := make([]byte, m.rt.gHeadSize())
	put := func(at uint32, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put(m.rt.StackLo, 0x10000)
	put(m.rt.StackHi, 0x20000)
	put(m.rt.SchedSP, 0x1f000)
	put(m.rt.ID, id)
	put(m.rt.StartPC, start)
	put(m.rt.Status, uint64(status)|goScan)
	m.at[addr] = b
	return b
}

// A runtime that lies costs what it lies about, and no more.
func TestReadGoroutinesOfLiars(t *testing.T) {
	im := openTestImage(t, buildGoMain(t, "local", "amd64"))
	rt, err := GoRuntimeOf(im)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := goListsOf(im)
	if err != nil {
		t.Fatal(err)
	}
	table, err := Pclntab(im)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := table.At(100)
	fresh := func(n uint64) (*fakeGo, *fakeGs) {
		p, m := newFakeGo(t, im), &fakeGs{rt: rt, allgs: lists.allgs, n: n, at: make(map[uint64][]byte)}
		p.read = m.read
		return p, m
	}

	p, _ := fresh(0)
	if _, err := ReadGoroutines(p); !errors.Is(err, ErrUnreadable) {
		t.Errorf("no memory: %v", err)
	}
	for _, n := range []uint64{0, 1 << 41, ^uint64(0)} {
		p, m := fresh(n)
		m.set(0x3000)
		if _, err := ReadGoroutines(p); !errors.Is(err, ErrNoGoroutines) {
			t.Errorf("%d goroutines: %v", n, err)
		}
	}
	// More than are looked at, of which few are there.
	p, m := fresh(maxGoroutines + 10)
	m.set(0x3000, 0x4000)
	m.g(0x3000, 7, GoWaiting, f.Entry)
	gs, err := ReadGoroutines(p)
	if err != nil || len(gs.List) != 1 || gs.List[0].ID != 7 || gs.Unread != maxGoroutines+9 {
		t.Errorf("%+v, %v", gs, err)
	}

	p, m = fresh(8)
	m.set(0x3000, 0x4000, 0x5000, 0x6000, 0x8000, 0x9000, 0xa000, 0xdead0000)
	m.g(0x3000, 9, GoRunnable, f.Entry)
	m.g(0x4000, 8, GoWaiting, f.Entry)[rt.WaitReason] = 200 // there are no such reasons
	m.g(0x5000, 6, GoDead, 12345)
	m.g(0x6000, 5, 77, f.Entry)                                                       // no such status
	m.g(0x8000, 4, GoWaiting, f.Entry+1)                                              // no function
	m.g(0x9000, 0, GoWaiting, f.Entry)                                                // no ID
	binary.LittleEndian.PutUint64(m.g(0xa000, 3, GoWaiting, f.Entry)[rt.StackHi:], 1) // ends before it begins
	gs, err = ReadGoroutines(p)
	if err != nil || len(gs.List) != 2 || gs.Unread != 5 {
		t.Fatalf("%+v, %v", gs, err)
	}
	if a, b := gs.List[0], gs.List[1]; a.ID != 8 || a.State() != "waiting" || b.ID != 9 || b.State() != "runnable" {
		t.Errorf("%+v", gs.List)
	}
}

// FuzzReadGoroutines reads goroutines of a memory that is whatever it is, the
// same everywhere.
func FuzzReadGoroutines(f *testing.F) {
	im, err := NewImageBytes(mustRead(f, os.Args[0]), "self")
	if err != nil {
		f.Fatal(err)
	}
	if im.Arch() != AMD64 {
		f.Skip("the fake process is one of amd64")
	}
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{4, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		p := newFakeGo(t, im)
		left := 1 << 20 // bytes
		p.read = func(addr uint64, buf []byte) int {
			n := min(len(buf), left)
			left -= n
			for i := range n {
				buf[i] = data[(addr+uint64(i))%uint64(len(data))]
			}
			return n
		}
		gs, err := ReadGoroutines(p)
		if err == nil && len(gs.List) > maxGoroutines {
			t.Fatalf("%d goroutines", len(gs.List))
		}
	})
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The copy that is made while a process stands takes heads in pieces, stacks of
// those that are parked alone, and gives up on a list of lies. The process is
// this one.
func TestGoroutineCopy(t *testing.T) {
	im, err := NewImageBytes(mustRead(t, os.Args[0]), "self")
	if err != nil {
		t.Fatal(err)
	}
	rt, err := GoRuntimeOf(im)
	if err != nil {
		t.Fatal(err)
	}
	const count, stride, stackBytes = 100, 512, 4096
	heads, stacks := make([]byte, count*stride), make([]byte, count*stackBytes)
	addr := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
	list := make([]byte, 8*count)
	for i := range count {
		g := heads[i*stride:]
		put := func(at uint32, v uint64) { binary.LittleEndian.PutUint64(g[at:], v) }
		lo := addr(stacks[i*stackBytes:])
		put(rt.StackLo, lo)
		put(rt.StackHi, lo+stackBytes)
		put(rt.SchedSP, lo+stackBytes-uint64(i)*16-16)
		status := GoWaiting
		if i%2 == 1 {
			status = GoRunning
		}
		binary.LittleEndian.PutUint32(g[rt.Status:], uint32(status))
		binary.LittleEndian.PutUint64(list[8*i:], addr(g))
		stacks[i*stackBytes+stackBytes-1] = byte(i)
	}
	header := make([]byte, 16)
	binary.LittleEndian.PutUint64(header, addr(list))
	binary.LittleEndian.PutUint64(header[8:], count)
	task := ThreadID(os.Getpid())
	find := func(regions []Region, at uint64) []byte {
		for _, r := range regions {
			if at-r.Addr < uint64(len(r.Data)) {
				return r.Data[at-r.Addr:]
			}
		}
		return nil
	}
	for _, known := range []int{0, 30, count} { // when it was prepared
		c := &goroutineCopy{rt: rt, allgs: addr(header), listed: known, stackLimit: DefaultStackBytes, arena: &arena{}}
		c.batch.patience = goroutineFailures
		for i := range known {
			c.known = append(c.known, addr(heads[i*stride:]))
		}
		slices.Sort(c.known)
		regions := c.take(task, 8)
		if len(regions) > 2+count/2+4 {
			t.Errorf("%d known: %d pieces", known, len(regions))
		}
		for i := range count {
			if b := find(regions, addr(heads[i*stride:])); uint64(len(b)) < rt.gHeadSize() {
				t.Errorf("%d known: no head of %d", known, i)
			}
			b := find(regions, addr(stacks[i*stackBytes:])+stackBytes-16)
			switch {
			case i%2 == 1 && b != nil:
				t.Errorf("%d known: a stack of %d", known, i)
			case i%2 == 0 && (len(b) < 16 || b[15] != byte(i)):
				t.Errorf("%d known: no stack of %d", known, i)
			}
		}
	}

	// Nothing of what it lists is there, far from where programs and their memory are.
	for i := range count {
		binary.LittleEndian.PutUint64(list[8*i:], uint64(1<<44+i*stride*4))
	}
	c := &goroutineCopy{rt: rt, allgs: addr(header), stackLimit: DefaultStackBytes, arena: &arena{}}
	c.batch.patience = goroutineFailures
	for _, r := range c.take(task, 8)[2:] {
		if len(r.Data) != 0 {
			t.Errorf("%d bytes at %#x", len(r.Data), r.Addr)
		}
	}
	runtime.KeepAlive(stacks)
	runtime.KeepAlive(heads)
	runtime.KeepAlive(list)
}

// What is copied of all stacks together is bounded.
func TestGoroutineCopyBudget(t *testing.T) {
	const count = 1000
	memory := make([]byte, 1<<20)
	at := uint64(uintptr(unsafe.Pointer(&memory[0])))
	c := &goroutineCopy{stackLimit: 1 << 20, arena: &arena{}}
	c.batch.task = ThreadID(os.Getpid())
	for range count {
		c.stacks = append(c.stacks, area{at, at + 1<<20})
	}
	c.copyStacks()
	total := 0
	for _, r := range c.out.regions {
		total += len(r.Data)
	}
	if len(c.out.regions) != count || total > goroutineBudget || total < goroutineBudget/2 {
		t.Errorf("%d bytes of %d stacks", total, len(c.out.regions))
	}
	runtime.KeepAlive(memory)
}
