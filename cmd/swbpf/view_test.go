package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	pprof "github.com/google/pprof/profile"

	"github.com/swbpf/swbpf/internal/chromium"
	"github.com/swbpf/swbpf/profile"
)

type viewSymbols map[profile.Loc][]profile.Line

func (s viewSymbols) Symbolize(dst []profile.Line, loc profile.Loc) []profile.Line {
	return append(dst, s[loc]...)
}

// viewProfile is a small profile, with a source file that is there.
func viewProfile(t *testing.T, scale int64) *profile.Profile {
	t.Helper()
	source := filepath.Join(t.TempDir(), "app.c")
	text := "#include <x.h>\n" + strings.Repeat("// line\n", 8) + "static int hot(int n)\n{\n\tfor (;;)\n\t\tn += n << 1;\n}\n" +
		strings.Repeat("\n", 30) + "int main(void)\n{\n\treturn hot(1) < 2;\n}\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	b := profile.NewBuilder()
	app := b.Module(profile.Module{Path: "/usr/bin/app", Kind: profile.Native})
	libc := b.Module(profile.Module{Path: "/usr/lib/libc.so.6", Kind: profile.Native})
	kernel := b.Module(profile.Module{Path: profile.KernelPath, Kind: profile.Kernel})
	loc := func(m uint32, addr uint64) profile.Loc { return profile.Loc{Module: m, Addr: addr} }
	syms := viewSymbols{
		loc(app, 0x10): {{Function: "main", File: source, Line: 47, StartLine: 45}},
		loc(app, 0x20): {{Function: "hot(int)", File: source, Line: 13, StartLine: 10}},
		loc(app, 0x21): {{Function: "hot(int)", File: source, Line: 12, StartLine: 10}},
		loc(app, 0x30): {{Function: "<b>cold</b>", File: "/nowhere/cold.c", Line: 3, StartLine: 1}},
		loc(libc, 0x1): {{Function: "read"}},
		loc(kernel, 1): {{Function: "vfs_read"}},
	}
	th := profile.Thread{PID: 7, TID: 7, Comm: profile.Comm("app")}
	main := loc(app, 0x10)
	b.Add(th, []profile.Loc{loc(app, 0x20), main}, "", 60, 600)
	b.Add(th, []profile.Loc{loc(app, 0x21), main}, "", 15*scale, 150*scale)
	b.Add(th, []profile.Loc{loc(kernel, 1), loc(libc, 1), loc(app, 0x20), main}, "", 5, 50)
	b.Add(th, []profile.Loc{loc(app, 0x30), main}, "", 20, 200)
	return b.Finish(profile.Meta{Target: "app", Event: "cpu-clock", Tool: "swbpf test", FrequencyHz: 99,
		Value: profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 10}, syms)
}

