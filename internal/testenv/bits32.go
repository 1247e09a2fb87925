package testenv

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// exit32 is a whole ELF file for i386: a header, one segment that has all of it, and
// exit(0).
var exit32 = func() []byte {
	const base, headers = 0x8048000, 52 + 32
	code := []byte{
		0x31, 0xdb, // xor %ebx,%ebx
		0xb8, 1, 0, 0, 0, // mov $1,%eax
		0xcd, 0x80, // int $0x80
	}
	b := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	for _, v := range []uint16{2 /* ET_EXEC */, 3 /* EM_386 */} {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	for _, v := range []uint32{1, base + headers, 52, 0, 0} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range []uint16{52, 32, 1, 0, 0, 0} {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	size := uint32(headers + len(code))
	for _, v := range []uint32{1 /* PT_LOAD */, 0, base, base, size, size, 5, 0x1000} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, code...)
}()

// Runs32Bit reports whether the kernel runs programs of 32 bits: some x86-64 kernels,
// and hypervisors for any, do not, whatever is installed.
func Runs32Bit(t testing.TB) bool {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exit32")
	if err := os.WriteFile(path, exit32, 0o755); err != nil {
		t.Fatal(err)
	}
	err := exec.Command(path).Run()
	if err != nil && !errors.Is(err, syscall.ENOEXEC) {
		t.Fatalf("a program of 32 bits: %v", err)
	}
	if err != nil {
		t.Log("this kernel runs no programs of 32 bits: they are left out")
	}
	return err == nil
}

// Needs32Bit ends a test where the kernel runs no programs of 32 bits. It is not among
// what SWBPF_REQUIRE_KERNEL declares: nothing could be installed for it.
func Needs32Bit(t testing.TB) {
	t.Helper()
	if !Runs32Bit(t) {
		t.Skip("this kernel runs no programs of 32 bits")
	}
}
