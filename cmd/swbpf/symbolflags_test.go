package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// waitingTemplate waits in a member of a template class for the end of its
// standard input.
const waitingTemplate = `
#include <stdio.h>
#include <vector>
template<class T> struct Pool {
	__attribute__((noinline)) int wait(T n, const std::vector<T> &v) { puts("ready"); fflush(stdout); return getchar() + n + v.size(); }
};
int main() { std::vector<long> v(3); return Pool<long>().wait(1, v) & 1; }
`

// The flags choose the form of names and where debug information comes from:
// here that of a stripped program lies elsewhere.
func TestSymbolFlags(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "wants root")
	}
	testenv.Needs(t, "g++", "readelf")
	path := build(t, "symbol-flags", "sh", "-c", "printf '%s' \"$1\" | g++ -O1 -g -xc++ -o OUT -", "sh", waitingTemplate)
	dir := t.TempDir()
	stripped, debug := filepath.Join(dir, "waiting"), filepath.Join(dir, "debuginfo")
	for _, c := range [][]string{{"objcopy", "--only-keep-debug", path, debug}, {"strip", "-o", stripped, path}} {
		testenv.Run(t, exec.Command(c[0], c[1:]...))
	}
	notes, err := exec.Command("readelf", "-n", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(string(notes), "Build ID: ")
	id, _, _ = strings.Cut(id, "\n")
	debugDir := filepath.Join(dir, "debug")
	byID := filepath.Join(debugDir, ".build-id", id[:2], id[2:]+".debug")
	if err := os.MkdirAll(filepath.Dir(byID), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(debug, byID); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/buildid/"+id+"/debuginfo" {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, debug)
	}))
	defer server.Close()
	t.Setenv("DEBUGINFOD_CACHE_PATH", filepath.Join(dir, "cache"))
	t.Setenv("DEBUGINFOD_URLS", "")

	cmd := exec.Command(stripped)
	startReady(t, cmd)

	const full = "Pool<long>::wait(long, std::vector<long, std::allocator<long> > const&)+0x"
	for _, tc := range []struct {
		flags, want string // want is part of the output
	}{
		{"", "waiting+0x"},
		{"--debug-dir " + debugDir, "  Pool::wait+0x"},
		{"--demangle full --debug-dir " + debugDir, full},
		{"--demangle none --debug-dir " + debugDir, "  _ZN4PoolIlE4waitElRKSt6vectorIlSaIlEE+0x"},
		{"--symbol-memory 1K --debug-dir " + debugDir, "  Pool::wait+0x"},
		{"--debuginfod=" + server.URL, "  Pool::wait+0x"},
		{"", "waiting+0x"}, // what was fetched is used only when it is asked for
	} {
		args := append([]string{strconv.Itoa(cmd.Process.Pid)}, strings.Fields(tc.flags)...)
		stdout, stderr, code := runWalk(t, args...)
		named := strings.Contains(stdout, "Pool")
		if code != 0 || !strings.Contains(stdout, tc.want) || named != (tc.flags != "") {
			t.Errorf("%q: status %d, want %q in\n%s%s", tc.flags, code, tc.want, stdout, stderr)
		}
	}
	for flag, want := range map[string]string{
		"--demangle=some":             `--demangle is full, simple or none, not "some"`,
		"--debuginfod":                "DEBUGINFOD_URLS names no server",
		"--debuginfod=my":             `"my" is no server`,
		"--debug-dir=/no":             "--debug-dir: stat /no: no such file or directory",
		"--debug-dir=/proc/self/maps": "/proc/self/maps is no directory",
	} {
		if _, stderr, code := runWalk(t, strconv.Itoa(cmd.Process.Pid), flag); code != exitCannot || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %s", flag, code, stderr)
		}
	}
}
