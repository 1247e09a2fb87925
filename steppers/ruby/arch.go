package ruby

import (
	"debug/elf"

	"github.com/swbpf/swbpf/procstate"
)

// arch is what of the interpreter and of the C libraries is not the same on all architectures.
type arch struct {
	*procstate.Arch

	// frame is where the interpreter's function has its control frame (vm_exec.c), and compiled where
	// code of YJIT has; NoReg: that code is not known.
	frame, compiled procstate.Reg
	// entry is how many bytes of the interpreter's function may be executed before it has it there.
	entry uint64

	// relocation is the type of those by which the loader tells a file where its thread-local storage
	// is: in a word the number of the storage, or a descriptor of two words (isDescribed).
	relocation  uint32
	isDescribed bool
	// block is what is between the thread pointer and the storage of a program behind it, in bytes; 0:
	// that is before it.
	block uint64
	// vectors are where, from the thread pointer, C libraries with so many words for each file have the
	// address of all storage of a thread: glibc two, musl one.
	vectors [3]uint64
	// lock is the bytes of a pthread_mutex_t.
	lock uint64
	// handle is how far a pthread_t is below the thread pointer, at most.
	handle uint64
}

// architectures are those on which the interpreter is known.
var architectures = []*arch{
	{
		Arch: procstate.AMD64, frame: 15, compiled: 13, entry: 96, // 49 to 60 are
		relocation: uint32(elf.R_X86_64_DTPMOD64), vectors: [...]uint64{1: 8, 2: 8}, lock: 40,
	}, {
		Arch: procstate.ARM64, frame: 20, compiled: procstate.NoReg, entry: 128, // 64 to 84 are
		relocation: uint32(elf.R_AARCH64_TLSDESC), isDescribed: true, block: 16, vectors: [...]uint64{1: 1<<64 - 8, 2: 0},
		lock: 48, handle: 4 << 10, // a struct pthread, which is before it
	},
}

// archOf returns what is known of an architecture, nil where the interpreter is not known on it.
func archOf(a *procstate.Arch) *arch {
	for _, is := range architectures {
		if is.Arch == a {
			return is
		}
	}
	return nil
}
