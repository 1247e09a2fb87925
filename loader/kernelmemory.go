package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// kernelMemory reads the memory of the running kernel, and finds and names its symbols.
type kernelMemory struct {
	objs    gen.KernelMemoryObjects
	mem     []byte                        // the map
	request *gen.KernelMemoryKernelMemory // in it
}

// openKernelMemory loads the programs that read. It needs Linux 5.16.
func openKernelMemory() (*kernelMemory, error) {
	m := &kernelMemory{}
	if err := gen.LoadKernelMemoryObjects(&m.objs, nil); err != nil {
		return nil, fmt.Errorf("the kernel's memory: %w", err)
	}
	var err error
	size := int(unsafe.Sizeof(*m.request))
	if m.mem, err = unix.Mmap(m.objs.Memory.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("the kernel's memory: %w", err), m.objs.Close())
	}
	m.request = (*gen.KernelMemoryKernelMemory)(unsafe.Pointer(unsafe.SliceData(m.mem)))
	return m, nil
}

func (m *kernelMemory) close() error { return errors.Join(unix.Munmap(m.mem), m.objs.Close()) }

var errNoAnswer = errors.New("not there")

// call runs a program once. The library's own way to do so blocks and unblocks signals
// with two system calls more, and allocates.
func (m *kernelMemory) call(prog *ebpf.Program) error {
	attr := struct { // union bpf_attr of BPF_PROG_TEST_RUN, as far as it has a member
		fd, status uint32
		_          [72]byte // data, context, and how often
	}{fd: uint32(prog.FD())}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch {
	case errno != 0:
		return errno
	case attr.status != 0:
		return errNoAnswer
	}
	return nil
}

// read returns n bytes at an address, less than half a page; they are valid until the
// next call.
func (m *kernelMemory) read(addr uint64, n int) ([]byte, error) {
	b, _, err := m.readBoth(addr, n, 0, 0)
	return b, err
}

// readBoth is read for two addresses at once.
func (m *kernelMemory) readBoth(addr1 uint64, n1 int, addr2 uint64, n2 int) (b1, b2 []byte, err error) {
	p1, p2 := &m.request.First, &m.request.Second
	p1.Addr, p1.Size, p2.Addr, p2.Size = addr1, uint64(n1), addr2, uint64(n2)
	if err := m.call(m.objs.ReadKernel); err != nil {
		return nil, nil, fmt.Errorf("%d bytes of the kernel at %#x, and %d at %#x: %w", n1, addr1, n2, addr2, err)
	}
	return p1.Bytes[:n1], p2.Bytes[:n2], nil
}

// read32 returns the number of 32 bits at an address.
func (m *kernelMemory) read32(addr uint64) (uint32, error) {
	b, err := m.read(addr, 4)
	if err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(b), nil
}

// symbol returns the address of a symbol of the kernel or a module.
func (m *kernelMemory) symbol(name string) (uint64, error) {
	p := &m.request.First
	clear(p.Bytes[:])
	copy(p.Bytes[:len(p.Bytes)-1], name)
	if err := m.call(m.objs.FindSymbol); err != nil {
		return 0, fmt.Errorf("the kernel's symbol %s: %w", name, err)
	}
	return p.Addr, nil
}

// pageTable returns the address of this process's topmost page table.
func (m *kernelMemory) pageTable() (uint64, error) {
	if err := m.call(m.objs.FindPageTable); err != nil {
		return 0, fmt.Errorf("this process's page table: %w", err)
	}
	return m.request.First.Addr, nil
}

// describe returns the kernel's description of the code at an address, for
// parseDescription; it is valid until the next call.
func (m *kernelMemory) describe(addr uint64) ([]byte, error) {
	p := &m.request.First
	p.Addr = addr
	if err := m.call(m.objs.NameCode); err != nil {
		return nil, fmt.Errorf("the kernel's symbol at %#x: %w", addr, err)
	}
	b, _, _ := bytes.Cut(p.Bytes[:], []byte{0})
	return b, nil
}
