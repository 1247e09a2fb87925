package swbpf_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
)

// TestChromium compares what a page of Chromium and its worker run with what they have told of it: V8 as it is there has no symbols,
// and compresses pointers. SWBPF_CHROMIUM has other programs, separated by colons.
func TestChromium(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	programs := filepath.SplitList(os.Getenv("SWBPF_CHROMIUM"))
	if len(programs) == 0 {
		path, err := exec.LookPath("chromium")
		if err != nil {
			testenv.Lacks(t, "no Chromium: %v", err)
		}
		programs = []string{path}
	}
	for _, program := range programs {
		for name, flags := range waysOfChromium {
			if name == "interpreted" && !testenv.Long() {
				continue // as a mixed one begins
			}
			t.Run(name, func(t *testing.T) { testChromium(t, name, program, flags) })
		}
	}
}

// waysOfChromium are flags of V8 that have Chromium run JavaScript in one way, or as it comes.
var waysOfChromium = map[string]string{
	"interpreted": "--no-sparkplug,--no-opt,--no-maglev",
	"baseline":    "--always-sparkplug,--no-opt,--no-maglev",
	"mixed":       "", // with what V8 keeps of bytecode, and of optimised code, when asked to
}

func testChromium(t *testing.T, name, program, flags string) {
	page := serveWaits(t)
	cmd := exec.Command(program, append(flagsOfChromium(t, flags), page.URL+"/#20000")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	want := page.await(t, time.Minute)
	page.check(t, name, renderersOf(t, cmd.Process.Pid), want)
}

// flagsOfChromium are the arguments of a headless Chromium, with flags of V8.
func flagsOfChromium(t *testing.T, flags string) []string {
	return []string{"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--user-data-dir=" + t.TempDir(),
		"--js-flags=--no-enable-lazy-source-positions,--detailed-line-info," + flags}
}

// waitsPage serves a page that waits, with its worker, until the test ends, when both have told their calls.
type waitsPage struct {
	*httptest.Server
	told chan []jsCall
}

const isolatesOfPage = 2

func serveWaits(t *testing.T) *waitsPage {
	told, walked := make(chan []jsCall, isolatesOfPage), make(chan struct{})
	isPagesTurn := make(chan struct{})
	turn := sync.OnceFunc(func() { close(isPagesTurn) })
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<!doctype html><script src="/waits.js"></script>`)
	})
	mux.HandleFunc("/waits.js", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join("testdata", "walk", "waitsinpage.js"))
	})
	mux.HandleFunc("/turn", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-isPagesTurn:
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("/told", func(_ http.ResponseWriter, r *http.Request) {
		var calls []jsCall
		if err := json.NewDecoder(r.Body).Decode(&calls); err != nil {
			t.Error(err)
		}
		told <- calls
		turn()
		select {
		case <-walked:
		case <-r.Context().Done():
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		close(walked)
		server.Close()
	})
	return &waitsPage{server, told}
}

// await returns what both have told.
func (p *waitsPage) await(t *testing.T, longest time.Duration) (want [][]jsCall) {
	t.Helper()
	for range isolatesOfPage {
		select {
		case calls := <-p.told:
			want = append(want, calls)
		case <-time.After(longest):
			t.Fatalf("%d of %d isolates have told their calls", len(want), isolatesOfPage)
		}
	}
	return want
}

// check compares stacks that have functions of the page with what it has told.
func (p *waitsPage) check(t *testing.T, name string, stacks []swbpf.ThreadStack, want [][]jsCall) {
	t.Helper()
	compiledFrames, inlinedCalls := 0, 0
	for _, s := range stacks {
		got, compiled, inlined := jsCalls(&s)
		if len(got) == 0 || !strings.HasPrefix(got[0].File, p.URL) {
			continue
		}
		compiledFrames, inlinedCalls = compiledFrames+compiled, inlinedCalls+inlined
		if s.Err != nil {
			t.Errorf("thread %d: %v", s.TID, s.Err)
		}
		at := -1
		for i, calls := range want {
			if sameCalls(got, calls) {
				at = i
			}
		}
		if at < 0 {
			t.Errorf("thread %d: calls\n%v\nwant one of\n%v", s.TID, got, want)
			continue
		}
		want = append(want[:at], want[at+1:]...)
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
	switch { // as it comes, code may just have been given up
	case name == "interpreted" && compiledFrames > 0, name == "baseline" && compiledFrames == 0:
		t.Errorf("%d frames of compiled code", compiledFrames)
	case name == "mixed":
		t.Logf("%d frames of compiled code, %d inlined calls", compiledFrames, inlinedCalls)
	}
}

// sameCalls reports whether calls that were found are those that were told.
func sameCalls(got, told []jsCall) bool {
	for i := range got {
		if len(got) != len(told) || !got[i].is(told[i]) {
			return false
		}
	}
	return true
}

// renderersOf walks all threads of the processes that show a Chromium's pages.
func renderersOf(t *testing.T, chromium int) (stacks []swbpf.ThreadStack) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if group, err := syscall.Getpgid(pid); err != nil || group != chromium || !strings.Contains(string(line), "--type=renderer") {
			continue
		}
		ps, err := swbpf.WalkProcess(pid, swbpf.WalkOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stacks = append(stacks, ps.Stacks...)
	}
	return stacks
}
