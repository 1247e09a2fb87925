package symbols

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// open opens an ELF file for the length of the test.
func open(t testing.TB, path string) *procstate.Image {
	t.Helper()
	im, err := openImage(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.f.Close() })
	return im.Image
}

// write stores a file in dir and returns its path.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a command in dir and returns its output.
func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	testenv.Needs(t, args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

func newSymbolizer(t testing.TB, opt Options) *Symbolizer {
	t.Helper()
	s := New(opt)
	t.Cleanup(func() { s.Close() })
	return s
}

// elfSymbol is a line of readelf -sW.
type elfSymbol struct {
	addr, size      uint64
	typ, bind, name string
	section         string
}

// readelfSymbols returns the symbols of one table of a file.
func readelfSymbols(t testing.TB, path, table string) []elfSymbol {
	t.Helper()
	var out []elfSymbol
	in := false
	for _, line := range strings.Split(run(t, "", "readelf", "-sW", path), "\n") {
		if strings.HasPrefix(line, "Symbol table") {
			in = strings.Contains(line, "'"+table+"'")
			continue
		}
		f := strings.Fields(line)
		if !in || len(f) < 8 || !strings.HasSuffix(f[0], ":") || f[0] == "Num:" {
			continue
		}
		addr, err := strconv.ParseUint(f[1], 16, 64)
		if err != nil {
			t.Fatal(line)
		}
		size, err := strconv.ParseUint(f[2], 0, 64)
		if err != nil {
			t.Fatal(line)
		}
		name, _, _ := strings.Cut(f[7], "@")
		out = append(out, elfSymbol{addr, size, f[3], f[4], name, f[6]})
	}
	if len(out) == 0 {
		t.Fatalf("%s: readelf shows no symbols in %s", path, table)
	}
	return out
}

// maxRSS is the most memory that a process had, in bytes.
func maxRSS(p *os.ProcessState) int64 {
	if u, ok := p.SysUsage().(*syscall.Rusage); ok {
		return u.Maxrss << 10
	}
	return 0
}

// TestWarmAllocs names an address a second time without allocating.
func TestWarmAllocs(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", fuzzSource)
	run(t, dir, "gcc", "-g", "-O2", "-shared", "-fPIC", "-o", "a.so", "a.c")
	im := open(t, filepath.Join(dir, "a.so"))
	s := newSymbolizer(t, Options{})
	dst := make([]Line, 0, 8)
	addrs := textAddresses(im, 50)
	name := func() {
		for _, a := range addrs {
			dst = s.Lines(dst[:0], im, a)
		}
	}
	name()
	if n := testing.AllocsPerRun(100, name); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