// serveProfile serves a profile for the test's time and returns the address,
// without a slash.
func serveProfile(t *testing.T, p *profile.Profile) string {
	t.Helper()
	s, err := listenLoopback("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.serve(ctx, p) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + s.listener.Addr().String()
}

func viewPage(t *testing.T, base string) *chromium.Page {
	t.Helper()
	page := chromium.New(t, 1200, 760)
	page.Requests = base
	return page
}

func TestViewPages(t *testing.T) {
	t.Parallel()
	base := serveProfile(t, viewProfile(t, 1))
	b := viewPage(t, base)
	b.Visit(base + "/")
	b.Wait("performance.getEntriesByName('drawn').length > 0")
	b.WantText("nav.pages", "Flame graphFunctionspprof")
	b.Click(300, 105+2*19) // main, in the third row
	b.WantText("#crumbs", "allappmaincallers, callees, source")
	b.Screenshot("view-flame")
	b.ClickOn("#about-function")
	b.Wait("location.pathname === '/function' && document.querySelector('#callees')")
	b.WantText("h2", "main")
	b.WantText("#callers", "Called bynone")
	b.WantText("#callees tbody", "8080.0 %hot(int)app 2020.0 %<b>cold</b>app")
	b.ClickOn("#callees a")
	b.Wait("document.querySelector('h2')?.textContent === 'hot(int)'")
	b.WantText(".facts", "Module/usr/bin/app · native Self75 samples, 75.0 % Total80 samples, 80.0 %")
	b.WantText("#callers tbody", "8080.0 %mainapp")
	b.WantText("#callees tbody", "55.0 %readlibc.so.6")
	b.WantText(".source tbody", "10static int hot(int n) 11{ 151512 for (;;) 606513 n += n << 1; 14} 15 16 17 18 19")
	b.Screenshot("view-function")
	b.ClickOn("nav.pages a:nth-child(2)")
	b.Wait("location.pathname === '/top'")
	b.WantText("tbody", "7575.0 %8080.0 %hot(int)app 2020.0 %2020.0 %<b>cold</b>app 55.0 %55.0 %vfs_read[kernel.kallsyms] "+
		"00 %100100 %mainapp 00 %55.0 %readlibc.so.6")
	b.ClickOn("th:nth-child(2) a") // by total
	b.Wait("location.search.includes('total')")
	b.WantText("tbody tr:first-child", "00 %100100 %mainapp")
	b.Screenshot("view-top")
	b.ClickOn("input[name=q]")
	b.TypeText("libc")
	b.Press("Enter")
	b.Wait("location.search.includes('libc')")
	b.WantText("output", "1 of 5 functions, self 0 % of samples")
	b.WantText("tbody", "00 %55.0 %readlibc.so.6")
	b.ClickOn("tbody a")
	b.Wait("location.pathname === '/function'")
	b.WantText("#source", "Source lines The profile names no source file for this function.")
	b.Visit(base + "/function?name=%3Cb%3Ecold%3C%2Fb%3E&module=%2Fusr%2Fbin%2Fapp")
	b.WantText("h2", "<b>cold</b>")
	b.WantText("#source .none", "the file is not on this machine; what ran, by line:")
	b.NoErrors()
	b.Visit(base + "/pprof/")
	b.Wait("location.pathname === '/pprof/flamegraph' && document.title.includes('cpu')")
	b.Wait("document.querySelectorAll('#flamegraph .fill, #stack-chart .boxbg, #stack-holder .boxbg').length > 3")
	b.Screenshot("view-pprof")
}

// ask sends a request to the pages and returns the status and the answer.
func ask(t *testing.T, method, address string, header map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k == "Host" {
			r.Host = v
		}
		r.Header.Set(k, v)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if v := answer.Header.Get("Access-Control-Allow-Origin"); v != "" {
		t.Errorf("%s allows %s", address, v)
	}
	return answer.StatusCode, string(text)
}

func TestViewAnswers(t *testing.T) {
	base := serveProfile(t, viewProfile(t, 1))
	for _, test := range []struct {
		method, path string
		header       map[string]string
		status       int
		contains     string
	}{
		{"GET", "/", nil, 200, "<title>app"},
		{"GET", "/top", nil, 200, "&lt;b&gt;cold"},
		{"GET", "/function?name=nothing", nil, 404, "no function of this name"},
		{"GET", "/function?name=main&module=/other", nil, 404, "no function of this name"},
		{"GET", "/nothing", nil, 404, ""},
		{"GET", "/favicon.ico", nil, 200, "<svg"},
		{"GET", "/pprof/top", nil, 200, "hot(int)"},
		{"GET", "/pprof/peek?f=main", nil, 200, "hot(int)"},
		{"GET", "/pprof/source?f=hot", nil, 200, "static int hot"},
		{"GET", "/pprof/flamegraph", nil, 200, "cold"},
		{"GET", "/pprof/download", nil, 200, "\x1f\x8b"},
		{"GET", "/pprof/nothing", nil, 404, ""},
		{"POST", "/", nil, 405, ""},
		{"GET", "/", map[string]string{"Host": "evil.example"}, 421, ""},
		{"GET", "/pprof/top", map[string]string{"Host": "evil.example:80"}, 421, ""},
		{"GET", "/", map[string]string{"Host": "127.0.0.1.evil.example"}, 421, ""},
		{"GET", "/", map[string]string{"Host": "localhost:7"}, 200, ""}, // ssh -L 7:...
		{"GET", "/", map[string]string{"Host": "[::1]:7"}, 200, ""},
		{"GET", "/pprof/saveconfig?config=x", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, ""},
		{"GET", "/", map[string]string{"Sec-Fetch-Site": "none"}, 200, ""},
	} {
		status, text := ask(t, test.method, base+test.path, test.header)
		if status != test.status || !strings.Contains(text, test.contains) {
			t.Errorf("%s %s %v: %d, %.200s; want %d, %q", test.method, test.path, test.header, status, text, test.status, test.contains)
		}
	}
}

func TestListenLoopback(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "10.0.0.1:80", "example.com:80", "[::]:0", "127.0.0.1", "localhost:port"} {
		if s, err := listenLoopback(address); err == nil {
			s.listener.Close()
			t.Errorf("%s is listened at", address)
		}
	}
	for _, address := range []string{"127.0.0.1:0", "localhost:0", "127.8.9.10:0"} {
		s, err := listenLoopback(address)
		if err != nil {
			t.Error(err)
			continue
		}
		s.listener.Close()
	}
}

// A profile may name any file; only source is shown, and only what it names.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, secret, other := write("a.c", "x\r\ny\n"), write("shadow", "root:"), write("b.c", "")
	fifo, folder := filepath.Join(dir, "f.c"), filepath.Join(dir, "d.c")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Mkdir(folder, 0o700)); err != nil {
		t.Fatal(err)
	}
	s := sources{named: map[string]bool{good: true, secret: true, fifo: true, folder: true, "a.c": true, dir + "/none.c": true}}
	if lines, err := s.lines(good); err != nil || !slices.Equal(lines, []string{"x", "y"}) {
		t.Errorf("%q, %v", lines, err)
	}
	for _, path := range []string{secret, other, fifo, folder, "a.c", dir + "/none.c", ""} {
		if lines, err := s.lines(path); !errors.Is(err, errNotHere) {
			t.Errorf("%s: %q, %v", path, lines, err)
		}
	}
}

