package symbols

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/swbpf/swbpf/procstate"
)

// DefaultDebugDir is where distributions put separate debug files.
const DefaultDebugDir = "/usr/lib/debug"

var errNotSameFile = errors.New("not the debug file of this program")

// openedImage is an Image with the file behind it.
type openedImage struct {
	*procstate.Image
	f *os.File
}

// openImage opens an ELF file for its sections. Anything but a regular file is
// refused: a name in another process's file system may be a pipe.
func openImage(path string) (*openedImage, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err == nil {
		var im *procstate.Image
		if im, err = procstate.NewImage(f, st.Size(), path); err == nil && len(im.Sections()) > 0 {
			return &openedImage{im, f}, nil
		}
		if err == nil {
			err = fmt.Errorf("%s: no sections can be read", path)
		}
	}
	f.Close()
	return nil, err
}

// debugFile finds the separate debug file of im: by build ID in the debug
// directories, then by .gnu_debuglink beside the file, in its .debug
// directory, and under the debug directories. It returns nil when there is
// none; err tells of one that was refused.
func debugFile(im *procstate.Image, dirs []string) (found *openedImage, err error) {
	root, path := placeOf(im)
	all := dirs
	if root != "" {
		for _, d := range dirs {
			all = append(all[:len(all):len(all)], root+d)
		}
	}
	try := func(path string, check func(*openedImage) error) *openedImage {
		f, e := openImage(path)
		if e == nil {
			if e = check(f); e == nil {
				return f
			}
			f.f.Close()
			e = fmt.Errorf("%s: %w", path, e)
		}
		if !errors.Is(e, os.ErrNotExist) {
			err = e
		}
		return nil
	}
	if id := im.BuildID(); len(id) > 4 {
		for _, d := range all {
			f := try(filepath.Join(d, ".build-id", id[:2], id[2:]+".debug"), func(f *openedImage) error {
				if f.ID.BuildID != im.ID.BuildID {
					return errNotSameFile
				}
				return nil
			})
			if f != nil {
				return f, nil
			}
		}
	}
	name, crc, ok := debugLink(im)
	if !ok {
		return nil, err
	}
	dir := filepath.Dir(path)
	paths := []string{filepath.Join(dir, name), filepath.Join(dir, ".debug", name)}
	for _, d := range all {
		paths = append(paths, filepath.Join(d, strings.TrimPrefix(dir, root), name))
	}
	for _, path := range paths {
		if f := try(path, func(f *openedImage) error { return checkDebugLink(im, f, crc) }); f != nil {
			return f, nil
		}
	}
	return nil, err
}

// placeOf returns the root of the file system that a file lies in, "" for
// ours, and the path that leads us to the file.
func placeOf(im *procstate.Image) (root, path string) {
	if im.Root != "" {
		return im.Root, im.Root + im.Path
	}
	return rootOf(im.Path), im.Path
}

// rootOf returns the part of a path that leads into another process's file
// system, "/proc/PID/root" or "/proc/self/fd/N", or "".
func rootOf(path string) string {
	part := strings.SplitN(path, "/", 6) // "", "proc", PID, "root"
	if len(part) < 5 || part[0] != "" || part[1] != "proc" {
		return ""
	}
	switch {
	case part[3] == "root":
		return strings.Join(part[:4], "/")
	case part[2] == "self" && part[3] == "fd" && len(part) == 6:
		return strings.Join(part[:5], "/")
	}
	return ""
}

// debugLink reads .gnu_debuglink: a file name, padding, and the CRC-32 of the
// file.
func debugLink(im *procstate.Image) (name string, crc uint32, ok bool) {
	s, found := im.Section(".gnu_debuglink")
	if !found {
		return "", 0, false
	}
	b, err := im.SectionBytes(s, 1<<12)
	if err != nil {
		return "", 0, false
	}
	i := bytes.IndexByte(b, 0)
	if i <= 0 || (i+4)&^3+4 > len(b) || bytes.IndexByte(b[:i], '/') >= 0 || string(b[:i]) == ".." {
		return "", 0, false
	}
	return string(b[:i]), binary.LittleEndian.Uint32(b[(i+4)&^3:]), true
}

// maxSummed bounds a file without a build ID, in bytes, which has to be read through.
const maxSummed = 4 << 30

// checkDebugLink makes sure that f belongs to im: by build ID where both have
// one, else by the CRC of the whole file.
func checkDebugLink(im *procstate.Image, f *openedImage, crc uint32) error {
	if im.ID.BuildID != "" && f.ID.BuildID != "" {
		if im.ID.BuildID != f.ID.BuildID {
			return errNotSameFile
		}
		return nil
	}
	if f.Size() > maxSummed {
		return fmt.Errorf("%d bytes: %w", f.Size(), errNotSameFile)
	}
	h := crc32.NewIEEE()
	if _, err := io.Copy(h, io.NewSectionReader(f.f, 0, f.Size())); err != nil {
		return err
	}
	if h.Sum32() != crc {
		return fmt.Errorf("checksum %#x is not %#x: %w", h.Sum32(), crc, errNotSameFile)
	}
	return nil
}

// miniDebugInfo returns the ELF file in .gnu_debugdata, or nil when there is
// none.
func miniDebugInfo(im *procstate.Image) (*procstate.Image, error) {
	s, ok := im.Section(".gnu_debugdata")
	if !ok {
		return nil, nil
	}
	b, err := im.SectionBytes(s, maxXZSize)
	if err != nil {
		return nil, err
	}
	if b, err = unxz(b); err != nil {
		return nil, fmt.Errorf("%s: .gnu_debugdata: %w", im.Path, err)
	}
	mini, err := procstate.NewImageBytes(b, im.Path+"(.gnu_debugdata)")
	if err != nil {
		return nil, err
	}
	return mini, nil
}
