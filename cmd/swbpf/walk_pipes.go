package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pipeEnds are the processes that have a pipe open, by their IDs here.
type pipeEnds struct{ readers, writers []int }

// maxDescriptors is how many descriptors are looked at for the ends of pipes: some tenths of a
// second.
const maxDescriptors = 1 << 17

// readPipes reads who has which pipe open. It is empty where there are too many descriptors; those
// of processes that may not be looked at are left out.
func readPipes() map[string]*pipeEnds {
	pipes := make(map[string]*pipeEnds)
	left := maxDescriptors
	processes, _ := os.ReadDir("/proc")
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		fds := filepath.Join("/proc", p.Name(), "fd")
		dir, err := os.Open(fds)
		if err != nil {
			continue
		}
		names, _ := dir.Readdirnames(left)
		dir.Close()
		if left -= len(names); left <= 0 {
			return map[string]*pipeEnds{}
		}
		for _, fd := range names {
			path := filepath.Join(fds, fd)
			name, err := os.Readlink(path)
			if err != nil || !strings.HasPrefix(name, pipePrefix) {
				continue
			}
			ends := pipes[name]
			if ends == nil {
				ends = new(pipeEnds)
				pipes[name] = ends
			}
			reads, writes := pipeAccess(path)
			if reads && !endsWith(ends.readers, pid) {
				ends.readers = append(ends.readers, pid)
			}
			if writes && !endsWith(ends.writers, pid) {
				ends.writers = append(ends.writers, pid)
			}
		}
	}
	return pipes
}

// endsWith reports whether a process, of which all descriptors come together, is in a list.
func endsWith(pids []int, pid int) bool { return len(pids) > 0 && pids[len(pids)-1] == pid }

// pipePrefix begins the name of a pipe that has none in a directory: "pipe:[4711]".
const pipePrefix = "pipe:["

// pipeAccess reports what a descriptor in /proc is open for.
func pipeAccess(path string) (reads, writes bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false, false
	}
	return st.Mode&unix.S_IRUSR != 0, st.Mode&unix.S_IWUSR != 0
}

// otherEnds says who has the other end of a pipe: " from process 4711 (cat)"; "" where that is not
// known.
func (r *waitReader) otherEnds(path, name string) string {
	reads, writes := pipeAccess(path)
	if r.watching || reads == writes {
		return ""
	}
	if r.pipes == nil {
		r.pipes = readPipes()
	}
	ends := r.pipes[name]
	if ends == nil {
		return ""
	}
	way, others := " from ", ends.writers
	if writes {
		way, others = " to ", ends.readers
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	const most = 3
	var b strings.Builder
	b.WriteString(way + "process")
	if len(others) > 1 {
		b.WriteString("es")
	}
	for i, pid := range others[:min(most, len(others))] {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d", pid)
		if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
			fmt.Fprintf(&b, " (%s)", strings.TrimSuffix(string(comm), "\n"))
		}
	}
	if len(others) > most {
		fmt.Fprintf(&b, " and %d more", len(others)-most)
	}
	return b.String()
}
