package symbols

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

const staticSource = `
static __attribute__((noinline)) int hidden(int x) { return x * 3 + 1; }
__attribute__((visibility("default"))) int shown(int x) { return hidden(x) ^ hidden(x + 1); }
`

// splitLibrary builds a library whose local function is named by .symtab
// only, and moves that to lib.debug.
func splitLibrary(t *testing.T, dir string, args ...string) (hidden uint64) {
	t.Helper()
	write(t, dir, "a.c", staticSource)
	run(t, dir, append([]string{"gcc", "-O1", "-shared", "-fPIC", "-o", "lib.so", "a.c"}, args...)...)
	for _, s := range readelfSymbols(t, filepath.Join(dir, "lib.so"), ".symtab") {
		if s.name == "hidden" {
			hidden = s.addr
		}
	}
	run(t, dir, "objcopy", "--only-keep-debug", "lib.so", "lib.debug")
	return hidden
}

func TestDebugLink(t *testing.T) {
	for _, tc := range []struct {
		name, file string // where the debug file ends up, from dir
		link       string // flag for the build ID
		spoil      bool
		want       string
	}{
		{"beside", "lib.debug", "-Wl,--build-id=none", false, "hidden"},
		{"dot debug", ".debug/lib.debug", "-Wl,--build-id=none", false, "hidden"},
		{"debug dir", "", "-Wl,--build-id=none", false, "hidden"},
		{"wrong checksum", "lib.debug", "-Wl,--build-id=none", true, ""},
		{"same build ID", "lib.debug", "-Wl,--build-id", true, "hidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, debugdir := t.TempDir(), t.TempDir()
			hidden := splitLibrary(t, dir, tc.link)
			run(t, dir, "objcopy", "--strip-all", "--add-gnu-debuglink=lib.debug", "lib.so")
			to := filepath.Join(dir, tc.file)
			if tc.file == "" {
				to = filepath.Join(debugdir, dir, "lib.debug")
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "lib.debug"), to); err != nil {
				t.Fatal(err)
			}
			if tc.spoil {
				b, err := os.ReadFile(to)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(to, append(b, 0), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := newSymbolizer(t, Options{DebugDirs: []string{debugdir}})
			if got := name(s, t, filepath.Join(dir, "lib.so"))(hidden); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if wantErr := tc.want == ""; wantErr != (len(s.Errors()) > 0) {
				t.Errorf("errors: %v", s.Errors())
			} else if wantErr && !errors.Is(s.Errors()[0], errNotSameFile) {
				t.Errorf("error is %v", s.Errors()[0])
			}
		})
	}
}

func TestBuildIDDir(t *testing.T) {
	dir, debugdir := t.TempDir(), t.TempDir()
	hidden := splitLibrary(t, dir, "-Wl,--build-id=0xabcdef0123")
	run(t, dir, "strip", "lib.so")
	to := filepath.Join(debugdir, ".build-id", "ab")
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "lib.debug"), filepath.Join(to, "cdef0123.debug")); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "lib.so")
	if got := name(newSymbolizer(t, Options{DebugDirs: []string{debugdir}}), t, lib)(hidden); got != "hidden" {
		t.Errorf("got %q", got)
	}
	if got := name(newSymbolizer(t, Options{DebugDirs: []string{dir}}), t, lib)(hidden); got != "" {
		t.Errorf("without its debug file: %q", got)
	}
	// One that is cut short says so.
	whole, err := os.ReadFile(filepath.Join(to, "cdef0123.debug"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, "cdef0123.debug", string(whole[:1000]))
	cut := newSymbolizer(t, Options{DebugDirs: []string{debugdir}})
	if got := name(cut, t, lib)(hidden); got != "" || len(cut.Errors()) != 1 {
		t.Errorf("cut short: %q, %v", got, cut.Errors())
	}
	write(t, to, "cdef0123.debug", string(whole))
	// Another program's file under this build ID.
	run(t, dir, "objcopy", "--update-section", ".note.gnu.build-id=/dev/null", filepath.Join(to, "cdef0123.debug"))
	s := newSymbolizer(t, Options{DebugDirs: []string{debugdir}})
	if got := name(s, t, lib)(hidden); got != "" || len(s.Errors()) == 0 {
		t.Errorf("wrong build ID: %q, errors %v", got, s.Errors())
	}
}

