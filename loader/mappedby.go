package loader

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/swbpf/swbpf/procstate"
)

// MappedBy counts the processes that have code of the file of a uprobe or static probe mapped now, as far as they may
// be looked at: in others it is not met. Of other events it is 0.
func (e Event) MappedBy() (processes int) {
	var files []os.FileInfo
	for i, p := range e.places {
		if fi, err := os.Stat(p.file); err == nil && (i == 0 || p.file != e.places[i-1].file) {
			files = append(files, fi)
		}
	}
	if len(files) == 0 {
		return 0
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		mapped, _ := procstate.ReadMaps(dir+"/maps", true)
		if slices.ContainsFunc(mapped, func(m procstate.MapsEntry) bool { return mapsOne(dir, &m, files) }) {
			processes++
		}
	}
	return processes
}

// mapsOne reports whether a mapping of the process with this directory in /proc is of one of some files. The device
// that is told of a mapping is another than that of the file on some file systems: the mapping is asked itself.
func mapsOne(dir string, m *procstate.MapsEntry, files []os.FileInfo) bool {
	for _, f := range files {
		if st, ok := f.Sys().(*syscall.Stat_t); !ok || st.Ino != m.Inode {
			continue
		}
		if fi, err := os.Stat(fmt.Sprintf("%s/map_files/%x-%x", dir, m.Start, m.End)); err == nil && os.SameFile(fi, f) {
			return true
		}
	}
	return false
}
