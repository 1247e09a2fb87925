package procstate

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// libraryTrap stops a thread of the target at its loader's notification
// function, so that library changes can be told before the library's code
// runs.
//
// A breakpoint in the target's memory would do that too, but it would outlive
// a tracer that is killed, and the target would die of it at its next dlopen.
// A uprobe belongs to a file descriptor: the kernel removes it whenever that
// is closed, in whatever way its owner ends. What a uprobe cannot do is to
// stop the thread, so a BPF program on it (this is why the package depends on
// cilium/ebpf) sends the thread a signal, and the thread under ptrace stops
// to have the signal judged, before it runs any further. The tracer takes the
// signal away. The signal is one that is ignored unless a handler asks for
// it, and that comes unbidden to programs anyway: SIGWINCH, or SIGURG where
// the thread blocks SIGWINCH. It is sent only while the thread is traced. When
// the tracer dies between the sending and the stop, the signal finds nobody
// and is ignored, or reaches a handler that has to expect it at any time.
//
// A thread that blocks both signals waits for the tracer to stop it; see
// waitInstructions. Where the kernel cannot have it wait, it is counted, and
// the change is noticed before the next walk.
type libraryTrap struct {
	site  trapSite
	owner ThreadID // thread that the perf event was opened on
	code  [4]byte  // at the site, without the uprobe: as long as a breakpoint, or longer
	perf  int      // descriptor of the uprobe
	prog  *ebpf.Program
	count *ebpf.Map
	ring  *ringbuf.Reader // IDs of threads that wait; nil where none can

	disarmOnce, closeOnce sync.Once // the target may end while it is detached

	// On the engine's goroutine: values of the counters when a stop was taken.
	handled uint64 // of trapHeld
	stopped uint64 // of trapUnheld

	unheld uint64 // value of that counter before the last walk
}

// Slots of the map that the program counts in.
const (
	trapHeld   = iota // the thread was sent a signal
	trapUnheld        // it blocks them
	trapWaiter        // ID of the last that did
	trapVain          // waits in vain since the last that was not
	trapSlots
)

// trapSignals are tried in order.
var trapSignals = []unix.Signal{unix.SIGWINCH, unix.SIGURG}

// siKernel is SI_KERNEL of asm-generic/siginfo.h: sent by the kernel itself.
const siKernel = 0x80

// newLibraryTrap makes the trap for a process, which stops nobody before it is armed.
func newLibraryTrap(pid int, owner ThreadID, site trapSite) (*libraryTrap, error) {
	task, err := taskOffsets()
	if err != nil {
		return nil, fmt.Errorf("library trap: %w", err)
	}
	tr := &libraryTrap{site: site, owner: owner, perf: -1}
	tr.count, err = ebpf.NewMap(&ebpf.MapSpec{Name: "swbpf_libtrap", Type: ebpf.Array,
		KeySize: 4, ValueSize: 8, MaxEntries: trapSlots})
	if err == nil {
		if err = tr.loadWaiting(task); err != nil {
			tr.prog, err = ebpf.NewProgram(trapProgram(tr.count, nil, task, site.addr))
		}
	}
	if err == nil {
		ReadProcess(int(owner), site.addr, tr.code[:])
		tr.perf, err = openUprobe(pid, owner, site)
	}
	if err != nil {
		tr.close()
		return nil, trapError(err)
	}
	return tr, nil
}

// arm sets the trap. Who tells its stops from others must know of it by then.
func (tr *libraryTrap) arm() error {
	err := unix.IoctlSetInt(tr.perf, unix.PERF_EVENT_IOC_SET_BPF, tr.prog.FD())
	if err == nil {
		err = unix.IoctlSetInt(tr.perf, unix.PERF_EVENT_IOC_ENABLE, 0)
	}
	if err != nil {
		return trapError(err)
	}
	return nil
}

func trapError(err error) error {
	return fmt.Errorf("library trap (needs root or CAP_BPF and CAP_PERFMON): %w", err)
}

// loadWaiting loads the program for kernels where a thread can wait.
func (tr *libraryTrap) loadWaiting(task taskLayout) error {
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Name: "swbpf_libtrap_w", Type: ebpf.RingBuf, MaxEntries: trapRingSize})
	if err != nil {
		return err
	}
	defer ring.Close() // the program and the reader hold it
	prog, err := ebpf.NewProgram(trapProgram(tr.count, ring, task, tr.site.addr))
	if err != nil {
		return err
	}
	if tr.ring, err = ringbuf.NewReader(ring); err != nil {
		prog.Close()
		return err
	}
	tr.prog = prog
	return nil
}

// disarm removes the uprobe, and returns when the target's code is as it was. The
// counts can still be read.
func (tr *libraryTrap) disarm() { tr.disarmOnce.Do(tr.removeProbe) }

func (tr *libraryTrap) removeProbe() {
	if tr.perf < 0 {
		return
	}
	// Closing takes three times as long: it waits for all who could be running
	// the program, or be on their way to it.
	closed := make(chan struct{})
	go func(perf int) {
		unix.Close(perf)
		close(closed)
	}(tr.perf)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for code := tr.code; ; {
		select {
		case <-closed:
			return
		case <-tick.C:
		}
		if n := ReadProcess(int(tr.owner), tr.site.addr, code[:]); n == len(code) && code == tr.code {
			return
		}
	}
}

