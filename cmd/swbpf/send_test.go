package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swbpf/swbpf/profile"
)

// collector is a server that profiles are sent to, which answers by a function.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   [][]byte // not compressed
}

func startCollector(t *testing.T, answer func(n int, w http.ResponseWriter)) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" && err == nil {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
				body, err = io.ReadAll(z)
			}
		}
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		c.requests, c.bodies = append(c.requests, r), append(c.bodies, body)
		n := len(c.requests)
		c.mu.Unlock()
		if answer != nil {
			answer(n, w)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// A profile is sent where and as OpenTelemetry's servers take it, with what the
// environment has for them.
func TestSend(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.folded"), []byte("program;main;work 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Scope-OrgID=team%201, authorization = Bearer a=b")
	t.Setenv("OTEL_SERVICE_NAME", "the-service")
	c := startCollector(t, nil)
	_, msg, status := runSwbpf(t, dir, "view", "in.folded", "-o", c.URL)
	if status != exitOK || len(c.requests) != 1 {
		t.Fatalf("status %d, %d requests: %s", status, len(c.requests), msg)
	}
	r := c.requests[0]
	for key, want := range map[string]string{
		"Content-Type": "application/x-protobuf", "X-Scope-OrgID": "team 1", "Authorization": "Bearer a=b",
	} {
		if got := r.Header.Get(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1development/profiles" {
		t.Errorf("%s %s", r.Method, r.URL)
	}
	for _, want := range []string{"work", "service.name", "the-service", "host.name"} {
		if !bytes.Contains(c.bodies[0], []byte(want)) {
			t.Errorf("%q was not sent", want)
		}
	}

	// Another format, to another place.
	if _, msg, status := runSwbpf(t, dir, "view", "in.folded", "--format", "folded", "-o", c.URL+"/ingest?name=x"); status != exitOK {
		t.Fatalf("status %d: %s", status, msg)
	}
	if got := c.requests[1].URL.String(); got != "/ingest?name=x" || string(c.bodies[1]) != "program;main;work 3\n" {
		t.Errorf("%s got %q", got, c.bodies[1])
	}
}

// What a server does not take is told of, in its own words; what it may take later is
// sent again.
func TestSendRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.folded"), []byte("program;main;work 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	answer := func(contentType string, status int, body string) func(int, http.ResponseWriter) {
		return func(n int, w http.ResponseWriter) {
			if n > 1 {
				return
			}
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, test := range []struct {
		answer   func(int, http.ResponseWriter)
		status   int
		requests int
		want     string
	}{
		{answer("text/plain; charset=utf-8", 401, "no such tenant\nand more"), exitFailure, 1, "401 Unauthorized: no such tenant\n"},
		{answer("application/x-protobuf", 400, "\x08\x03\x12\x03odd"), exitFailure, 1, "400 Bad Request: odd"},
		{answer("application/x-protobuf", 400, "\x12\xffodd"), exitFailure, 1, "400 Bad Request\n"},
		{answer("application/x-protobuf", 200, "\x0a\x07\x08\x01\x12\x03old"), exitFailure, 1, "200 OK, but 1 profile rejected: old"},
		{answer("text/plain", 503, "busy"), exitOK, 2, "503 Service Unavailable: busy; trying again"},
		{answer("text/plain", 429, ""), exitOK, 2, "trying again"},
	} {
		c := startCollector(t, test.answer)
		_, msg, status := runSwbpf(t, dir, "view", "in.folded", "-o", c.URL)
		if status != test.status || len(c.requests) != test.requests || !strings.Contains(msg, test.want) {
			t.Errorf("status %d, %d requests, want %d, %d and %q: %s", status, len(c.requests), test.status, test.requests, test.want, msg)
		}
	}
}

// A recording that nobody would take does not begin, unless somebody may later; the
// password in a URL is not told.
func TestSendToNobody(t *testing.T) {
	dir := t.TempDir()
	c := startCollector(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) })
	dead := startCollector(t, nil)
	dead.Close()
	for _, test := range []struct {
		url, want string
		later     bool
	}{
		{c.URL, "404 Not Found", false},
		{dead.URL, "connection refused", true},
		{strings.Replace(dead.URL, "//", "//me:secret@", 1), "me:xxxxx@", true},
		{"http://", "output http:// names no host", false},
		{"http://me:secret@", "output http:// names no host", false},
		{"http://me:secret@[::1", "missing ']'", false},
	} {
		for _, flag := range []string{"--every=1s", "--all"} {
			if test.later && flag != "--all" {
				continue
			}
			_, msg, status := runSwbpf(t, dir, "record", "-d", "1", flag, "-o", test.url)
			if status != exitCannot || !strings.Contains(msg, test.want) || strings.Contains(msg, "secret") || strings.Contains(msg, "samples") {
				t.Errorf("%s: status %d, no %q in %s", test.url, status, test.want, msg)
			}
		}
	}
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b,c")
	if _, msg, status := runSwbpf(t, dir, "record", "-d", "1", "-o", dead.URL); status != exitCannot || !strings.Contains(msg, "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("status %d: %s", status, msg)
	}
}

// Of what waits for a server that does not answer the oldest is given up, and all when
// it is waited for no longer.
func TestSendQueue(t *testing.T) {
	hold := make(chan struct{})
	c := startCollector(t, func(int, http.ResponseWriter) { <-hold })
	s, err := newServer(c.URL, &formats[1])
	if err != nil {
		t.Fatal(err)
	}
	q := newSendQueue(s)
	const piece = maxQueued / 8
	body := func(n byte) []byte { return bytes.Repeat([]byte{n}, piece) }
	q.add(body(0)) // on its way, or the first that waits
	waitFor(t, "the first to be sent", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.requests) == 1
	})
	for n := byte(1); n <= 10; n++ {
		q.add(body(n))
	}
	close(hold)
	if lost := q.finish(time.Now().Add(time.Minute)); lost != 2 {
		t.Errorf("%d lost, want 2", lost)
	}
	var got []byte
	for _, b := range c.bodies {
		got = append(got, b[0])
	}
	if want := []byte{0, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}

	c.Close()
	q = newSendQueue(s)
	q.add(body(0))
	q.add(body(1))
	if lost := q.finish(time.Now().Add(time.Millisecond)); lost != 2 {
		t.Errorf("%d lost of 2 when the server is gone", lost)
	}
}

