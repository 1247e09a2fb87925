package procstate

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// maxCoreWindow is the most memory that a compressed core may ask for to be read: what
// zstd itself takes without being told to take more.
const maxCoreWindow = 128 << 20

// packedCores are the formats of compressed cores by what they begin with. Those that are
// not unpacked here have the command that does it.
var packedCores = []struct {
	magic, name, command string
	open                 func(io.Reader) (io.ReadCloser, error)
}{
	{magic: "\x28\xb5\x2f\xfd", name: "zstd", open: func(r io.Reader) (io.ReadCloser, error) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxCoreWindow))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}},
	{magic: "\x1f\x8b", name: "gzip", open: func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
	{magic: "\x04\x22\x4d\x18", name: "lz4", command: "lz4 -d"},
	{magic: "\xfd7zXZ\x00", name: "xz", command: "xz -dk"},
	{magic: "BZh", name: "bzip2", command: "bzip2 -dk"},
}

// unpackCore returns the file that a core is to be read from: f, or one without a name that has
// what f holds compressed, as systemd-coredump writes them. What is damaged or cut short is unpacked as
// far as it goes. f is closed unless it is what is returned.
func unpackCore(f *os.File) (*os.File, error) {
	head := make([]byte, 8)
	n, _ := f.ReadAt(head, 0)
	for _, p := range packedCores {
		if bytes.HasPrefix(head[:n], []byte(p.magic)) {
			defer f.Close()
			if p.open == nil {
				return nil, fmt.Errorf("%w, but compressed by %s: unpack it with %s", ErrNotCore, p.name, p.command)
			}
			r, err := p.open(io.NewSectionReader(f, 0, maxCoreBytes))
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrNotCore, p.name, err)
			}
			defer r.Close()
			whole, err := unpacked(r)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.name, err)
			}
			return whole, nil
		}
	}
	return f, nil
}

// unpacked returns a file without a name that has what r gives before it ends or fails, if that is anything.
func unpacked(r io.Reader) (*os.File, error) {
	f, err := unnamedFile()
	if err != nil {
		return nil, fmt.Errorf("no room to unpack it: %w", err)
	}
	w := sparseWriter{file: f}
	_, err = io.Copy(&w, io.LimitReader(r, maxCoreBytes))
	if w.err == nil {
		w.err = f.Truncate(w.size)
	}
	switch {
	case w.err != nil:
		err = fmt.Errorf("no room to unpack it: %w", w.err)
	case w.size == 0 && err != nil:
		err = fmt.Errorf("%w: %w", ErrNotCore, err)
	default:
		return f, nil
	}
	f.Close()
	return nil, err
}

// unnamedFile makes a file that is gone when it is closed: in $TMPDIR, or where large files may be.
func unnamedFile() (*os.File, error) {
	dir := os.Getenv("TMPDIR")
	if dir == "" {
		dir = "/var/tmp"
	}
	if fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
		return os.NewFile(uintptr(fd), dir), nil
	}
	f, err := os.CreateTemp(os.Getenv("TMPDIR"), "core")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// sparseWriter writes to a file, and leaves out what is zero: the file has to be set to the size.
type sparseWriter struct {
	file *os.File
	size int64
	err  error
}

// Write implements io.Writer.
func (w *sparseWriter) Write(b []byte) (int, error) {
	const page = 4096
	var zero [page]byte
	for at := 0; at < len(b) && w.err == nil; at += page {
		if part := b[at:min(at+page, len(b))]; !bytes.Equal(part, zero[:len(part)]) {
			_, w.err = w.file.WriteAt(part, w.size+int64(at))
		}
	}
	w.size += int64(len(b))
	return len(b), w.err
}
