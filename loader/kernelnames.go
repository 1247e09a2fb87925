package loader

import (
	"bytes"
	"strconv"
)

// KernelNames names code of the running kernel, of its modules and BPF programs, by
// asking the kernel for one address after the other. To read all of /proc/kallsyms
// takes as long as some 20,000 of them. It belongs to one goroutine at a time.
type KernelNames struct {
	mem *kernelMemory
}

// OpenKernelNames needs Linux 5.16, and the privileges that a Session needs.
func OpenKernelNames() (*KernelNames, error) {
	mem, err := openKernelMemory()
	if err != nil {
		return nil, err
	}
	return &KernelNames{mem}, nil
}

// Lookup returns the name of the function at an address and where in it that is; ok is
// false where the kernel knows of none. It does not tell of code that its tracer makes,
// which /proc/kallsyms lists.
func (k *KernelNames) Lookup(addr uint64) (name string, offset uint64, ok bool) {
	if k.mem == nil {
		return "", 0, false
	}
	b, err := k.mem.describe(addr)
	if err != nil {
		return "", 0, false
	}
	return parseDescription(b)
}

// parseDescription takes apart "name+0xoffset/0xsize", which " [module]" may follow. What
// has no name is a number alone.
func parseDescription(b []byte) (name string, offset uint64, ok bool) {
	at := bytes.LastIndex(b, []byte("+0x"))
	if at <= 0 {
		return "", 0, false
	}
	hex, _, ok := bytes.Cut(b[at+len("+0x"):], []byte("/"))
	offset, err := strconv.ParseUint(string(hex), 16, 64)
	if !ok || err != nil {
		return "", 0, false
	}
	return string(b[:at]), offset, true
}

// Close gives back what it needs. Nothing is known then.
func (k *KernelNames) Close() error {
	if k.mem == nil {
		return nil
	}
	mem := k.mem
	k.mem = nil
	return mem.close()
}
