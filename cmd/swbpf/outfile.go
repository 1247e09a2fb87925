package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outFile is a file in the making. It has no name until it is complete, so that
// an old file is only replaced by a whole new one, and nothing is left behind
// whatever ends the program. Devices and pipes are written to as they are.
type outFile struct {
	path  string      // without symbolic links
	was   fs.FileInfo // the file that was there, nil when none was
	file  *os.File    // nil until it is written: where files cannot be without a name, or nobody reads a pipe
	named bool        // file has a temporary name
	plain bool        // no device

	awaits *atomic.Bool // set while it waits for one who reads the pipe; may be nil
}

func errIsDir(path string) error { return fmt.Errorf("output %s is a directory", path) }

// newOutFile makes sure that path can be written, and says so if not.
func newOutFile(path string) (*outFile, error) {
	o := &outFile{path: path, plain: true}
	st, err := os.Stat(path)
	if err == nil {
		o.was = st
	}
	switch {
	case err == nil && st.IsDir():
		return nil, errIsDir(path)
	case err == nil && !st.Mode().IsRegular():
		o.plain = false
		o.file, err = openDevice(path, st.Mode())
	case err == nil:
		err = unix.Access(path, unix.W_OK)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err == nil && o.plain {
		if o.path, err = resolveLinks(path); err == nil {
			err = o.create()
		}
	}
	if err == nil && o.plain {
		err = o.checkRoom()
	}
	if err != nil {
		o.discard()
		return nil, fmt.Errorf("output %s cannot be written: %w", path, err)
	}
	return o, nil
}

// openDevice opens what is no regular file. It is nil for a pipe that nobody reads
// yet: a wait for that should come when there is something to write.
func openDevice(path string, mode fs.FileMode) (*os.File, error) {
	if mode&fs.ModeNamedPipe == 0 {
		return os.OpenFile(path, os.O_WRONLY, 0)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil, nil
	}
	return file, err
}

// readerWait is for how long a reader of a pipe is waited for in silence.
const readerWait = time.Second

// openPipe opens a pipe that nobody read, when somebody does.
func (o *outFile) openPipe() (*os.File, error) {
	if o.awaits != nil {
		defer o.awaits.Store(o.awaits.Swap(true))
	}
	tell := time.AfterFunc(readerWait, func() {
		fmt.Fprintf(os.Stderr, "waiting for a program to read %s; Ctrl-C waits no longer, and nothing is written there\n", printable(o.path))
	})
	defer tell.Stop()
	return os.OpenFile(o.path, os.O_WRONLY, 0)
}

// is reports whether two outputs are one file, by whatever names, also where that is not
// there yet.
func (o *outFile) is(other *outFile) bool {
	if o.was != nil || other.was != nil {
		return o.was != nil && other.was != nil && os.SameFile(o.was, other.was)
	}
	dir, err := os.Stat(filepath.Dir(o.path))
	otherDir, otherErr := os.Stat(filepath.Dir(other.path))
	return err == nil && otherErr == nil && os.SameFile(dir, otherDir) && filepath.Base(o.path) == filepath.Base(other.path)
}

// maxLinks is how many symbolic links the kernel follows.
const maxLinks = 40

// resolveLinks follows symbolic links, also to a file that is not there yet.
func resolveLinks(path string) (string, error) {
	for range maxLinks {
		target, err := os.Readlink(path)
		if err != nil {
			return path, nil // no link; whatever else is wrong shows later
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return "", &fs.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}

// create makes a file without name in the directory. Where the file system has
// no such files it only tries whether it could make one.
func (o *outFile) create() error {
	dir := filepath.Dir(o.path)
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		o.file = os.NewFile(uintptr(fd), o.path)
		return nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return &fs.PathError{Op: makeFile, Path: dir, Err: err}
	}
	if err := o.createNamed(); err != nil {
		return err
	}
	o.discard()
	return nil
}

// leastRoom is what a file system must have left, in bytes: of less, no profile
// can be made.
const leastRoom = 64 << 10

// checkRoom reports a file system that is full.
func (o *outFile) checkRoom() error {
	if o.file != nil {
		err := unix.Fallocate(int(o.file.Fd()), 0, 0, leastRoom)
		if err == nil {
			return o.file.Truncate(0)
		}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	// It cannot be tried, but some tell.
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(o.path), &st); err == nil && st.Blocks > 0 && st.Bfree == 0 {
		return unix.ENOSPC
	}
	return nil
}

// tempName begins a temporary name. It is short: that of the output may be as
// long as names can be.
const tempName = ".swbpf-"

// makeFile is what is refused where no files can be made.
const makeFile = "make a file in"

func (o *outFile) createNamed() (err error) {
	dir := filepath.Dir(o.path)
	o.file, err = os.CreateTemp(dir, tempName+"*")
	o.named = err == nil
	var path *fs.PathError
	if errors.As(err, &path) { // that has the temporary name
		path.Op, path.Path = makeFile, dir
	}
	return err
}

// Write implements io.Writer.
func (o *outFile) Write(b []byte) (int, error) {
	var err error
	switch {
	case o.file != nil:
	case o.plain:
		err = o.createNamed()
	default:
		o.file, err = o.openPipe()
	}
	if err != nil {
		return 0, err
	}
	return o.file.Write(b)
}

// commit gives the file its name.
func (o *outFile) commit() error {
	if _, err := o.Write(nil); err != nil { // it may be empty
		return err
	}
	if !o.plain {
		return o.close()
	}
	if err := o.file.Chmod(o.mode()); err != nil {
		return err
	}
	if !o.named {
		if err := o.link(); err == nil {
			return o.close()
		}
		if err := o.copy(); err != nil {
			return err
		}
	}
	if err := os.Rename(o.file.Name(), o.path); err != nil {
		return err
	}
	o.named = false
	return o.close()
}

// mode is what the file permits: what the one that it replaces did, if that is of the same
// user, as one that is kept from others stays so.
func (o *outFile) mode() fs.FileMode {
	if o.was != nil {
		if st, ok := o.was.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Geteuid() {
			return o.was.Mode().Perm()
		}
	}
	return 0o644 &^ umask()
}

// link gives a file without name its own. Where that is taken it gives it a
// temporary one, under which it then replaces the other.
func (o *outFile) link() error {
	from := fmt.Sprintf("/proc/self/fd/%d", o.file.Fd())
	name := o.path
	err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	for try := 0; errors.Is(err, unix.EEXIST) && try < 100; try++ {
		name = filepath.Join(filepath.Dir(o.path), fmt.Sprintf("%s%08x", tempName, rand.Uint32()))
		err = unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil || name == o.path {
		return err
	}
	if err := os.Rename(name, o.path); err != nil {
		os.Remove(name)
		return err
	}
	return nil
}

// copy makes a named file of one without name, where that cannot be given one: by
// a security policy, or without /proc.
func (o *outFile) copy() error {
	from := o.file
	defer from.Close()
	o.file = nil
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := o.createNamed(); err != nil {
		return err
	}
	if _, err := io.Copy(o.file, from); err != nil {
		return err
	}
	return o.file.Chmod(o.mode())
}

func (o *outFile) close() error {
	f := o.file
	o.file = nil
	return f.Close()
}

// discard forgets what was not committed.
func (o *outFile) discard() {
	if o.file == nil {
		return
	}
	if o.named {
		os.Remove(o.file.Name())
		o.named = false
	}
	o.close()
}