// A server that is gone keeps nothing from another.
func TestSendQueues(t *testing.T) {
	hold := make(chan struct{})
	away := startCollector(t, func(int, http.ResponseWriter) { <-hold })
	c := startCollector(t, nil)
	p := parts{paths: []string{away.URL, c.URL}, format: "folded", queues: map[string]*sendQueue{}}
	p.save(profile.NewBuilder().Finish(profile.Meta{}, nil))
	waitFor(t, "the second server to get a profile", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.requests) == 1
	})
	close(hold)
	if saved, err := p.finish(profile.NewBuilder().Finish(profile.Meta{}, nil)); err != nil || len(saved) != 2 || len(away.requests) != 2 {
		t.Errorf("%d saved, %d requests to the first server, %v", len(saved), len(away.requests), err)
	}
}

// What is taken from a queue is not kept by it.
func TestSendQueueKeepsNothing(t *testing.T) {
	waiting := [][]byte{[]byte("a"), []byte("bc")}
	q := sendQueue{waiting: waiting, bytes: 3}
	if b := q.next(); string(b) != "a" || q.bytes != 2 || len(q.waiting) != 1 || waiting[0] != nil {
		t.Errorf("%q, %d bytes wait; kept %q", b, q.bytes, waiting[0])
	}
}

// What is redirected is sent to where it is said, and never asked for in its place: the
// answer to that would be taken for the profile's.
func TestSendRedirected(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.folded"), []byte("program;main;work 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		to := startCollector(t, nil)
		c := startCollector(t, func(_ int, w http.ResponseWriter) {
			w.Header().Set("Location", to.URL+"/there")
			w.WriteHeader(status)
		})
		_, msg, code := runSwbpf(t, dir, "view", "in.folded", "--format", "folded", "-o", c.URL)
		if status >= http.StatusTemporaryRedirect {
			if code != exitOK || len(to.bodies) != 1 || string(to.bodies[0]) != "program;main;work 3\n" {
				t.Errorf("%d: status %d, %d requests there: %s", status, code, len(to.bodies), msg)
			}
		} else if code != exitFailure || len(to.bodies) != 0 || !strings.Contains(msg, to.URL+"/there") {
			t.Errorf("%d: status %d, %d requests there: %s", status, code, len(to.bodies), msg)
		}
	}
}