// The command, as a user runs it: what it prints, what it refuses, and how
// Ctrl-C ends it.
func TestViewCommand(t *testing.T) {
	dir := t.TempDir()
	folded := filepath.Join(dir, "in.folded")
	if err := os.WriteFile(folded, []byte("app;main;f 3\napp;main;g 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"view"}, 2, "0 files given"},
		{[]string{"view", filepath.Join(dir, "none")}, 1, "no such file"},
		{[]string{"view", "--listen", "0.0.0.0:0", folded}, 2, "only served on a loopback address"},
		{[]string{"view", "--sample-type", "cpu", folded}, 2, `"cpu"; there is samples`},
		{[]string{"view", folded, "-o", filepath.Join(dir, "x.txt")}, 2, "the extension tells the format"},
		{[]string{"view", folded, "-o", filepath.Join(dir, "x.pb.gz"), "-o", filepath.Join(dir, "x.svg")}, 0, "see it with: go tool pprof"},
		{[]string{"view", filepath.Join(dir, "x.svg")}, 1, "x.svg: this is a picture"},
		{[]string{"view", filepath.Join(dir, "x.pb.gz"), "-o", filepath.Join(dir, "y.folded")}, 0, "y.folded"},
	} {
		out, msg, status := runSwbpf(t, "", test.args...)
		if status != test.status || !strings.Contains(out+msg, test.want) {
			t.Errorf("%v: status %d, %s%s; want %d, %s", test.args, status, out, msg, test.status, test.want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "y.folded")); err != nil || string(text) != "app;main;f 3\napp;main;g 1\n" {
		t.Errorf("converted and back: %q, %v", text, err)
	}

	c := exec.Command(swbpf(t), "view", "-")
	c.Stdin = strings.NewReader("app;main;f 3\n")
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	address := ""
	for address == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "see it at "); ok {
			address, _, _ = strings.Cut(rest, ";")
		}
	}
	if address == "" {
		c.Process.Kill()
		t.Fatal("no address is printed")
	}
	if status, text := ask(t, "GET", address+"top", nil); status != 200 || !strings.Contains(text, "standard input") {
		t.Errorf("%d %s", status, text)
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		t.Errorf("at the end: %s", lines.Text())
	}
	if err := c.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
}

// Each type of samples of a profile has its own pages, which link to each
// other.
func TestViewTypes(t *testing.T) {
	src := &pprof.Profile{SampleType: []*pprof.ValueType{
		{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"},
		{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}}, DefaultSampleType: "inuse_space"}
	for i, name := range []string{"keeps", "drops"} {
		f := &pprof.Function{ID: uint64(i + 1), Name: name}
		l := &pprof.Location{ID: uint64(i + 1), Line: []pprof.Line{{Function: f}}}
		src.Function, src.Location = append(src.Function, f), append(src.Location, l)
		value := []int64{3, 3 << 20, 1, 1 << 20}
		if i == 1 {
			value = []int64{30, 5 << 20, 0, 0}
		}
		src.Sample = append(src.Sample, &pprof.Sample{Location: []*pprof.Location{l}, Value: value})
	}
	var file bytes.Buffer
	if err := src.Write(&file); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Read(&file, profile.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	base := serveProfile(t, p)
	b := viewPage(t, base)
	b.Visit(base + "/top")
	b.WantText("nav.types", "alloc_objectsalloc_spaceinuse_objectsinuse_space")
	b.WantText("nav.types [aria-current]", "inuse_space")
	b.WantText("tbody", "1.0 MiB100 %1.0 MiB100 %keeps")
	b.ClickOn("nav.types a:nth-child(2)")
	b.Wait("location.search.includes('type=alloc_space')")
	b.WantText("tbody", "5.0 MiB62.5 %5.0 MiB62.5 %drops 3.0 MiB37.5 %3.0 MiB37.5 %keeps")
	b.ClickOn("th:nth-child(2) a") // by total: the type stays
	b.Wait("location.search.includes('total')")
	b.WantText("nav.types [aria-current]", "alloc_space")
	b.ClickOn("tbody a")
	b.Wait("location.pathname === '/function'")
	b.WantText(".facts", "Modulenot known · native Self5.0 MiB alloc_space, 62.5 % Total5.0 MiB alloc_space, 62.5 %")
	b.ClickOn("nav.types a:nth-child(1)")
	b.Wait("location.search.includes('alloc_objects')")
	b.WantText(".facts", "Modulenot known · native Self30 objects, 90.9 % Total30 objects, 90.9 %")
	b.ClickOn("nav.pages a")
	b.Wait("location.pathname === '/' && performance.getEntriesByName('drawn').length > 0")
	b.WantText("nav.types [aria-current]", "alloc_objects")
	b.WantText("#about", "33 objects")
	b.NoErrors()
	if status, text := ask(t, "GET", base+"/top?type=nothing", nil); status != 404 || !strings.Contains(text, "inuse_space") {
		t.Errorf("status %d: %s", status, text)
	}
}
