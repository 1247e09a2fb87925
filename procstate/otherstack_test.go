package procstate

import (
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"testing"
	"unsafe"
)

// A stack that was not captured is read while the call that left it is under way.
func TestAddOtherStack(t *testing.T) {
	var pin runtime.Pinner // a goroutine's stack moves
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	stacks := make([]byte, 3*codePage+256)
	pin.Pin(&stacks[0])
	defer pin.Unpin()
	waits, calls := stacks[:3*codePage], stacks[3*codePage:]
	at := func(b []byte, off int) uint64 { return uint64(uintptr(unsafe.Pointer(&b[off]))) }
	for i := range calls {
		calls[i] = byte(i)
	}
	word := (codePage + 16) &^ 7
	binary.LittleEndian.PutUint64(waits[word:], 0x1234567)
	var space AddressSpace
	const sp = 64 // offset in calls
	for _, test := range []struct {
		name string
		live bool
		sp   uint64
		then func() // after the capture
		want bool
	}{
		{"under way", true, at(calls, sp), func() { calls[sp-16]++ }, true},
		{"not live", false, at(calls, sp), func() {}, false},
		{"returned", true, at(calls, sp), func() { calls[sp-8]++ }, false},
		{"another frame", true, at(calls, sp), func() { calls[sp+55]++ }, false},
		{"near the end", true, at(calls, len(calls)-8), func() {}, true},
		{"not captured", true, at(calls, 0) + uint64(len(calls)) + 8, func() {}, false},
		{"below", true, at(calls, 0), func() {}, false},
	} {
		s := NewSnapshot(AMD64, os.Getpid(), exe, &space)
		if test.live {
			live := NewLiveCode(os.Getpid(), exe)
			s.SetLiveCode(live)
			defer func() { live.close() }()
		}
		captured := append([]byte(nil), calls...)
		for range 2 { // again with the same Snapshot
			copy(calls, captured)
			s.Reset(1, new(Regs), []Region{{at(calls, 0), captured}})
			if s.AddOtherStack(test.sp) {
				t.Errorf("%s: nothing is missed", test.name)
			}
			if _, ok := s.ReadWord(at(waits, word)); ok {
				t.Fatalf("%s: the word was captured", test.name)
			}
			test.then()
			if got := s.AddOtherStack(test.sp); got != test.want {
				t.Errorf("%s: %v, want %v", test.name, got, test.want)
			}
			if got, ok := s.ReadWord(at(waits, word)); ok != test.want || ok && got != 0x1234567 {
				t.Errorf("%s: %#x, %v", test.name, got, ok)
			}
		}
		copy(calls, captured)
	}
	// Of a process that has ended.
	s := NewSnapshot(AMD64, os.Getpid(), exe, &space)
	live := NewLiveCode(os.Getpid(), exe)
	s.SetLiveCode(live)
	regs := new(Regs)
	read := func(sp uint64, captured []byte) (added, ok bool) {
		s.Reset(1, regs, []Region{{at(calls, 0), captured}})
		s.ReadWord(at(waits, word))
		added = s.AddOtherStack(sp)
		_, ok = s.ReadWord(at(waits, word))
		return added, ok
	}
	captured := append([]byte(nil), calls...)
	if added, ok := read(at(calls, sp), captured); !added || !ok {
		t.Fatal("a call that is under way")
	}
	// The callers of a call are the same as long as it is under way: where they change, what they were is at hand.
	if s.UseEarlierCode() {
		t.Error("nothing has changed")
	}
	was := binary.LittleEndian.Uint64(waits[word:])
	for _, caller := range []uint64{was + 1, was + 1} { // read twice
		binary.LittleEndian.PutUint64(waits[word:], caller)
		if added, ok := read(at(calls, sp), captured); !added || !ok {
			t.Error("a call that has just returned")
		}
		if got, _ := s.ReadWord(at(waits, word)); got != caller || !s.UseEarlierCode() {
			t.Errorf("%#x, want what is there now, %#x, and that it was other before", got, caller)
		}
		if _, ok := s.ReadWord(at(waits, word)); ok || !s.AddOtherStack(at(calls, sp)) {
			t.Error("what has changed is still there")
		}
		if got, _ := s.ReadWord(at(waits, word)); got != was {
			t.Errorf("%#x, want what was there before, %#x", got, was)
		}
	}
	binary.LittleEndian.PutUint64(waits[word:], was)
	if added, ok := read(at(calls, sp), captured); !added || !ok {
		t.Error("a call that is under way again")
	}
	live.close()
	if added, ok := read(at(calls, sp), captured); !added || !ok {
		t.Error("the same call, when the process has ended")
	}
	if added, ok := read(at(calls, sp+8), captured); added || ok {
		t.Error("another call, when the process has ended")
	}
	for reads := range 3 { // while it is read
		live = NewLiveCode(os.Getpid(), exe)
		s.SetLiveCode(live)
		if added, ok := read(at(calls, sp), captured); !added || !ok {
			t.Fatal("a call that is under way")
		}
		mem := live.mem
		defer mem.(io.Closer).Close()
		live.mem = &endingMemory{mem, reads}
		for range 2 {
			if added, ok := read(at(calls, sp), captured); !added || !ok {
				t.Errorf("the same call, when the process ends after %d reads", reads)
			}
			if got, _ := s.ReadWord(at(waits, word)); got != was {
				t.Errorf("%#x, want %#x, when the process ends after %d reads", got, was, reads)
			}
		}
	}
	captured[sp]++
	if added, ok := read(at(calls, sp), captured); added || ok {
		t.Error("a call that returns elsewhere, when the process has ended")
	}
}

// endingMemory is that of a process that ends after so many reads.
type endingMemory struct {
	io.ReaderAt
	reads int
}

func (m *endingMemory) ReadAt(p []byte, off int64) (int, error) {
	if m.reads--; m.reads < 0 {
		return 0, io.EOF
	}
	return m.ReaderAt.ReadAt(p, off)
}

// A stack that was read may have been called on a third: that is read, too, as long as all calls are under way.
func TestAddOtherStacks(t *testing.T) {
	var pin runtime.Pinner // a goroutine's stack moves
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	const far = maxOtherStack + 2*codePage // from one stack to the next
	memory := make([]byte, (maxOtherStacks+2)*far)
	pin.Pin(&memory[0])
	defer pin.Unpin()
	at := func(off int) uint64 { return uint64(uintptr(unsafe.Pointer(&memory[off]))) }
	var space AddressSpace
	live := NewLiveCode(os.Getpid(), exe)
	s := NewSnapshot(AMD64, os.Getpid(), exe, &space)
	s.SetLiveCode(live)
	defer func() { live.close() }()
	first := append([]byte(nil), memory[:callProof]...)
	// add has the n-th stack added, as one that was called on by the one before.
	add := func(n int) bool {
		if _, ok := s.ReadWord(at(n * far)); ok {
			t.Fatalf("stack %d was captured", n)
		}
		return s.AddOtherStack(at((n-1)*far + 8))
	}
	for range 2 { // again with the same Snapshot
		s.Reset(1, new(Regs), []Region{{at(0), first}})
		for n := 1; n <= maxOtherStacks; n++ {
			if !add(n) {
				t.Errorf("stack %d was not added", n)
			}
		}
		if add(maxOtherStacks + 1) {
			t.Error("there is no end")
		}
	}
	s.Reset(1, new(Regs), []Region{{at(0), first}})
	if !add(1) {
		t.Fatal("the first call is under way")
	}
	memory[16]++ // in the frame that has called the first
	if add(2) {
		t.Error("the first call has returned before the second stack was read")
	}
}
