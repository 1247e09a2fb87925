package loader

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// allocator is a function of an allocator, by what it does with its arguments: a program of the kernel side.
type allocator string

// allocators are the functions by which programs get and give back memory, by their names.
var allocators = map[string]allocator{
	"malloc": gen.SamplerProgOnMalloc, "valloc": gen.SamplerProgOnMalloc, "pvalloc": gen.SamplerProgOnMalloc,
	"calloc": gen.SamplerProgOnCalloc, "realloc": gen.SamplerProgOnRealloc, // which reallocarray calls
	"memalign": gen.SamplerProgOnMemalign, "aligned_alloc": gen.SamplerProgOnMemalign, "posix_memalign": gen.SamplerProgOnPosixMemalign,
	"free": gen.SamplerProgOnFree, "cfree": gen.SamplerProgOnFree,
	// jemalloc's own, as Rust's programs call them
	"mallocx": gen.SamplerProgOnMalloc, "rallocx": gen.SamplerProgOnRealloc, "dallocx": gen.SamplerProgOnFree, "sdallocx": gen.SamplerProgOnFree,
}

// allocatorPrefixes are put before these names by who links jemalloc into a program.
var allocatorPrefixes = [][]byte{[]byte("je_"), []byte("_rjem_")}

// Mangled names of C++'s operators new and delete begin so, of 64 bits.
var (
	newOperators    = [][]byte{[]byte("_Znwm"), []byte("_Znam")}
	deleteOperators = [][]byte{[]byte("_ZdlPv"), []byte("_ZdaPv")}
)

// allocatorOf returns what a function is by its name, "" if it is no allocator's.
func allocatorOf(name []byte) allocator {
	begins := func(prefix []byte) bool { return bytes.HasPrefix(name, prefix) }
	switch {
	case slices.ContainsFunc(newOperators, begins):
		return gen.SamplerProgOnMalloc
	case slices.ContainsFunc(deleteOperators, begins):
		return gen.SamplerProgOnFree
	}
	for _, prefix := range allocatorPrefixes {
		name = bytes.TrimPrefix(name, prefix)
	}
	return allocators[string(name)]
}

// maxAllocatorFunctions is how many functions an allocator has, at most, by its names; a file can claim any number.
const maxAllocatorFunctions = 1 << 8

var errNoAllocator = errors.New("no file that is run defines malloc and free")

// findAllocator finds the functions of the allocator in a file: where they are entered, and those that return.
func findAllocator(im *procstate.Image, places []place) ([]place, error) {
	at := map[uint64]string{}
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		program := allocatorOf(s.Name)
		if s.Type != elf.STT_FUNC || s.Value == 0 || program == "" {
			return true
		}
		if offset, ok := im.OffsetOfVaddr(s.Value, 1); ok && isCode(im, offset) {
			at[offset] = string(program)
		}
		return len(at) <= maxAllocatorFunctions
	})
	var hasMalloc, hasFree bool
	for _, program := range at {
		hasMalloc = hasMalloc || program == gen.SamplerProgOnMalloc
		hasFree = hasFree || program == gen.SamplerProgOnFree
	}
	if !hasMalloc || !hasFree || len(at) > maxAllocatorFunctions || im.Arch().AddressWidth != 8 {
		return nil, errNoAllocator
	}
	for offset, program := range at {
		places = append(places, place{offset: cheapPlace(im, offset, program), program: program})
		if program != gen.SamplerProgOnFree {
			places = append(places, place{offset: offset, program: gen.SamplerProgOnAllocated})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.program, b.program))
	})
	return places, nil
}

// allocatorLibraries are libraries that programs may load, by the names of files without what follows ".so".
var allocatorLibraries = []string{"libc", "libjemalloc", "libtcmalloc", "libtcmalloc_minimal", "libmimalloc"}

