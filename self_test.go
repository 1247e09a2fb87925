package swbpf_test

import (
	"encoding/binary"
	"regexp"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// walkSelf walks the calling goroutine and returns its frames, and the call
// chain as the runtime has it, innermost first.
//
//go:noinline
func walkSelf(t *testing.T, w *unwind.Walker) ([]unwind.Frame, []uintptr) {
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	pcs := make([]uintptr, 10000)
	pcs = pcs[:runtime.Callers(1, pcs)]
	if err != nil {
		t.Fatalf("walk of %d frames: %v", len(frames), err)
	}
	return frames, pcs
}

// checkSelf compares the functions of a first-party walk, frame by frame, with
// what the runtime says of the same stack.
func checkSelf(t *testing.T, w *unwind.Walker) {
	t.Helper()
	frames, pcs := walkSelf(t, w)
	var want []string
	for it := runtime.CallersFrames(pcs); ; {
		f, more := it.Next()
		if f.Func != nil { // calls that were inlined have no frame
			want = append(want, f.Function)
		}
		if !more {
			break
		}
	}
	i := 0
	for j := range frames {
		if j > 0 && frames[j].SP() <= frames[j-1].SP() {
			t.Errorf("frame %d: SP %#x is not above %#x", j, frames[j].SP(), frames[j-1].SP())
		}
		sym, _ := w.Name(&frames[j])
		if (i >= len(want) || sym.Name != want[i]) && wrapper.MatchString(sym.Name) {
			continue // the runtime hides the functions that the compiler made
		}
		if i >= len(want) || sym.Name != want[i] {
			t.Fatalf("frame %d is %s, the runtime has %v", j, sym.Name, want[min(i, len(want)):])
		}
		i++
	}
	if i != len(want) {
		t.Errorf("the walk ends before %v", want[i:])
	}
}

var wrapper = regexp.MustCompile(`\.(gowrap|deferwrap)\d+$`)

//go:noinline
func deeper(t *testing.T, w *unwind.Walker, n int) int {
	var pad [40]int
	pad[n%40] = n
	if n == 0 {
		checkSelf(t, w)
		return 0
	}
	return deeper(t, w, n-1) + pad[n%40]
}

func TestFirstParty(t *testing.T) {
	w, err := swbpf.NewWalker()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("plain", func(t *testing.T) { checkSelf(t, w) })
	t.Run("deep", func(t *testing.T) { deeper(t, w, 500) })
	t.Run("deferred", func(t *testing.T) {
		defer func() {
			recover()
			checkSelf(t, w)
		}()
		panic("in the middle")
	})
	t.Run("method value and closure", func(t *testing.T) {
		f := func(g func()) { g() }
		f(func() { checkSelf(t, w) })
	})
	t.Run("other goroutine", func(t *testing.T) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			deeper(t, w, 20)
		}()
		<-done
	})
	t.Run("stack that has just grown", func(t *testing.T) {
		done := make(chan struct{})
		go func() { // a new goroutine has a small stack
			defer close(done)
			deeper(t, w, 3000)
		}()
		<-done
	})
}

// overwrite puts something else where the frames of a function were that has returned.
//
//go:noinline
func overwrite(n int) int {
	if n == 0 {
		return 0
	}
	return overwrite(n-1) + n
}

// What is read for the frames of a walk, as their variables, is the stack of that walk, also
// when their functions have returned since.
func TestFirstPartyStackAfterWalk(t *testing.T) {
	w, err := swbpf.NewWalker()
	if err != nil {
		t.Fatal(err)
	}
	written := overwrite(10_000) // so that the stack is large enough to stay where it is
	frames, _ := walkSelf(t, w)
	written += overwrite(10)
	if written == 0 {
		t.Fatal("nothing is overwritten")
	}
	at := frames[1].PCLocation
	if pc, ok := w.ProcessState().ReadWord(at.Addr); at.Kind != unwind.LocationAddress || !ok || pc != frames[1].PC() {
		t.Errorf("the return address to %#x is read as %#x, %t", frames[1].PC(), pc, ok)
	}
	var b [8]byte
	if n, err := w.ProcessState().ReadMemory(at.Addr, b[:]); n != len(b) || err != nil || binary.NativeEndian.Uint64(b[:]) != frames[1].PC() {
		t.Errorf("the return address to %#x is read as %x, %v", frames[1].PC(), b[:n], err)
	}
}

func TestFirstPartyTop(t *testing.T) {
	w, err := swbpf.NewWalker()
	if err != nil {
		t.Fatal(err)
	}
	var f unwind.Frame
	if err := w.InitialFrame(procstate.DefaultThread, &f); err != nil {
		t.Fatal(err)
	}
	if sym, _ := w.Name(&f); sym.Name != "github.com/swbpf/swbpf_test.TestFirstPartyTop" {
		t.Errorf("the top frame is %s", sym.Name)
	}
	if !f.IsTop() || f.NonCall() {
		t.Errorf("flags %b: want a top frame that is in a call", f.Flags)
	}
	if none := (unwind.Location{}); f.PCLocation != none || f.SPLocation != none || f.FPLocation != none {
		t.Errorf("values of a frame that has called are said to be in registers: %+v %+v %+v", f.PCLocation, f.SPLocation, f.FPLocation)
	}
	var set unwind.WalkerSet
	set.Add(w)
	walks, err := set.WalkStacks()
	if err != nil || len(walks) != 1 || walks[0].Err != nil {
		t.Fatalf("%+v, %v", walks, err)
	}
	if sym, _ := w.Name(&walks[0].Frames[0]); sym.Name != "github.com/swbpf/swbpf_test.TestFirstPartyTop" {
		t.Errorf("the top frame of a set's walk is %s", sym.Name)
	}
	tids, err := w.Threads()
	if err != nil || len(tids) != 1 {
		t.Errorf("threads %v, %v; want the calling one", tids, err)
	}
	if err := w.InitialFrame(tids[0]+1000000, &f); err == nil {
		t.Error("a thread that is not the caller's could be walked")
	}
}

func TestFirstPartyMemory(t *testing.T) {
	self, err := procstate.NewProcSelf()
	if err != nil {
		t.Fatal(err)
	}
	// A read that would fault is an error.
	for _, addr := range []uint64{0, 8, 1 << 63, ^uint64(0)} {
		if v, ok := self.ReadWord(addr); ok {
			t.Errorf("word at %#x reads %#x", addr, v)
		}
		if n, err := self.ReadMemory(addr, make([]byte, 16)); err == nil {
			t.Errorf("%d bytes at %#x could be read", n, addr)
		}
	}
}

func BenchmarkFirstParty(b *testing.B) {
	w, err := swbpf.NewWalker()
	if err != nil {
		b.Fatal(err)
	}
	var frames []unwind.Frame
	for b.Loop() {
		if frames, err = w.WalkStack(frames[:0], procstate.DefaultThread); err != nil {
			b.Fatal(err)
		}
	}
}
