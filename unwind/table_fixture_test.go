package unwind

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// build runs a compiler with arguments, "-o out" added, and returns out.
func build(t testing.TB, compiler string, args ...string) string {
	t.Helper()
	testenv.Needs(t, compiler)
	out := filepath.Join(t.TempDir(), "out")
	cmd := exec.Command(compiler, append(args, "-o", out)...)
	testenv.Run(t, cmd)
	return out
}

func TestReadelfCompiled(t *testing.T) {
	cc := "testdata/src/frames.cc"
	c := "testdata/src/frames.c"
	type program struct {
		name    string
		rows    int
		command []string
	}
	programs := []program{
		{"gcc-O0", 100, []string{"g++", "-O0", cc}},
		{"gcc-static", 5000, []string{"g++", "-O2", "-static", cc}},
		{"gcc-debug-frame", 60, []string{"gcc", "-O2", "-g", "-fno-asynchronous-unwind-tables", c}},
		{"gcc-debug-frame-zlib", 60, []string{"gcc", "-O2", "-g", "-gz=zlib", "-fno-asynchronous-unwind-tables", c}},
		{"gcc-no-hdr", 60, []string{"gcc", "-O2", "-Wl,--no-eh-frame-hdr", c}},
		{"gcc-large-model", 60, []string{"gcc", "-O2", "-mcmodel=large", "-no-pie", c}},
		{"clang", 100, []string{"clang-19", "-O2", cc, "-lstdc++"}},
		{"clang-dwarf5-debug-frame", 50, []string{"clang-19", "-O2", "-g", "-gdwarf-5", "-fno-asynchronous-unwind-tables", c}},
		{"clang-dwarf64", 50, []string{"clang-19", "-O2", "-g", "-gdwarf-5", "-gdwarf64", "-fno-asynchronous-unwind-tables", c}},
		{"i386", 60, []string{"gcc", "-m32", "-O2", c}},
		{"arm64", 50, []string{"aarch64-linux-gnu-gcc", "-O2", c}},
		{"arm64-pac", 60, []string{"aarch64-linux-gnu-gcc", "-O2", "-mbranch-protection=standard", c}},
		{"arm64-pac-b-key", 60, []string{"aarch64-linux-gnu-gcc", "-O2", "-mbranch-protection=pac-ret+b-key", c}},
		{"arm64-c++", 5000, []string{"aarch64-linux-gnu-g++", "-O2", "-static", cc}},
		{"edge", 30, []string{"gcc", "-nostdlib", "-static", "testdata/src/edge.s"}},
		{"edge-pie", 30, []string{"gcc", "-nostdlib", "-static-pie", "testdata/src/edge.s"}},
	}
	if testenv.Long() {
		programs = append(programs, []program{
			{"gcc-O2", 100, []string{"g++", "-O2", cc}},
			{"gcc-O3-avx", 100, []string{"g++", "-O3", "-mavx2", cc}},
			{"arm64-static", 3000, []string{"aarch64-linux-gnu-gcc", "-O2", "-static", c}},
		}...)
	}
	for _, v := range programs {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			compareFile(t, build(t, v.command[0], v.command[1:]...), v.rows)
		})
	}
}

func TestReadelfGo(t *testing.T) {
	t.Parallel()
	for _, arch := range []string{"amd64", "arm64"} {
		out := filepath.Join(t.TempDir(), arch)
		cmd := exec.Command("go", "build", "-o", out, "./testdata/src/gohello")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		testenv.Run(t, cmd)
		compareFile(t, out, 5000)
	}
}

// vdsoBytes copies the vdso of this process.
func vdsoBytes(t testing.TB) []byte {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		var start, end uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
			t.Fatal(err)
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		b := make([]byte, end-start)
		if _, err := mem.ReadAt(b, int64(start)); err != nil {
			t.Fatal(err)
		}
		return b
	}
	testenv.Lacks(t, "this machine has no vdso")
	return nil
}

func TestReadelfVdso(t *testing.T) {
	b := vdsoBytes(t)
	path := filepath.Join(t.TempDir(), "vdso")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	compareFile(t, path, 5)

	// Without section headers, as a core file may have it, it is the same.
	whole, err := procstate.NewImageBytes(b, "whole")
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.Clone(b)
	binary.LittleEndian.PutUint64(cut[40:], 0) // e_shoff
	bare, err := procstate.NewImageBytes(cut, "bare")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := bare.Section(".eh_frame"); ok {
		t.Fatal("it still has sections")
	}
	a, c, covered := NewTable(whole), NewTable(bare), 0
	for vaddr := range uint64(len(b)) {
		r, s := a.Rule(vaddr), c.Rule(vaddr)
		if r.Reason() == ReasonNone {
			covered++
		}
		if r.Reason() != s.Reason() || r.row == nil && s.row == nil && *r != *s {
			t.Fatalf("%#x: %v with sections, %v without", vaddr, r.Reason(), s.Reason())
		}
	}
	if covered < 100 {
		t.Errorf("%d bytes are covered", covered)
	}
}

// TestReadelfFiles compares whole files: those of SWBPF_READELF_FILES,
// separated by colons, or some programs of the distribution.
func TestReadelfFiles(t *testing.T) {
	files := "/bin/bash:/bin/tar"
	if s := os.Getenv("SWBPF_READELF_FILES"); s != "" {
		files = s
	}
	for _, path := range strings.Split(files, ":") {
		compareFile(t, path, 1000)
	}
}
