package procstate

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxRoots bounds the roots that are held.
const maxRoots = 64

// rootKey tells roots apart.
type rootKey struct{ mount, inode uint64 }

// imageRoots are the roots of file systems that processes see in place of
// ours: they hold a descriptor each, as the processes may be gone when
// something beside a file is wanted.
type imageRoots map[rootKey]int

// of returns the path of the root that a thread sees, "" where that is ours, or where there is nothing any more: programs
// that shut themselves in, as Firefox does, have a directory in /proc for it of a process that has ended.
func (r imageRoots) of(pid, tid int32) string {
	if pid <= 0 {
		return ""
	}
	path := fmt.Sprintf("/proc/%d/root", pid)
	if tid > 0 {
		path = fmt.Sprintf("/proc/%d/task/%d/root", pid, tid)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	key, ok := rootIdentity(fd)
	own, ownOK := rootIdentity(unix.AT_FDCWD)
	if held, known := r[key]; ok && known {
		unix.Close(fd)
		return rootPath(held)
	}
	if !ok || !ownOK || key == own || len(r) >= maxRoots || isDeadRoot(fd) {
		unix.Close(fd)
		return ""
	}
	r[key] = fd
	return rootPath(fd)
}

// isDeadRoot reports whether a directory is one in /proc of a process that is no more.
func isDeadRoot(fd int) bool {
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(dir)
	}
	return err == unix.ESRCH
}

// rootPath is the path of a descriptor, which stays valid as long as it.
func rootPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// rootIdentity tells which directory of which mount a descriptor is of; for
// AT_FDCWD that of our own root. ok is false before Linux 5.8.
func rootIdentity(fd int) (key rootKey, ok bool) {
	path, flags := "", unix.AT_EMPTY_PATH
	if fd == unix.AT_FDCWD {
		path, flags = "/", 0
	}
	var st unix.Statx_t
	err := unix.Statx(fd, path, flags, unix.STATX_INO|unix.STATX_MNT_ID, &st)
	return rootKey{st.Mnt_id, st.Ino}, err == nil && st.Mask&unix.STATX_MNT_ID != 0
}

// keepOnly closes the roots that wanted does not tell of.
func (r imageRoots) keepOnly(wanted map[string]bool) {
	for key, fd := range r {
		if !wanted[rootPath(fd)] {
			unix.Close(fd)
			delete(r, key)
		}
	}
}
