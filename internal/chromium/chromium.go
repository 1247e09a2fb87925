package chromium

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
)

// chromium is a headless Chromium that is driven by the DevTools protocol over
// a pair of pipes: JSON messages, each ended by a NUL. One serves all tests.
type chromium struct {
	cmd *exec.Cmd
	dir string
	in  io.WriteCloser

	free []string // targets that no test has at present

	mu      sync.Mutex
	nextID  int
	waiting map[int]chan reply
	pages   map[string]*Page // by session
	broken  error
}

// Page is a page in Chromium that one test has.
type Page struct {
	T        *testing.T // that the page serves at present
	Requests string     // prefix of addresses that the page may ask for
	c        *chromium
	target   string
	session  string
	errors   []string // of the page: exceptions, console errors, requests; guarded by c.mu
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// browserTimeout is how long Chromium may take for what it must do, on however
// busy a machine: to start from a cold disk among it.
const browserTimeout = 4 * time.Minute

var theChromium *chromium

// Close ends Chromium, if a test has started it. It is for TestMain, after
// the tests.
func Close() {
	if c := theChromium; c != nil {
		c.in.Close()
		syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		c.cmd.Wait()
		os.RemoveAll(c.dir)
		theChromium = nil
	}
}

// New returns an empty page of the given size. The test is skipped where
// there is no Chromium, or fails if CI says that there is.
func New(t *testing.T, width, height int) *Page {
	t.Helper()
	if theChromium == nil {
		path, err := exec.LookPath("chromium-headless-shell") // takes half as much to start
		if err != nil {
			path, err = exec.LookPath("chromium")
		}
		if err != nil {
			testenv.Lacks(t, "no Chromium: %v", err)
		}
		if theChromium, err = startChromium(path); err != nil {
			t.Fatalf("starting Chromium: %v", err)
		}
	}
	b := &Page{T: t, Requests: "file:", c: theChromium}
	if n := len(b.c.free); n > 0 {
		b.target, b.c.free = b.c.free[n-1], b.c.free[:n-1]
	} else {
		var created struct{ TargetID string }
		b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &created)
		b.target = created.TargetID
	}
	var attached struct{ SessionID string }
	b.Call("Target.attachToTarget", map[string]any{"targetId": b.target, "flatten": true}, &attached)
	b.session = attached.SessionID
	b.c.mu.Lock()
	b.c.pages[b.session] = b
	b.c.mu.Unlock()
	t.Cleanup(func() { b.T = t; b.leave() })
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.Call(domain+".enable", nil, nil)
	}
	b.Resize(width, height)
	return b
}

// leave ends the session, and with it all that the test has set, such as the size. The page, empty again, is for the
// next test: to open another takes Chromium longer than most tests take. After a test that failed it is closed.
func (b *Page) leave() {
	b.T.Helper()
	failed := b.T.Failed()
	if !failed {
		b.Call("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	}
	session := b.session
	b.c.mu.Lock()
	delete(b.c.pages, session)
	b.c.mu.Unlock()
	b.session = ""
	if failed {
		b.Call("Target.closeTarget", map[string]any{"targetId": b.target}, nil)
		return
	}
	b.Call("Target.detachFromTarget", map[string]any{"sessionId": session}, nil)
	b.c.free = append(b.c.free, b.target)
}

func startChromium(path string) (*chromium, error) {
	dir, err := os.MkdirTemp("", "flamegraph")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--no-first-run", "--disable-field-trial-config", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
		"--user-data-dir="+dir, "about:blank")
	toRead, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, toWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{toRead, toWrite} // 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	toRead.Close()
	toWrite.Close()
	c := &chromium{cmd: cmd, dir: dir, in: in, waiting: map[int]chan reply{}, pages: map[string]*Page{}}
	go c.receive(out)
	return c, nil
}

func (c *chromium) receive(out io.Reader) {
	r := bufio.NewReaderSize(out, 1<<20)
	for {
		text, err := r.ReadBytes(0)
		c.mu.Lock()
		if err != nil {
			c.broken = fmt.Errorf("the browser ended: %w", err)
			for _, w := range c.waiting {
				close(w)
			}
			c.waiting = nil
			c.mu.Unlock()
			return
		}
		c.take(text[:len(text)-1])
		c.mu.Unlock()
	}
}

// take gives a message to who waits for it.
func (c *chromium) take(text []byte) {
	var message struct {
		ID        int
		Method    string
		SessionID string
		Params    json.RawMessage
		reply
	}
	if json.Unmarshal(text, &message) != nil {
		return
	}
	if w, ok := c.waiting[message.ID]; ok {
		delete(c.waiting, message.ID)
		w <- message.reply
	}
	if b := c.pages[message.SessionID]; b != nil {
		switch message.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded", "Network.requestWillBeSent":
			b.note(message.Method, message.Params)
		}
	}
}

