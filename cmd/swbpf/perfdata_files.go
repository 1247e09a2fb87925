package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// pastFiles finds the files of a recording on this machine. One that is not known to be the same is
// not used.
type pastFiles struct {
	r       *perfRecording
	images  *procstate.Images
	ids     map[string][]byte // build IDs by path; nil where a path has several
	found   map[pastFile]foundFile
	missing map[string]error // files that cannot be used, by path
	host    string           // this machine
}

// pastFile is a file as a mapping tells of it.
type pastFile struct {
	path, id        string
	dev, inode, gen uint64
	hasInode        bool
}

type foundFile struct {
	image *procstate.Image
	err   error
}

// Why a file is not used.
var (
	errNoFile      = errors.New("it is not here")
	errOtherID     = errors.New("another build ID")
	errOtherInode  = errors.New("another file has its name")
	errSince       = errors.New("changed since")
	errNoIdentity  = errors.New("nothing tells which file it was; record with --buildid-all")
	errOtherKernel = errors.New("of another kernel")
)

func newPastFiles(r *perfRecording) *pastFiles {
	p := &pastFiles{r: r, images: procstate.NewImages(0), ids: map[string][]byte{}, found: map[pastFile]foundFile{}, missing: map[string]error{}}
	p.host, _ = os.Hostname()
	for _, b := range r.file.BuildIDs {
		if b.Kernel || isZero(b.ID) {
			continue
		}
		if known, ok := p.ids[b.Path]; ok && !bytes.Equal(known, b.ID) {
			p.ids[b.Path] = nil
			continue
		}
		p.ids[b.Path] = b.ID
	}
	return p
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// isHere reports whether the recording was made on this machine, as far as names tell.
func (p *pastFiles) isHere() bool { return p.r.file.Host != "" && p.r.file.Host == p.host }

// open returns the file of a mapping. id is its build ID, nil where the mapping does not tell.
func (p *pastFiles) open(ref *procstate.FileRef, id []byte) (*procstate.Image, error) {
	ref.Path = strings.TrimSuffix(ref.Path, " (deleted)")
	if isZero(id) {
		id = p.ids[ref.Path]
	}
	key := pastFile{path: ref.Path, id: string(id), dev: ref.Dev, inode: ref.Inode, gen: ref.Gen, hasInode: ref.HasGen}
	f, ok := p.found[key]
	if !ok {
		if len(id) > 0 {
			f.image, f.err = p.byID(ref.Path, id)
		} else {
			f.image, f.err = p.byInode(ref)
		}
		p.found[key] = f
	}
	return f.image, f.err
}

// byID returns the file of a build ID: by the path that it had, from the files that perf keeps, from
// directories for debug files, or from servers.
func (p *pastFiles) byID(path string, id []byte) (*procstate.Image, error) {
	im, why := p.at(path, id)
	if im != nil {
		return im, nil
	}
	for _, path := range p.elsewhere(id, "elf") {
		if im, err := p.at(path, id); im != nil {
			return im, nil
		} else if errors.Is(err, errOtherID) {
			why = fmt.Errorf("%s: %w", path, err)
		}
	}
	if fetch := p.r.code.fetch; fetch != nil {
		if path, err := fetch(buildIDText(id)); err == nil {
			if im, _ := p.at(path, id); im != nil {
				return im, nil
			}
		}
	}
	return nil, why
}

// buildIDText is a build ID in hex, of which perf may have made 20 bytes.
func buildIDText(id []byte) string {
	if len(id) == 20 && isZero(id[16:]) { // one of 16 bytes, as lld makes them
		id = id[:16]
	}
	return fmt.Sprintf("%x", id)
}

// elsewhere are the names that a file of a build ID may have, besides its own.
func (p *pastFiles) elsewhere(id []byte, kind string) (paths []string) {
	text := buildIDText(id)
	if len(text) < 4 {
		return nil
	}
	name := filepath.Join(".build-id", text[:2], text[2:])
	if home, err := os.UserHomeDir(); err == nil {
		// A directory; a file before Linux 4.8.
		paths = append(paths, filepath.Join(home, ".debug", name, kind), filepath.Join(home, ".debug", name))
	}
	for _, dir := range p.r.code.names.DebugDirs {
		paths = append(paths, filepath.Join(dir, name, kind), filepath.Join(dir, name))
	}
	return paths
}

// at opens the file at a path, if it has the build ID.
func (p *pastFiles) at(path string, id []byte) (*procstate.Image, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	im, err := p.images.Open(&procstate.FileRef{Path: path, Dev: st.Dev, Inode: st.Ino})
	if err != nil {
		return nil, err
	}
	if !sameBuildID([]byte(im.ID.BuildID), id) {
		return nil, errOtherID
	}
	return im, nil
}

// sameBuildID compares a file's build ID with what perf has written of one: 20 bytes of it, or with
// zeros behind it.
func sameBuildID(of, recorded []byte) bool {
	n := min(len(of), len(recorded))
	return n > 0 && bytes.Equal(of[:n], recorded[:n]) && isZero(recorded[n:]) && (len(of) == n || n == 20)
}

// byInode returns the file of which no build ID is known: by device, inode and generation or, where
// those are not told, by its name if nobody has touched it since.
func (p *pastFiles) byInode(ref *procstate.FileRef) (*procstate.Image, error) {
	var st unix.Stat_t
	if err := unix.Stat(ref.Path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	if since := p.r.written; !since.IsZero() && timeOf(st.Mtim).After(since) {
		return nil, errSince
	}
	found := procstate.FileRef{Path: ref.Path, Dev: ref.Dev, Inode: ref.Inode, Gen: ref.Gen, HasGen: ref.HasGen && ref.Gen != 0}
	if !ref.HasGen {
		if !p.isHere() || p.r.written.IsZero() || timeOf(st.Ctim).After(p.r.written) {
			return nil, errNoIdentity
		}
		found.Dev, found.Inode = st.Dev, st.Ino
	}
	im, err := p.images.Open(&found)
	if errors.Is(err, procstate.ErrFileGone) {
		err = errOtherInode
	}
	return im, err
}

// vdso returns what the kernel of the recording has mapped as that.
func (p *pastFiles) vdso(id []byte) (*procstate.Image, error) {
	if isZero(id) {
		id = p.ids["[vdso]"]
	}
	own := p.images.OwnVDSO()
	if len(id) == 0 {
		if own != nil && p.isHere() && p.r.file.Release == kernelVersion() {
			return own, nil
		}
		return nil, errOtherKernel
	}
	if own != nil && sameBuildID([]byte(own.ID.BuildID), id) {
		return own, nil
	}
	for _, path := range p.elsewhere(id, "vdso") {
		if im, _ := p.at(path, id); im != nil {
			return im, nil
		}
	}
	return nil, errOtherKernel
}

// perfMap opens the perf-PID.map of a process that has begun at a time of the recording, 0 standing for
// before: nil where there is none, or where it may be of another that had the number. As with perf, it
// has to be of root or of who reads it.
func (p *pastFiles) perfMap(pid int32, born uint64) *os.File {
	written := p.r.written
	if !p.isHere() || written.IsZero() || p.r.file.Last < born {
		return nil
	}
	fd, err := unix.Open(fmt.Sprintf("/tmp/perf-%d.map", pid), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/tmp/perf-%d.map", pid))
	var st unix.Stat_t
	var up unix.Timespec
	begin := time.Time{} // of the process, or of all that have run since the machine did
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
		begin = time.Now().Add(-time.Duration(up.Nano()))
	}
	if born > 0 {
		begin = written.Add(-time.Duration(min(p.r.file.Last-born, 1<<62)))
	}
	const clocks = 2 * time.Second // between those of files, of the recording and of its end
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 && int(st.Uid) != os.Geteuid() ||
		timeOf(st.Mtim).Before(begin.Add(-clocks)) || timeOf(st.Mtim).After(written.Add(clocks)) {
		f.Close()
		return nil
	}
	return f
}

// miss notes that frames were in a file that cannot be used.
func (p *pastFiles) miss(path string, err error) {
	if len(p.missing) < 1000 {
		p.missing[path] = err
	}
}

// notes tells which files could not be used, of those that frames were in.
func (p *pastFiles) notes() []string {
	if len(p.missing) == 0 {
		return nil
	}
	const shown = 3
	var all []string
	for _, path := range slices.Sorted(maps.Keys(p.missing)) {
		all = append(all, fmt.Sprintf("%s (%v)", path, p.missing[path]))
	}
	more := ""
	if n := len(all) - shown; n > 0 {
		all, more = all[:shown], fmt.Sprintf(", and %d more", n)
	}
	return []string{"stacks end in files that are not here as they were recorded: " + strings.Join(all, ", ") + more}
}

func timeOf(t unix.Timespec) time.Time { return time.Unix(int64(t.Sec), int64(t.Nsec)) }
