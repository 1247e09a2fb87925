package wazero

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// maxCollected bounds what is copied of a process's stacks of compiled code, in bytes.
const maxCollected = 32 << 20

// Collector returns a Collector of what walks need of wazero, besides the stacks of its threads and goroutines: call engines,
// and the stacks that they have. It is nil where none of the libraries of the process has wazero.
func Collector(libs procstate.LibraryState) procstate.Collector {
	s := New()
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image == nil {
			continue
		}
		if p := s.image(lib.Image); p.calls.bytes != 0 {
			c := &collector{imageInfo: p, bias: lib.Bias, left: maxCollected}
			return c.collect
		}
	}
	return nil
}

type collector struct {
	*imageInfo
	bias  uint64
	left  uint64
	stack []byte
}

// collect is the Collector: the return addresses into callWithStack lead to all that the thread's goroutine has gone over to.
func (c *collector) collect(m procstate.Memory, _ procstate.ThreadID, regs *procstate.Regs, add func(addr uint64, n int)) {
	vm := machine{imageInfo: c.imageInfo, bias: c.bias, Memory: vmread.Memory{Mem: m}, stack: c.stack}
	stack, from := vm.goroutineStack(&unwind.Frame{Regs: *regs})
	c.stack = vm.stack
	sp := regs.Raw(procstate.AMD64.SP)
	for i := 0; i+8 <= len(stack); i += 8 {
		if !c.calls.Holds(binary.LittleEndian.Uint64(stack[i:]) - 1 - c.bias) {
			continue
		}
		var e callEngine
		at, ok := vm.engineOf(vm.Read, from+uint64(i)+8, &e)
		s, isStack := e.stack()
		if !ok || !isStack {
			continue
		}
		add(at, len(e))
		low := e.word(engineContext + contextSP)
		if s.Holds(sp) {
			continue // the thread's own: it is copied
		}
		if n := s.End - low; s.Holds(low) && n <= c.left {
			c.left -= n
			add(low, int(n))
		}
	}
}
