package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// server answers for build ID 01ab, fails for 05, and counts the questions.
func server(t *testing.T, questions *atomic.Int32) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		questions.Add(1)
		switch r.URL.Path {
		case "/x/buildid/01ab/debuginfo":
			io.WriteString(w, "contents")
		case "/x/buildid/05/debuginfo":
			http.Error(w, "broken", http.StatusInternalServerError)
		case "/x/buildid/06/debuginfo": // cut short
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "part")
		case "/x/buildid/07/debuginfo": // empty
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL + "/x/"
}

func TestClient(t *testing.T) {
	var n atomic.Int32
	c := &Client{URLs: []string{server(t, &n)}, Dir: t.TempDir()}
	ctx := context.Background()
	for range 2 {
		path, err := c.DebugInfo(ctx, "01AB")
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "contents" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	if n.Load() != 1 {
		t.Errorf("%d questions for one file", n.Load())
	}
	// A miss is believed for a while.
	for range 2 {
		if _, err := c.DebugInfo(ctx, "02"); !errors.Is(err, ErrNotFound) {
			t.Errorf("unknown build ID: %v", err)
		}
	}
	if n.Load() != 2 {
		t.Errorf("%d questions after a miss", n.Load())
	}
	old := time.Now().Add(-2 * missLifetime)
	if err := os.Chtimes(filepath.Join(c.Dir, "02", "debuginfo"), old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DebugInfo(ctx, "02"); !errors.Is(err, ErrNotFound) || n.Load() != 3 {
		t.Errorf("after the miss is old: %v, %d questions", err, n.Load())
	}
	// Failures are neither files nor misses, and leave nothing.
	for _, id := range []string{"05", "06", "07"} {
		if path, err := c.DebugInfo(ctx, id); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %q, %v", id, path, err)
		}
		if left, err := os.ReadDir(filepath.Join(c.Dir, id)); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", id, left, err)
		}
	}
	small := &Client{URLs: c.URLs, MaxSize: 7, Dir: t.TempDir()}
	if _, err := small.DebugInfo(ctx, "01ab"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("8 bytes of 7: %v", err)
	}
	small.MaxSize = 8
	if _, err := small.DebugInfo(ctx, "01ab"); err != nil {
		t.Errorf("8 bytes of 8: %v", err)
	}
	asked := n.Load()
	for _, id := range []string{"", "0", "../../etc", "0g", strings.Repeat("00", 65)} {
		if path, err := c.DebugInfo(ctx, id); err == nil {
			t.Errorf("%q: %q", id, path)
		}
	}
	if n.Load() != asked {
		t.Error("a server was asked for what is no build ID")
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.DebugInfo(canceled, "08"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestServersInOrder(t *testing.T) {
	var n atomic.Int32
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	c := &Client{URLs: []string{"http://127.0.0.1:1", empty.URL, server(t, &n)}, Dir: t.TempDir()}
	if _, err := c.DebugInfo(context.Background(), "01ab"); err != nil {
		t.Errorf("third server: %v", err)
	}
	if _, err := c.DebugInfo(context.Background(), "02"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a server was not reached, but the answer is %v", err)
	}
}

// No error has the password of a server's URL, whatever fails.
func TestPassword(t *testing.T) {
	var n atomic.Int32
	answers := server(t, &n)
	for _, tc := range []struct{ url, id string }{
		{answers, "05"},              // status 500
		{answers, "06"},              // cut short
		{"http://127.0.0.1:1", "01"}, // not reached
		{"ftp://127.0.0.1", "01"},    // not of HTTP
		{"http://a b", "01"},         // no URL
	} {
		c := &Client{URLs: []string{strings.Replace(tc.url, "//", "//user:hidden@", 1)}, Dir: t.TempDir()}
		if _, err := c.DebugInfo(context.Background(), tc.id); err == nil || errors.Is(err, ErrNotFound) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", tc.url, err)
		}
	}
}

// A server that does not answer is not waited for again.
func TestSilentServer(t *testing.T) {
	var n atomic.Int32
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1); r.URL.Path == "/buildid/01ab/debuginfo" { // begins
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "part")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	defer silent.Close()
	for _, first := range []string{"01ab", "02"} {
		n.Store(0)
		c := &Client{URLs: []string{silent.URL}, Dir: t.TempDir(), Timeout: 20 * time.Millisecond}
		for _, id := range []string{first, "03", "04"} {
			if _, err := c.DebugInfo(context.Background(), id); !errors.Is(err, errSilent) || !strings.Contains(err.Error(), silent.URL) {
				t.Errorf("%s: %v", id, err)
			}
		}
		if n.Load() != 1 {
			t.Errorf("%d questions to a server that does not answer", n.Load())
		}
	}
}

func TestFromEnvironment(t *testing.T) {
	t.Setenv("DEBUGINFOD_URLS", "")
	if c := FromEnvironment(); c != nil {
		t.Errorf("without servers: %+v", c)
	}
	t.Setenv("DEBUGINFOD_URLS", " http://a/  http://b ")
	t.Setenv("DEBUGINFOD_CACHE_PATH", "/c")
	if c := FromEnvironment(); c == nil || len(c.URLs) != 2 || c.URLs[1] != "http://b" || c.Dir != "/c" {
		t.Errorf("%+v", c)
	}
	t.Setenv("DEBUGINFOD_CACHE_PATH", "")
	t.Setenv("XDG_CACHE_HOME", "/d")
	if c := FromEnvironment(); c.Dir != "/d/debuginfod_client" {
		t.Errorf("%+v", c)
	}
}

// askServer has elfutils' server find the files of a directory, and asks it for
// that of TestRealServer until it answers or has ended: another program may have
// taken its port.
func askServer(t *testing.T, dir string, deadline time.Time) (path string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	srv := exec.Command("debuginfod", "-F", "-d", ":memory:", "-p", fmt.Sprint(port), "-t", "1", dir)
	srv.Env = append(os.Environ(), "DEBUGINFOD_URLS=")
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		srv.Wait()
		close(ended)
	}()
	defer func() {
		srv.Process.Kill()
		<-ended
	}()
	c := &Client{URLs: []string{fmt.Sprintf("http://127.0.0.1:%d", port)}, Dir: t.TempDir()}
	for {
		if path, err = c.DebugInfo(context.Background(), "abcdef0123456789"); err == nil || time.Now().After(deadline) {
			return path, err
		}
		os.RemoveAll(filepath.Join(c.Dir, "abcdef0123456789")) // not yet scanned: no miss
		select {
		case <-ended:
			return "", err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestRealServer asks elfutils' server on loopback for a file that it found in
// a directory.
func TestRealServer(t *testing.T) {
	testenv.Needs(t, "debuginfod", "gcc")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.c"), []byte("int f(int x) { return x + 1; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gcc", "-g", "-shared", "-nostdlib", "-Wl,--build-id=0xabcdef0123456789", "-o", "a.so", "a.c")
	cmd.Dir = dir
	testenv.Run(t, cmd)
	var path string
	var err error
	for deadline := time.Now().Add(4 * time.Minute); path == ""; {
		if path, err = askServer(t, dir, deadline); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.Join(dir, "a.so"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}
