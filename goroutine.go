package swbpf

import (
	"errors"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Why a goroutine has no stack to walk.
var (
	ErrStackMoving = errors.New("its stack is being moved")
	ErrStackLost   = errors.New("its stack was not copied, or cannot be read")
	ErrNoThread    = errors.New("the thread that it is on is not known")
	ErrBadContext  = errors.New("its stack pointer is not in its stack")
)

// WalkGoroutine walks the stack of a goroutine that procstate.ReadGoroutines has
// read of the Walker's process, and appends its frames to dst, as WalkStack does
// for a thread. A goroutine on a thread has that thread's stack. The process
// must stand still since the goroutines were read.
//
// The first frame of one that is on no thread is the function that waits in the
// runtime, as runtime.gopark. It is in a call: its PC is a return address.
func WalkGoroutine(w *unwind.Walker, dst []unwind.Frame, g *procstate.Goroutine) ([]unwind.Frame, error) {
	if g.Thread != 0 {
		return w.WalkStack(dst, g.Thread)
	}
	p, a := w.ProcessState(), w.Arch()
	switch {
	case a == nil:
		return dst, unwind.ErrNoProcess
	case g.Status == procstate.GoCopystack:
		return dst, ErrStackMoving
	case g.Status == procstate.GoRunning || g.Status == procstate.GoSyscall:
		return dst, ErrNoThread
	case g.SP < g.StackLo || g.SP >= g.StackHi || g.SP%uint64(a.AddressWidth) != 0:
		return dst, ErrBadContext
	}
	if _, ok := p.ReadWord(g.SP); !ok {
		return dst, ErrStackLost
	}
	var regs procstate.Regs
	g.Registers(a, &regs)
	var top unwind.Frame
	top.Load(a, &regs)
	top.PCLocation, top.SPLocation, top.FPLocation = unwind.InMemory(g.PCAt), unwind.InMemory(g.SPAt), unwind.InMemory(g.BPAt)
	// One that never ran is at the first instruction of its function; with a link
	// register, one that was preempted as it entered a function still needs that.
	if g.PC != g.StartPC && (a.LR == procstate.NoReg || g.LR == 0) {
		top.Flags &^= unwind.Interrupted
	}
	n := len(dst)
	dst, err := w.WalkFrom(dst, &top)
	if err == unwind.MemoryUnreadable && len(dst) > n {
		if c, ok := p.(interface{ Missed() (uint64, bool) }); ok {
			if at, missed := c.Missed(); missed && at >= g.SP && at < g.StackHi {
				err = unwind.StackCut
			}
		}
	}
	return dst, err
}
