package procstate

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const archGetFS = 0x1003 // ARCH_GET_FS, asm/prctl.h

// threadPointer returns the base of the running thread's local storage, where
// C and Go keep what belongs to the thread; 0 when it is not known.
func threadPointer() (fs uint64) {
	if _, _, e := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archGetFS, uintptr(unsafe.Pointer(&fs)), 0); e != 0 {
		return 0
	}
	return fs
}
