package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroups finds the paths of cgroups by their IDs in the unified hierarchy. It
// belongs to one goroutine.
type Cgroups struct {
	root   int // descriptor of the hierarchy's root, -1 without
	prefix string
	paths  map[uint64]string // asked for since Forget; nil when it is not open
	before map[uint64]string // asked for before
}

// OpenCgroups looks for the unified hierarchy: where it is mounted, else by
// itself.
func OpenCgroups() (*Cgroups, error) {
	c := &Cgroups{root: -1, paths: map[uint64]string{}}
	var err error
	if at := cgroupMount(); at != "" {
		c.root, err = unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	} else {
		c.root, err = mountDetached("cgroup2")
	}
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	if c.prefix, err = pathOf(c.root); err != nil {
		c.Close()
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	return c, nil
}

// Close gives the hierarchy back. No cgroup has a path from then on.
func (c *Cgroups) Close() error {
	if c.paths == nil {
		return nil
	}
	c.paths = nil
	return unix.Close(c.root)
}

// cgroupMount returns where the unified hierarchy is mounted, "" when it is not.
func cgroupMount() string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) >= 5 && strings.HasPrefix(after, "cgroup2 ") {
			return unescapeMount(fields[4])
		}
	}
	return ""
}

// unescapeMount undoes what the kernel does to blanks in mountinfo.
var unescapeMount = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace

// fileIDKernfs is FILEID_KERNFS (include/linux/exportfs.h): a handle of the
// 64-bit ID.
const fileIDKernfs = 0xfe

// Path returns the path of a cgroup below the root, "/" for that, and "" for
// one that is gone or cannot be looked up.
func (c *Cgroups) Path(id uint64) string {
	path, ok := c.paths[id]
	if !ok && c.paths != nil {
		if path, ok = c.before[id]; !ok {
			path, _ = c.find(id)
		}
		c.paths[id] = path
	}
	return path
}

// Forget forgets the paths that have not been asked for since the call before: cgroups
// come and go, and their IDs do not come again.
func (c *Cgroups) Forget() {
	if c.paths != nil {
		c.before, c.paths = c.paths, map[uint64]string{}
	}
}

// find is Path for a cgroup that was not asked for before.
func (c *Cgroups) find(id uint64) (string, error) {
	handle := unix.NewFileHandle(fileIDKernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(c.root, handle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("cgroup %d: %w", id, err)
	}
	defer unix.Close(fd)
	path, err := pathOf(fd)
	if err != nil {
		return "", fmt.Errorf("cgroup %d: %w", id, err)
	}
	path = strings.TrimPrefix(path, "(unreachable)") // above the root of our cgroup namespace
	if c.prefix != "/" {
		path = strings.TrimPrefix(path, c.prefix)
	}
	if path == "" {
		path = "/"
	}
	return path, nil
}

// pathOf returns the path of an open file.
func pathOf(fd int) (string, error) { return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) }

