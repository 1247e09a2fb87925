package oracle

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The register block NT_PRSTATUS of x86-64, struct user_regs_struct.
const (
	ntPrstatus    = 1
	regsetOrigRAX = 15 // word that holds the number of a system call
	regsetRIP     = 16 // word that holds RIP
)

// regset reads or writes the register block of the stopped thread.
func (t *tracee) regset(request int, buf []byte) (int, error) {
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	err := t.ptrace(request, ntPrstatus, uintptr(unsafe.Pointer(&iov)))
	return int(iov.Len), err
}

// setPC makes the stopped thread go on at addr.
func (t *tracee) setPC(addr uint64) error {
	n, err := t.regset(unix.PTRACE_GETREGSET, t.regbuf[:])
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(t.regbuf[regsetRIP*8:], addr)
	_, err = t.regset(unix.PTRACE_SETREGSET, t.regbuf[:n])
	return err
}
