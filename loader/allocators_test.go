package loader

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

func TestAllocatorOf(t *testing.T) {
	for name, want := range map[string]string{
		"malloc": gen.SamplerProgOnMalloc, "valloc": gen.SamplerProgOnMalloc, "calloc": gen.SamplerProgOnCalloc, "realloc": gen.SamplerProgOnRealloc,
		"aligned_alloc": gen.SamplerProgOnMemalign, "posix_memalign": gen.SamplerProgOnPosixMemalign, "free": gen.SamplerProgOnFree,
		"je_malloc": gen.SamplerProgOnMalloc, "_rjem_sdallocx": gen.SamplerProgOnFree, "_rjem_rallocx": gen.SamplerProgOnRealloc,
		"_Znwm": gen.SamplerProgOnMalloc, "_ZnamSt11align_val_tRKSt9nothrow_t": gen.SamplerProgOnMalloc, "_ZdlPvm": gen.SamplerProgOnFree,
		"reallocarray": "", "malloc_usable_size": "", "freeaddrinfo": "", "_Znwj": "", "xmalloc": "", "": "",
	} {
		if got := allocatorOf([]byte(name)); string(got) != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// The C library's allocator is found where it is, each function once, and none in a program without.
func TestFindAllocator(t *testing.T) {
	find := func(path string) ([]place, error) {
		var places []place
		err := withImage("heap", path, func(im *procstate.Image) (err error) {
			places, err = findAllocator(im, nil)
			return err
		})
		return places, err
	}
	path, err := resolveBinary("libc")
	if err != nil {
		testenv.Lacks(t, "the C library: %v", err)
	}
	places, err := find(path)
	if err != nil {
		t.Fatal(err)
	}
	byProgram := map[string]int{}
	for i, p := range places {
		byProgram[p.program]++
		if i > 0 && (p.offset < places[i-1].offset || p.offset == places[i-1].offset && p.program == places[i-1].program) {
			t.Errorf("%#x comes after %#x", p.offset, places[i-1].offset)
		}
	}
	for _, program := range []string{gen.SamplerProgOnMalloc, gen.SamplerProgOnCalloc, gen.SamplerProgOnRealloc, gen.SamplerProgOnMemalign, gen.SamplerProgOnPosixMemalign, gen.SamplerProgOnFree} {
		if byProgram[program] == 0 {
			t.Errorf("%s has no place of %s: %v", path, program, byProgram)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if places, err := find(exe); !errors.Is(err, errNoAllocator) {
		t.Errorf("%s: %v, %v", exe, places, err)
	}
	testenv.Needs(t, "gcc")
	for operators, want := range map[int]error{10: nil, maxAllocatorFunctions: errNoAllocator} { // that many is a lie
		code := ".text\n"
		for i := range operators + 2 {
			name := []string{"malloc", "free", fmt.Sprint("_Znwm", i)}[min(i, 2)]
			code += fmt.Sprintf(".globl %s\n.type %[1]s, @function\n%[1]s: nop\n", name)
		}
		path := filepath.Join(t.TempDir(), "allocator.s")
		if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		testenv.Run(t, exec.Command("gcc", "-shared", "-nostdlib", "-o", path+".so", path))
		if places, err := find(path + ".so"); !errors.Is(err, want) || err == nil && len(places) != 2*(operators+1)+1 {
			t.Errorf("with %d operators: %d places, %v; want %v", operators, len(places), err, want)
		}
	}
}

func TestIsAllocatorLibrary(t *testing.T) {
	for file, want := range map[string]bool{
		"libc.so.6": true, "libc-2.31.so": true, "ld-musl-x86_64.so.1": true, "libjemalloc.so.2": true, "libtcmalloc_minimal.so.4": true,
		"libmimalloc-secure.so.2.0": true, "libasan.so.8": true, "libcap.so.2": false, "ld-linux-x86-64.so.2": false, "malloc": false, "": false,
	} {
		if got := isAllocatorLibrary(file); got != want {
			t.Errorf("%q: %v, want %v", file, got, want)
		}
	}
}

// What a command is need not be a file that can be read.
func TestLoadedAllocatorsOfAnything(t *testing.T) {
	t.Setenv("LD_PRELOAD", "")
	t.Setenv("LD_LIBRARY_PATH", "")
	fifo := filepath.Join(t.TempDir(), "fifo")
	testenv.Run(t, exec.Command("mkfifo", "-m", "755", fifo))
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, script, t.TempDir(), "/nothing", ""} {
		if got := loadedAllocators(path); len(got) > 0 {
			t.Errorf("%q: %v", path, got)
		}
	}
}
