package procstate

import (
	"errors"
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

func zero[T any]() *T { return new(T) }

// A value that nothing has made has nothing, and says so.
func TestZeroValues(t *testing.T) {
	buf, addr := make([]byte, 8), uint64(8)
	walks := []string{"Threads", "BeforeWalk", "AfterWalk"} // of no thread
	testenv.KnowsNothing(t, zero[AddressSpace], []string{"Update"}, buf, addr)
	testenv.KnowsNothing(t, zero[Arch], nil, "rax", NoReg)
	testenv.KnowsNothing(t, zero[Capture], walks, buf, addr)
	testenv.KnowsNothing(t, zero[Core], walks, buf, addr)
	testenv.KnowsNothing(t, zero[FormatError], nil)
	testenv.KnowsNothing(t, zero[GoFunc], nil)
	testenv.KnowsNothing(t, zero[GoRuntime], []string{"Samplable"})
	testenv.KnowsNothing(t, zero[GoTable], nil, uint64(1))
	testenv.KnowsNothing(t, zero[Goroutine], nil)
	testenv.KnowsNothing(t, zero[Goroutine], nil, AMD64)
	testenv.KnowsNothing(t, zero[Goroutines], nil)
	testenv.KnowsNothing(t, zero[Image], []string{"HasMark", "Packed"}, buf, addr, Section{Size: 8}, ".text")
	testenv.KnowsNothing(t, zero[Images], nil)
	testenv.KnowsNothing(t, zero[JITObject], nil, uint64(1))
	testenv.KnowsNothing(t, zero[JITObjects], nil, uint64(1))
	testenv.KnowsNothing(t, zero[LiveCode], nil)
	testenv.KnowsNothing(t, zero[Mapping], nil, uint64(1))
	testenv.KnowsNothing(t, zero[Packed], nil)
	testenv.KnowsNothing(t, zero[ProcDebug], []string{"IsTerminated", "ExitStatus"}, buf, addr)
	testenv.KnowsNothing(t, zero[ProcSelf], []string{"AfterWalk", "InCall"}, buf, addr)
	testenv.KnowsNothing(t, zero[Regs], nil, NoReg, uint64(1))
	testenv.KnowsNothing(t, zero[Snapshot], append(walks, "Registers"), buf, addr) // see TestZeroSnapshot in unwind
	_, _, _ = EventKind(0).String(), GoStatus(5).String(), ThreadState(0).String()

	for _, p := range []ProcessState{nil, &Capture{}, &Core{}, &ProcDebug{}, &ProcSelf{}, &Snapshot{}} {
		if _, err := ReadGoroutines(p); err == nil || p == nil && !errors.Is(err, ErrNoProcess) {
			t.Errorf("%T: goroutines of nothing: %v", p, err)
		}
	}
	if _, err := Pclntab(new(Image)); err == nil {
		t.Error("Image has functions")
	}
	if _, err := GoRuntimeOf(new(Image)); err == nil {
		t.Error("Image has a runtime")
	}
	select {
	case <-new(ProcDebug).Done():
	default:
		t.Error("a ProcDebug of no process goes on")
	}
	var s Snapshot
	s.SetLiveCode(&LiveCode{})
	if s.ReadLive(8, buf) != 0 {
		t.Error("code of no process")
	}
	var space AddressSpace
	space.Insert(&Mapping{Start: 1, End: 2})
	space.Clone().Clear()
	if space.Len() != 1 {
		t.Errorf("%d mappings", space.Len())
	}
	if s, err := new(Images).LoadAddressSpace(int32(os.Getpid())); err != nil || len(s.Mappings()) == 0 {
		t.Errorf("LoadAddressSpace: %v", err)
	}
	for _, p := range []ProcessState{&Capture{}, &Core{}} {
		if tids, _ := p.Threads(); len(tids) > 0 {
			t.Errorf("%T has threads %v", p, tids)
		}
	}
}
