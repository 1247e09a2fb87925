package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// kernelMemory reads the memory of the running kernel, and finds its symbols.
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

func (m *kernelMemory) call(prog *ebpf.Program) error {
	status, err := prog.Run(&ebpf.RunOptions{})
	if err == nil && status != 0 {
		err = errNoAnswer
	}
	return err
}

// read returns n bytes at an address, less than a page; they are valid until the
// next call.
func (m *kernelMemory) read(addr uint64, n int) ([]byte, error) {
	m.request.Addr, m.request.Size = addr, uint64(n)
	if err := m.call(m.objs.ReadKernel); err != nil {
		return nil, fmt.Errorf("%d bytes of the kernel at %#x: %w", n, addr, err)
	}
	return m.request.Bytes[:n], nil
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
	clear(m.request.Bytes[:])
	copy(m.request.Bytes[:len(m.request.Bytes)-1], name)
	if err := m.call(m.objs.FindSymbol); err != nil {
		return 0, fmt.Errorf("the kernel's symbol %s: %w", name, err)
	}
	return m.request.Addr, nil
}
