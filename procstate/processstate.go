package procstate

import "errors"

// ThreadID is a kernel thread ID (tid) in the PID namespace of the reader.
type ThreadID int32

// DefaultThread asks for the default thread of a process: the initial thread
// of another process, the calling thread of this one.
const DefaultThread ThreadID = 0

// Errors that a caller can act on. They are wrapped with context; compare
// with errors.Is.
var (
	ErrNoThread     = errors.New("no such thread")
	ErrTerminated   = errors.New("process has terminated")
	ErrUnreadable   = errors.New("memory is not readable")
	ErrNotSupported = errors.New("not supported by this process state")
)

// Memory reads the memory of a process.
type Memory interface {
	// ReadMemory fills buf with the bytes at addr. It returns the number of
	// bytes read from the start of buf, 0 to len(buf), and an error that wraps
	// ErrUnreadable exactly when that is less than len(buf). buf is not kept.
	ReadMemory(addr uint64, buf []byte) (int, error)

	// ReadWord returns the little-endian 64-bit word at addr (the 32-bit
	// word, zero-extended, where pointers have four bytes) and whether all of
	// it could be read. It is the hot path of every stepper: it must not
	// allocate.
	ReadWord(addr uint64) (uint64, bool)
}

// ReadPart reads what there is of memory at addr, up to len(buf) bytes, and returns how
// many were read to the start of buf. A number that ReadMemory cannot return counts as none.
func ReadPart(m Memory, addr uint64, buf []byte) int {
	n, _ := m.ReadMemory(addr, buf)
	if uint(n) > uint(len(buf)) {
		return 0
	}
	return n
}

// ProcessState is the access to a process whose stacks are walked. A caller
// may bring an implementation of its own; see the package comment for those
// that exist. Methods are called by one goroutine at a time. The memory of a
// process is not trusted, and neither are the answers of an implementation: one
// that breaks what is said here has stacks that are wrong or end early, but no
// walk panics or lasts for ever because of it, as long as each method returns.
// What is given out, such as a Mapping, is not changed afterwards. What not all of
// them know is said by further interfaces: [CapturedMemory], [FloatState],
// [LibraryNotifier], [LiveMemory] and [ProbedState]. One whose threads are in a
// call when their registers are read, so that the PC is a return address, says
// so by a method InCall() bool. One that is made of another embeds its type, as *ProcDebug, and has
// these with it; of a ProcessState that is embedded it has to pass them on. What a method panics with
// comes out of the walk, after AfterWalk.
type ProcessState interface {
	Memory

	// Arch is the architecture of the process; it never changes.
	Arch() *Arch

	// PID is the process ID (tgid) as the reader sees it.
	PID() int

	// ExecutablePath is the path of the program, "" when not known.
	ExecutablePath() string

	// Threads returns the threads that can be walked, the default one first.
	Threads() ([]ThreadID, error)

	// Registers stores the registers of a thread (DefaultThread allowed)
	// into regs.
	Registers(tid ThreadID, regs *Regs) error

	// Libraries describes the loaded code; it is nil where nothing is known of
	// that.
	Libraries() LibraryState

	// BeforeWalk and AfterWalk bracket each walk of a thread, so that an
	// implementation can stop it and set it going again. AfterWalk is called
	// exactly when BeforeWalk returned nil.
	BeforeWalk(tid ThreadID) error
	AfterWalk(tid ThreadID) error
}

// Library is one shared object or program loaded in a process.
type Library struct {
	Path  string // as the process sees it; "[vdso]" for the vdso
	Bias  uint64 // run-time address minus link-time address
	Image *Image // its file; nil when it could not be opened
}

// LibrariesOf returns the libraries of a process, none where nothing is known of them.
func LibrariesOf(libs LibraryState) []Library {
	if libs == nil {
		return nil
	}
	return libs.Libraries()
}

// LibraryState tells which code is loaded where.
type LibraryState interface {
	// MappingAt returns the executable mapping that holds addr, or nil. The
	// Mapping is immutable and stays valid after later changes. One that does not
	// hold addr, or ends before it starts, counts as nil.
	MappingAt(addr uint64) *Mapping

	// Libraries returns the loaded libraries, in order of address, each once. The
	// list is not changed by either side.
	Libraries() []Library

	// Update brings the list up to date after the process has changed it.
	Update() error

	// TrapAddress is the address that the process executes whenever its list
	// of libraries changes; 0 when there is none.
	TrapAddress() uint64
}