// close frees everything.
func (tr *libraryTrap) close() {
	tr.disarm()
	tr.closeOnce.Do(func() {
		if tr.ring != nil {
			tr.ring.Close()
		}
		tr.prog.Close()
		tr.count.Close()
	})
}

// read returns a counter.
func (tr *libraryTrap) read(slot uint32) (n uint64) {
	if tr.count.Lookup(slot, &n) != nil {
		return 0
	}
	return n
}

// claims reports whether a signal that stopped a thread came from the trap.
// A loader reports under its lock, so there is one report at a time.
func (tr *libraryTrap) claims(sig unix.Signal, code int32) bool {
	if code != siKernel || (sig != trapSignals[0] && sig != trapSignals[1]) {
		return false
	}
	n := tr.read(trapHeld)
	if n == tr.handled {
		return false
	}
	tr.handled = n
	return true
}

// missed reports whether changes went by without a stop since the last call.
func (tr *libraryTrap) missed() bool {
	n := tr.read(trapUnheld)
	changed := n != tr.unheld
	tr.unheld = n
	return changed
}

// Where the program keeps things on its stack.
const (
	taskValueAt = -8
	trapKeyAt   = -16
)

// readTask reads size bytes at base+off, in the kernel, into R6 and the
// stack's taskValueAt.
func readTask(base asm.Register, off uint32, size int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, taskValueAt, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R3, base),
		asm.Add.Imm(asm.R3, int32(off)),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, taskValueAt),
		asm.Mov.Imm(asm.R2, size),
		asm.FnProbeReadKernel.Call(),
		asm.LoadMem(asm.R6, asm.RFP, taskValueAt, asm.DWord),
	}
}

// trapSlot has R0 point to a slot of the map.
func trapSlot(count *ebpf.Map, slot int64) asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, trapKeyAt, slot, asm.Word),
		asm.LoadMapPtr(asm.R1, count.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, trapKeyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "done"),
	}
}

// trapProgram sends the current thread, if it is traced, the first of
// trapSignals that it does not block, and counts. A thread that blocks them
// waits, unless ring is nil.
func trapProgram(count, ring *ebpf.Map, task taskLayout, site uint64) *ebpf.ProgramSpec {
	ins := asm.Instructions{
		btf.WithFuncMetadata(asm.FnGetCurrentTask.Call().WithSymbol("library_trap"), trapEntry),
		asm.Mov.Reg(asm.R8, asm.R0),
	}
	ins = append(ins, readTask(asm.R8, task.ptrace, 4)...)
	ins = append(ins, asm.JEq.Imm(asm.R6, 0, "done"))
	ins = append(ins, readTask(asm.R8, task.blocked, 8)...)
	for _, sig := range trapSignals {
		skip := "blocks_" + strconv.Itoa(int(sig))
		ins = append(ins,
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.RSh.Imm(asm.R1, int32(sig)-1),
			asm.And.Imm(asm.R1, 1),
			asm.JNE.Imm(asm.R1, 0, skip),
			asm.Mov.Imm(asm.R1, int32(sig)),
			asm.FnSendSignalThread.Call(),
			asm.JEq.Imm(asm.R0, 0, "sent"),
			asm.Mov.Reg(asm.R0, asm.R0).WithSymbol(skip),
		)
	}
	if ring != nil {
		ins = append(ins, waitInstructions(count, ring, task)...)
	} else {
		ins = append(ins, trapSlot(count, trapUnheld)...)
		ins = append(ins, asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.Ja.Label("done"))
	}
	sent := trapSlot(count, trapHeld)
	sent[0] = sent[0].WithSymbol("sent")
	ins = append(ins, sent...)
	ins = append(ins,
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("done"),
		asm.Return(),
	)
	spec := &ebpf.ProgramSpec{Name: "swbpf_libtrap", Type: ebpf.Kprobe, License: "Dual BSD/GPL"}
	if ring != nil {
		spec.Flags = unix.BPF_F_SLEEPABLE
		ins = append(ins, waitFunction(task, site)...)
	}
	spec.Instructions = ins
	return spec
}

const uprobePMU = "/sys/bus/event_source/devices/uprobe/type"

// openUprobe opens a perf event on the trap's site, for one process: the
// kernel sets the probe in the memory of that one only.
func openUprobe(pid int, owner ThreadID, site trapSite) (int, error) {
	b, err := os.ReadFile(uprobePMU)
	if err != nil {
		return -1, err
	}
	typ, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", uprobePMU, err)
	}
	m := site.mapping
	paths := []string{
		fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Start, m.End),
		fmt.Sprintf("/proc/%d/root%s", pid, m.Path),
	}
	for _, path := range paths {
		var fd int
		if fd, err = perfUprobe(uint32(typ), path, site.off, owner); err == nil {
			return fd, nil
		}
	}
	return -1, fmt.Errorf("uprobe on %s at offset %#x: %w", m.Path, site.off, err)
}

func perfUprobe(typ uint32, path string, off uint64, owner ThreadID) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := unix.PerfEventAttr{
		Type: typ,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Ext1: uint64(uintptr(unsafe.Pointer(name))), // uprobe_path
		Ext2: off,                                   // probe_offset
	}
	fd, err := unix.PerfEventOpen(&attr, int(owner), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(name)
	return fd, err
}