// TestRecordSendLate begins a recording before there is a server to send it to.
func TestRecordSendLate(t *testing.T) {
	t.Parallel()
	needRecord(t)
	c := &collector{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests = append(c.requests, nil)
	}))
	address := c.Listener.Addr().String()
	c.Listener.Close()
	time.AfterFunc(2*time.Second, func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		c.Listener = l
		c.Start()
	})
	_, msg, status := runSwbpf(t, t.TempDir(), "record", "--every", "1s", "-d", "4", "-o", "http://"+address)
	c.Close()
	if parts := strings.Count(msg, "profiles written"); status != exitOK || parts != 1 || !strings.Contains(msg, fmt.Sprintf("%d profiles written", len(c.requests))) || !strings.Contains(msg, "going on") {
		t.Errorf("status %d, %d requests: %s", status, len(c.requests), msg)
	}
}

// TestRecordSend sends the parts of a recording, some of them when the server is back.
func TestRecordSend(t *testing.T) {
	t.Parallel()
	needRecord(t)
	const away = 3 // requests
	c := startCollector(t, func(n int, w http.ResponseWriter) {
		if n > 1 && n <= 1+away {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	dir := t.TempDir()
	_, msg, status := runSwbpf(t, dir, "record", "--every", "1s", "-F", "997", "-o", c.URL, "-o", "p.folded", "--", "sh", "-c", "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done; sleep 2")
	files, err := filepath.Glob(filepath.Join(dir, "p-*.folded"))
	if err != nil {
		t.Fatal(err)
	}
	if want := 1 + away + len(files); status != exitOK || len(files) < 2 || len(c.requests) != want {
		t.Errorf("status %d, %d requests, want %d: %s", status, len(c.requests), want, msg)
	}
	if len(c.bodies[0]) != 0 || !slices.ContainsFunc(c.bodies, func(b []byte) bool { return bytes.Contains(b, []byte("thread.name")) }) {
		t.Errorf("first %d bytes, and no names of threads in all", len(c.bodies[0]))
	}
}

func TestResourceOf(t *testing.T) {
	env := map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "host.name=other, a=%2C,,service.name=x", "OTEL_SERVICE_NAME": "y"}
	got := map[string]string{}
	for _, l := range resourceOf(func(key string) string { return env[key] }) {
		if _, twice := got[l.Key]; twice {
			t.Errorf("%s twice", l.Key)
		}
		got[l.Key] = l.Value
	}
	for key, want := range map[string]string{"host.name": "other", "a": ",", "service.name": "y", "os.type": "linux"} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
}

// An answer may be anything.
func TestMessageField(t *testing.T) {
	for _, test := range []struct {
		in    string
		field uint64
		text  string
		value uint64
	}{
		{"", 1, "", 0},
		{"\x08\x96\x01", 1, "", 150},
		{"\x08\x05\x12\x02ab", 2, "ab", 2},
		{"\x12\x05ab", 2, "", 0},
		{"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01ab", 2, "", 0},
		{"\x0d\x01\x02\x03\x04\x12\x01a", 2, "", 0}, // of a type that is in none of these
		{"\xff", 2, "", 0},
	} {
		if text, value := messageField([]byte(test.in), test.field); string(text) != test.text || value != test.value {
			t.Errorf("%q: %q, %d, want %q, %d", test.in, text, value, test.text, test.value)
		}
	}
}

// A context that has ended ends what is tried again.
func TestSendEnds(t *testing.T) {
	c := startCollector(t, func(_ int, w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) })
	s, err := newServer(c.URL, &otlpFormat)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var r *refusal
	if err := s.send(ctx, nil); err == nil || errors.As(err, &r) {
		t.Errorf("sent: %v", err)
	}
	if _, err := s.encode(&profile.Profile{}); err != nil {
		t.Error(fmt.Errorf("nothing to send: %w", err))
	}
}