// Find returns the IDs of the cgroups that a name stands for, at least one. It is a path
// in the unified hierarchy or where that is mounted, or the name of a systemd unit
// (".service" may be left out) or the ID of a container, of which the first twelve digits
// do. A unit of several users is in several cgroups.
func (c *Cgroups) Find(name string) ([]uint64, error) {
	if c.paths == nil {
		return nil, errNotOpen
	}
	var ids []uint64
	if strings.HasPrefix(name, "/") {
		id, err := c.idOf(name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		if err == nil {
			ids = append(ids, id)
		}
	} else {
		c.each("/", func(path string) bool {
			id, err := c.idOf(path)
			is := err == nil && isNamed(path, name)
			if is {
				ids = append(ids, id)
			}
			return !is // what is below is part of it
		})
	}
	switch {
	case len(ids) > 0:
		return ids, nil
	case HasOldCgroups():
		return nil, fmt.Errorf("%s: no such cgroup, unit or container in the unified hierarchy; this machine has older ones besides, by which nothing can be chosen", name)
	}
	return nil, fmt.Errorf("%s: no such cgroup, unit or container", name)
}

// idOf returns the ID of the cgroup that has a path.
func (c *Cgroups) idOf(path string) (uint64, error) {
	path = filepath.Clean(path)
	if at := cgroupMount(); at != "" && (path == at || strings.HasPrefix(path, at+"/")) {
		path = path[len(at):]
	}
	var st unix.Stat_t
	if err := unix.Fstatat(c.root, "."+path, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, fmt.Errorf("cgroup %s: %w", path, unix.ENOTDIR)
	}
	return st.Ino, nil
}

// PIDs returns the processes that are in one of the cgroups with these IDs, or below, in
// order, as far as our PID namespace has numbers for them.
func (c *Cgroups) PIDs(ids []uint64) []int {
	var pids []int
	for _, id := range ids {
		top := c.Path(id)
		if top == "" {
			continue // gone
		}
		c.each(top, func(path string) bool {
			b, _ := os.ReadFile(c.file(path + "/cgroup.procs"))
			for line := range strings.Lines(string(b)) {
				if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return true
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// each calls fn for a cgroup and those below it, by path, where it returns true for the
// one above.
func (c *Cgroups) each(top string, fn func(path string) bool) {
	root := c.file("")
	_ = filepath.WalkDir(c.file(top), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // or it has gone meanwhile
		}
		if !fn("/" + strings.Trim(path[len(root):], "/")) {
			return fs.SkipDir
		}
		return nil
	})
}

// file returns the name of a file of the hierarchy.
func (c *Cgroups) file(path string) string { return fmt.Sprintf("/proc/self/fd/%d/%s", c.root, path) }

// minContainerDigits is how many digits of a container's ID engines show.
const minContainerDigits = 12

// isNamed reports whether the last directory of a path is the cgroup of a unit or
// container, as Find takes their names.
func isNamed(path, name string) bool {
	dir := path[strings.LastIndexByte(path, '/')+1:]
	if id := containerID(dir); id != "" && len(name) >= minContainerDigits && strings.HasPrefix(id, name) {
		return true
	}
	unit := UnitOfCgroup(dir)
	return name != "" && dir == name || unit != "" && (unit == name || unit == name+".service")
}

// HasOldCgroups reports whether there are hierarchies of the first version of
// cgroups, in which processes may be elsewhere.
func HasOldCgroups() bool {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false
	}
	return strings.Count(strings.TrimSpace(string(b)), "\n") > 0
}

// CgroupOfProcess returns the longest of the paths that a process has in the
// hierarchies of cgroups, as /proc tells; "" when it is gone.
func CgroupOfProcess(pid int) string {
	if !exists(int32(pid)) {
		return "" // /proc takes ten times as long to say so
	}
	b, err := readProc("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	longest := ""
	for line := range strings.Lines(string(b)) { // hierarchy:controllers:path
		if _, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":"); ok {
			if _, path, ok := strings.Cut(rest, ":"); ok && len(path) > len(longest) {
				longest = path
			}
		}
	}
	return longest
}

// readProc is os.ReadFile for what is in memory anyway and read often: without
// the poller, which takes longer than the reading.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 0, 1024)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		}
		b = slices.Grow(b[:len(b)+n], 512)
	}
}

// containerScopes are what container engines put before an ID in the name of a
// cgroup: Docker, Podman, containerd's and CRI-O's part of Kubernetes, nerdctl.
var containerScopes = []string{"docker-", "libpod-payload-", "libpod-", "cri-containerd-", "crio-", "nerdctl-"}

// ContainerOfCgroup returns the ID of the container whose cgroup a path is or is
// in, "" when there is none. With systemd an ID is part of a scope's name,
// engine-ID.scope, or comes after a colon; else it is a directory's name.
func ContainerOfCgroup(path string) string {
	dirs := strings.Split(path, "/")
	for i := len(dirs) - 1; i >= 0; i-- {
		if id := containerID(dirs[i]); id != "" {
			return id
		}
	}
	return ""
}

func containerID(dir string) string {
	name := strings.TrimSuffix(dir, ".scope")
	for _, prefix := range containerScopes {
		if id, ok := strings.CutPrefix(name, prefix); ok && isContainerID(id) {
			return id
		}
	}
	if i := strings.LastIndexByte(name, ':'); i >= 0 { // slice:engine:ID
		name = name[i+1:]
	}
	if isContainerID(name) {
		return name
	}
	return ""
}

// isContainerID reports whether a text is what all engines make: 256 bits in
// hexadecimal.
func isContainerID(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// unitTypes are the units of systemd that have processes of their own.
var unitTypes = []string{".service", ".scope", ".socket", ".mount", ".swap"}

// UnitOfCgroup returns the systemd unit whose cgroup a path is or is in: of a
// user's manager, the unit there. The scopes of containers are none.
func UnitOfCgroup(path string) string {
	dirs := strings.Split(path, "/")
	for i := len(dirs) - 1; i >= 0; i-- {
		dir := strings.TrimPrefix(dirs[i], "_") // before names that the kernel could take for its own
		for _, suffix := range unitTypes {
			if strings.HasSuffix(dir, suffix) && len(dir) > len(suffix) && containerID(dir) == "" {
				return dir
			}
		}
	}
	return ""
}
