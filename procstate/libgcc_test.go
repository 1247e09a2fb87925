package procstate

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// libgccOf returns the path of a library of a compiler, and the version of that.
func libgccOf(t *testing.T, compiler, library string) (path, version string) {
	t.Helper()
	out, err := exec.Command(compiler, "-print-file-name="+library).Output()
	if err != nil {
		t.Fatal(err)
	}
	dump, err := exec.Command(compiler, "-dumpversion").Output()
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ = strings.Cut(strings.TrimSpace(string(dump)), ".")
	return strings.TrimSpace(string(out)), version
}

// checkRoots compares what is found in a libgcc_s with what the version has: two lists
// side by side, or a tree.
func checkRoots(t *testing.T, path, version string) {
	t.Helper()
	im := openTestFile(t, path)
	roots := im.frameRoots()
	old := len(version) == 1 || version <= "12"
	if lists := roots.lists; old && (len(lists) != 2 || lists[1]-lists[0] > 16 || roots.tree != 0) {
		t.Errorf("%s: GCC %s: %#x", path, version, roots)
	}
	if !old && (len(roots.lists) != 0 || !im.isVariable(roots.tree) || !im.isVariable(roots.tree+treeLockAt)) {
		t.Errorf("%s: GCC %s: %#x", path, version, roots)
	}
}

// Where libgcc keeps what it is told is found in its code; other files have no such place.
func TestFrameRoots(t *testing.T) {
	for _, compiler := range []string{"gcc", "aarch64-linux-gnu-gcc"} {
		t.Run(compiler, func(t *testing.T) {
			testenv.Needs(t, compiler)
			path, version := libgccOf(t, compiler, "libgcc_s.so.1")
			checkRoots(t, path, version)
			path, _ = libgccOf(t, compiler, "libc.so.6")
			if roots := openTestFile(t, path).frameRoots(); len(roots.lists) != 0 || roots.tree != 0 {
				t.Errorf("%s: %#x", path, roots)
			}
		})
	}
	t.Run("others", func(t *testing.T) {
		dir := os.Getenv("SWBPF_LIBGCC")
		if dir == "" {
			t.Skip("SWBPF_LIBGCC names no directory of other versions")
		}
		files, err := filepath.Glob(filepath.Join(dir, "*", "libgcc_s.so.1"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, path := range files {
			_, version, _ := strings.Cut(filepath.Base(filepath.Dir(path)), "-")
			checkRoots(t, path, version)
		}
	})
}

// In a program that libgcc is linked into, what its code tells without symbols is what
// symbols say.
func TestLinkedFrameRoots(t *testing.T) {
	const program = "void __register_frame(void *);\nlong nothing;\nint main(void) { __register_frame(&nothing); return 0; }\n"
	others := []string{""}
	if root, ok := os.LookupEnv("SWBPF_LIBGCC"); ok {
		archives, err := filepath.Glob(filepath.Join(root, "*", "libgcc_eh.a"))
		if err != nil || len(archives) == 0 {
			t.Fatalf("%s: %v, %v", root, archives, err)
		}
		others = append(others, archives...)
	}
	for _, compiler := range []string{"gcc", "aarch64-linux-gnu-gcc"} {
		for _, archive := range others {
			arch, _, _ := strings.Cut(filepath.Base(filepath.Dir(archive)), "-")
			if native := compiler == "gcc"; archive != "" && native != (arch == "native") {
				continue
			}
			for _, flags := range [][]string{{"-static"}, {"-static-pie"}, {"-static-libgcc"}} {
				if flags[0] == "-static-pie" && !testenv.Long() {
					continue // its libgcc is that of the next
				}
				t.Run(strings.Join(append(flags, compiler, filepath.Base(filepath.Dir(archive))), " "), func(t *testing.T) {
					testenv.Needs(t, compiler)
					if archive != "" {
						flags = append(flags, "-L"+filepath.Dir(archive))
					}
					path := compile(t, program, compiler, flags...)
					f, err := elf.Open(path)
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					symbols, err := f.Symbols()
					if err != nil {
						t.Fatal(err)
					}
					var want frameRoots
					for _, s := range symbols {
						switch s.Name {
						case "seen_objects", "unseen_objects":
							want.lists = append(want.lists, s.Value)
						case "registered_frames":
							want.tree = s.Value
						}
					}
					slices.Sort(want.lists)
					if len(want.lists) != 2 && want.tree == 0 {
						t.Fatalf("%#x", want)
					}
					stripped := compile(t, program, compiler, append(flags, "-s")...)
					for _, path := range []string{path, stripped} {
						if got := openTestFile(t, path).frameRoots(); !slices.Equal(got.lists, want.lists) || got.tree != want.tree {
							t.Errorf("%s: %#x, symbols say %#x", path, got, want)
						}
					}
				})
			}
		}
	}
}