func TestFetch(t *testing.T) {
	dir := t.TempDir()
	hidden := splitLibrary(t, dir, "-Wl,--build-id=0xabcdef0123")
	run(t, dir, "strip", "lib.so")
	run(t, dir, "cp", "/bin/true", "other")
	for _, tc := range []struct {
		file string
		err  error
		want string
	}{
		{"lib.debug", nil, "hidden"}, {"other", nil, ""}, {"missing", nil, ""}, {"", os.ErrDeadlineExceeded, ""},
	} {
		asked := ""
		s := newSymbolizer(t, Options{DebugDirs: []string{}, Fetch: func(id string) (string, error) {
			asked += id
			return filepath.Join(dir, tc.file), tc.err
		}})
		at := name(s, t, filepath.Join(dir, "lib.so"))
		if got := at(hidden); got != tc.want || at(hidden) != got {
			t.Errorf("%s: %q, want %q", tc.file, got, tc.want)
		}
		if asked != "abcdef0123" {
			t.Errorf("%s: asked for %q", tc.file, asked)
		}
		if errs := s.Errors(); (tc.want == "") != (len(errs) == 1) {
			t.Errorf("%s: errors %v", tc.file, errs)
		}
	}
}

func TestMiniDebugInfo(t *testing.T) {
	dir := t.TempDir()
	hidden := splitLibrary(t, dir)
	run(t, dir, "objcopy", "-S", "--remove-section", ".comment", "--keep-symbol=hidden", "lib.debug", "mini")
	for _, args := range [][]string{{"-T1"}, {"--block-size=1KiB"}, {"--check=none"}, {"--check=sha256"}, {"--check=crc32", "-9"}} {
		run(t, dir, append(append([]string{"xz", "-kf"}, args...), "mini")...)
		run(t, dir, "objcopy", "-S", "--add-section", ".gnu_debugdata=mini.xz", "lib.so", "out.so")
		s := newSymbolizer(t, Options{})
		if got := name(s, t, filepath.Join(dir, "out.so"))(hidden); got != "hidden" {
			t.Errorf("%v: got %q, errors %v", args, got, s.Errors())
		}
	}
	// A dictionary that is too large is refused before it is allocated.
	run(t, dir, "xz", "-kf", "--lzma2=dict=1GiB", "mini")
	b, err := os.ReadFile(filepath.Join(dir, "mini.xz"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unxz(b); !errors.Is(err, errXZ) {
		t.Errorf("1 GiB dictionary: %v", err)
	}
}

// Each block has a dictionary, however little it holds.
func TestUnxzBlocks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "text", "abc")
	run(t, dir, "xz", "-kf", "--check=none", "--lzma2=dict=64MiB", "text")
	b, err := os.ReadFile(filepath.Join(dir, "text.xz"))
	if err != nil {
		t.Fatal(err)
	}
	index := 4 * (int(binary.LittleEndian.Uint32(b[len(b)-8:])) + 1)
	head, block, rest := b[:12], b[12:len(b)-12-index], b[len(b)-12-index:]
	for n, want := range map[int]string{1: "abc", 3: "abcabcabc", 5: "", 1000: ""} {
		out, err := unxz(slices.Concat(head, bytes.Repeat(block, n), rest))
		if string(out) != want || (err == nil) != (want != "") {
			t.Errorf("%d blocks: %q, %v", n, out, err)
		}
	}
}

func FuzzUnxz(f *testing.F) {
	var out bytes.Buffer
	testenv.Needs(f, "xz")
	cmd := exec.Command("xz", "-c")
	cmd.Stdin = bytes.NewReader(bytes.Repeat([]byte("abcdefgh"), 100))
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add([]byte("\xfd7zXZ\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := unxz(b); err == nil && len(out) > maxXZSize {
			t.Errorf("%d bytes", len(out))
		}
	})
}

func TestRootOf(t *testing.T) {
	for path, want := range map[string]string{
		"/proc/12/root/usr/lib/x.so": "/proc/12/root",
		"/proc/self/fd/7/usr/x.so":   "/proc/self/fd/7",
		"/proc/self/fd/7":            "",
		"/proc/12/map_files/1-2":     "",
		"/usr/lib/x.so":              "",
		"/proc/12":                   "",
		"/proc/12/root":              "",
	} {
		if got := rootOf(path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}