// isAllocatorLibrary reports whether the file of a library may have an allocator, by its name.
func isAllocatorLibrary(file string) bool {
	named := func(name string) bool { return strings.HasPrefix(file, name) }
	return isCalled(file, "libc") || slices.ContainsFunc([]string{
		"ld-musl-", "libc.musl-", "libasan.so", "liblsan.so", "libtsan.so", "libclang_rt.", "libhoard.so", "libscudo",
	}, named) || strings.Contains(file, "malloc") && strings.Contains(file, ".so")
}

// allocatorFiles returns the files, each once, that may have the allocators of some processes, or of all, and of
// programs.
func allocatorFiles(pids []int, programs []string) (paths []string) {
	if len(pids) == 0 {
		for _, name := range allocatorLibraries {
			if path, err := resolveBinary(name); err == nil {
				paths = append(paths, path)
			}
		}
		for _, name := range programs {
			if path, err := exec.LookPath(name); err == nil {
				paths = append(append(paths, path), loadedAllocators(path)...)
			}
		}
	}
	if len(pids) == 0 && len(programs) == 0 {
		pids = runningProcesses()
	}
	seen := map[string]bool{} // by what identifies the file of a mapping
	for _, pid := range pids {
		paths = append(paths, mappedAllocators(pid, seen)...)
	}
	var files []os.FileInfo
	return slices.DeleteFunc(paths, func(path string) bool {
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || slices.ContainsFunc(files, func(other os.FileInfo) bool { return os.SameFile(fi, other) }) {
			return true
		}
		files = append(files, fi)
		return false
	})
}

// loadedAllocators returns the files that may have the allocator of a program that is to be started here, of those that
// its loader will load for it and of those that the environment names.
func loadedAllocators(program string) (paths []string) {
	for _, name := range strings.FieldsFunc(os.Getenv("LD_PRELOAD"), func(r rune) bool { return r == ' ' || r == ':' }) {
		if path, err := resolveBinary(name); err == nil {
			paths = append(paths, path)
		}
	}
	if fi, err := os.Stat(program); err != nil || !fi.Mode().IsRegular() {
		return paths // a FIFO would not be opened until somebody writes
	}
	f, err := elf.Open(program)
	if err != nil {
		return paths
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 1<<12 { // musl's is its C library
			if name, err := io.ReadAll(p.Open()); err == nil {
				paths = append(paths, string(bytes.TrimRight(name, "\x00")))
			}
		}
	}
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		of, _ := f.DynString(tag)
		for _, list := range of {
			dirs = append(dirs, filepath.SplitList(strings.NewReplacer("$ORIGIN", filepath.Dir(program), "${ORIGIN}", filepath.Dir(program)).Replace(list))...)
		}
	}
	needed, _ := f.ImportedLibraries()
	for _, name := range needed {
		switch {
		case !isAllocatorLibrary(filepath.Base(name)):
		case strings.Contains(name, "/"):
			paths = append(paths, name)
		default:
			for _, dir := range dirs {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
	}
	return paths
}

// runningProcesses returns the IDs of all processes.
func runningProcesses() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// mappedAllocators returns the files, by paths of ours, that a process has mapped and that may have its allocator: its
// program and libraries. Files that were seen before are left out.
func mappedAllocators(pid int, seen map[string]bool) (paths []string) {
	proc := fmt.Sprintf("/proc/%d", pid)
	mapped, err := procstate.ReadMaps(proc+"/maps", true)
	if err != nil {
		return nil
	}
	program, _ := os.Readlink(proc + "/exe")
	root := rootOf(proc)
	for _, m := range mapped {
		path := strings.TrimSuffix(m.Path, " (deleted)")
		file := fmt.Sprint(m.Major, m.Minor, m.Inode, path)
		if !filepath.IsAbs(path) || m.Path != program && !isAllocatorLibrary(filepath.Base(path)) || seen[file] {
			continue
		}
		seen[file] = true
		paths = append(paths, mappedFile(proc, root, m.Start, m.End, path))
	}
	return paths
}