// note keeps what must not happen: errors, and requests for anything but the
// page itself.
func (b *Page) note(method string, params json.RawMessage) {
	var p struct {
		Request struct{ URL string }
		Entry   struct{ Level string }
	}
	_ = json.Unmarshal(params, &p)
	switch {
	case method == "Network.requestWillBeSent" && (strings.HasPrefix(p.Request.URL, b.Requests) || strings.HasPrefix(p.Request.URL, "about:")):
	case method == "Log.entryAdded" && p.Entry.Level != "error":
	default:
		b.errors = append(b.errors, method+" "+string(params))
	}
}

// Call sends a command and decodes its result, if result is not nil.
func (b *Page) Call(method string, params, result any) {
	b.T.Helper()
	if err := b.call(method, params, result); err != nil {
		b.T.Fatalf("%s: %v", method, err)
	}
}

// call is Call for one who can do with a refusal, which is its error.
func (b *Page) call(method string, params, result any) error {
	b.T.Helper()
	if params == nil {
		params = struct{}{}
	}
	w := make(chan reply, 1)
	b.c.mu.Lock()
	b.c.nextID++
	message := map[string]any{"id": b.c.nextID, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	err := b.c.broken
	if err == nil {
		b.c.waiting[b.c.nextID] = w
	}
	b.c.mu.Unlock()
	text, marshalErr := json.Marshal(message)
	if err = errors.Join(err, marshalErr); err == nil {
		_, err = b.c.in.Write(append(text, 0))
	}
	if err != nil {
		b.T.Fatalf("%s: %v", method, err)
	}
	select {
	case r, ok := <-w:
		if !ok {
			b.T.Fatalf("%s: Chromium ended", method)
		}
		if r.Error != nil {
			return errors.New(r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				b.T.Fatalf("%s: %v", method, err)
			}
		}
		return nil
	case <-time.After(browserTimeout):
		b.T.Fatalf("%s: no answer", method)
	}
	return nil
}

// Open shows a file, with a part after "#", and waits until it is drawn.
func (b *Page) Open(path, hash string) {
	b.T.Helper()
	b.Call("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.Call("Page.navigate", map[string]any{"url": "file://" + path + hash}, nil)
	b.Wait("document.readyState === 'complete' && performance.getEntriesByName('drawn').length > 0")
}

// Visit shows a page of a server and waits until it is complete.
func (b *Page) Visit(url string) {
	b.T.Helper()
	b.Call("Page.navigate", map[string]any{"url": url}, nil)
	b.Wait("document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Eval evaluates an expression, which may be a promise, into result.
func (b *Page) Eval(expression string, result any) {
	b.T.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	params := map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}
	err := b.call("Runtime.evaluate", params, &r)
	for end := time.Now().Add(browserTimeout); err != nil && time.Now().Before(end); { // the page was just left for another
		time.Sleep(10 * time.Millisecond)
		err = b.call("Runtime.evaluate", params, &r)
	}
	if err != nil {
		b.T.Fatalf("%s: %v", expression, err)
	}
	if r.ExceptionDetails != nil {
		b.T.Fatalf("%s: %s", expression, r.ExceptionDetails.Exception.Description)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result.Value, result); err != nil {
			b.T.Fatalf("%s: %v in %s", expression, err, r.Result.Value)
		}
	}
}

// Text returns the value of an expression as text.
func (b *Page) Text(expression string) string {
	b.T.Helper()
	var s string
	b.Eval("String("+expression+")", &s)
	return s
}

// Wait polls until a condition holds.
func (b *Page) Wait(condition string) {
	b.T.Helper()
	deadline := time.Now().Add(browserTimeout)
	for {
		var ok bool
		b.Eval("Boolean("+condition+")", &ok)
		if ok {
			return
		}
		if time.Now().After(deadline) {
			b.T.Fatalf("never true: %s", condition)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Settle waits until what was asked for is on the screen.
func (b *Page) Settle() {
	b.T.Helper()
	b.Eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))", nil)
}

// Resize sets the size of the window.
func (b *Page) Resize(width, height int) {
	b.T.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

// Dark makes the reader one who prefers dark pages, or light ones.
func (b *Page) Dark(on bool) {
	b.T.Helper()
	value := "light"
	if on {
		value = "dark"
	}
	b.Call("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// Mouse sends an event of the mouse; clicks counts those of the left button.
func (b *Page) Mouse(kind string, x, y float64, clicks int) {
	b.T.Helper()
	button := "none"
	if clicks > 0 {
		button = "left"
	}
	b.Call("Input.dispatchMouseEvent", map[string]any{
		"type": kind, "x": x, "y": y, "button": button, "clickCount": clicks}, nil)
}

// Click clicks a point of the window.
func (b *Page) Click(x, y float64) {
	b.T.Helper()
	b.Mouse("mouseMoved", x, y, 0)
	b.Mouse("mousePressed", x, y, 1)
	b.Mouse("mouseReleased", x, y, 1)
	b.Settle()
}

// ClickOn clicks the middle of the element that a selector finds.
func (b *Page) ClickOn(selector string) {
	b.T.Helper()
	b.waitFor(selector)
	var at struct{ X, Y float64 }
	b.Eval(fmt.Sprintf(`(() => {
		const r = document.querySelector(%q).getBoundingClientRect();
		return { x: r.left + r.width / 2, y: r.top + r.height / 2 };
	})()`, selector), &at)
	b.Click(at.X, at.Y)
}

// keyCodes are those of keys that are no characters.
var keyCodes = map[string]int{
	"Enter": 13, "Escape": 27, "Backspace": 8, "Home": 36,
	"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}

// Press presses keys one after the other: characters or names of keys.
func (b *Page) Press(keys ...string) {
	b.T.Helper()
	for _, key := range keys {
		down := map[string]any{"type": "keyDown", "key": key}
		if code, ok := keyCodes[key]; ok {
			down["windowsVirtualKeyCode"] = code
			down["code"] = key
			if key == "Enter" {
				down["text"] = "\r"
			}
		} else {
			down["text"] = key
		}
		b.Call("Input.dispatchKeyEvent", down, nil)
		b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
	}
	b.Settle()
}

// TypeText puts text in where the focus is.
func (b *Page) TypeText(s string) {
	b.T.Helper()
	b.Call("Input.insertText", map[string]any{"text": s}, nil)
	b.Settle()
}

// Screenshot returns a PNG of the window. With SWBPF_SCREENSHOTS set to a
// directory, it is left there too.
func (b *Page) Screenshot(name string) []byte {
	b.T.Helper()
	b.Settle()
	var shot struct{ Data string }
	b.Call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.T.Fatal(err)
	}
	if dir := os.Getenv("SWBPF_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
			b.T.Fatal(err)
		}
	}
	return png
}

// WantText compares the text of the element that a selector finds, its blanks
// made single. It waits for the element, and for the page if it was just left
// for another.
func (b *Page) WantText(selector, want string) {
	b.T.Helper()
	b.waitFor(selector)
	got := b.Text(fmt.Sprintf("document.querySelector(%q).textContent.trim().replace(/\\s+/g, ' ')", selector))
	if got != want {
		b.T.Errorf("%s says %q, want %q", selector, got, want)
	}
}

// waitFor waits until the page is complete and has an element.
func (b *Page) waitFor(selector string) {
	b.T.Helper()
	b.Wait(fmt.Sprintf("document.readyState === 'complete' && document.querySelector(%q) !== null", selector))
}

// NoErrors fails the test if the page had an error or asked for anything.
func (b *Page) NoErrors() {
	b.T.Helper()
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	for _, e := range b.errors {
		b.T.Errorf("page: %s", e)
	}
}
