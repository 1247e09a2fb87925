package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/swbpf/swbpf/profile"
)

// otlpFormat is that of what is sent to a server, unless another is asked for.
var otlpFormat = format{name: "otlp", several: true, write: func(p *profile.Profile, w io.Writer) error {
	return p.WriteOTLP(w, resourceOf(os.Getenv))
}}

// otlpPath is where servers of OpenTelemetry's protocol take profiles.
const otlpPath = "/v1development/profiles"

// protobufType is the type of requests and answers in that protocol.
const protobufType = "application/x-protobuf"

// isURL reports whether an output is a server.
func isURL(path string) bool {
	return strings.HasPrefix(path, "http://") || strings.HasPrefix(path, "https://")
}

// server is who profiles are sent to.
type server struct {
	url    *url.URL
	header http.Header
	format *format
}

// newServer takes the URL of an output.
func newServer(path string, f *format) (*server, error) {
	u, err := url.Parse(path)
	if err != nil {
		return nil, fmt.Errorf("an output is no URL: %w", withoutURL(err))
	}
	if u.Host == "" { // String leaves out the slashes then
		return nil, fmt.Errorf("output %s://%s names no host: a server is http://HOST:PORT", u.Scheme, u.EscapedPath())
	}
	s := &server{url: u, header: http.Header{}, format: f}
	s.header.Set("User-Agent", "swbpf/"+version())
	s.header.Set("Content-Type", "application/octet-stream")
	if f == &otlpFormat {
		if strings.Trim(u.Path, "/") == "" {
			u.Path = otlpPath
		}
		s.header.Set("Content-Type", protobufType)
		s.header.Set("Content-Encoding", "gzip")
	}
	for _, name := range []string{"OTEL_RESOURCE_ATTRIBUTES", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_PROFILES_HEADERS"} {
		pairs, err := pairsOf(os.Getenv(name))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, p := range pairs {
			if strings.HasSuffix(name, "HEADERS") {
				s.header.Set(p.Key, p.Value)
			}
		}
	}
	return s, nil
}

// pairsOf reads what OpenTelemetry's variables hold: key=value,key=value, escaped as in
// URLs.
func pairsOf(text string) (pairs []profile.Label, err error) {
	for _, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || key == "" || err != nil {
			return nil, errors.New("it is not key=value,key=value with values escaped as in URLs")
		}
		pairs = append(pairs, profile.Label{Key: key, Value: value})
	}
	return pairs, nil
}

// resourceOf says which machine a profile is of, and of what service where the
// environment tells.
func resourceOf(getenv func(string) string) []profile.Label {
	given, _ := pairsOf(getenv("OTEL_RESOURCE_ATTRIBUTES")) // newServer has told what is wrong with it
	if name := getenv("OTEL_SERVICE_NAME"); name != "" {
		given = append(given, profile.Label{Key: "service.name", Value: name})
	}
	host, _ := os.Hostname()
	resource := []profile.Label{{Key: "host.name", Value: host}, {Key: "host.arch", Value: runtime.GOARCH}, {Key: "os.type", Value: "linux"}}
	for _, l := range given {
		known := false
		for i := range resource {
			if resource[i].Key == l.Key {
				resource[i].Value, known = l.Value, true
			}
		}
		if !known {
			resource = append(resource, l)
		}
	}
	return resource
}

// withoutURL leaves out the URL of an error, which may have a password.
func withoutURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// String returns the URL without a password.
func (s *server) String() string { return s.url.Redacted() }

// encode returns a profile as it is sent.
func (s *server) encode(p *profile.Profile) ([]byte, error) {
	var b bytes.Buffer
	if s.header.Get("Content-Encoding") == "" {
		err := s.format.write(p, &b)
		return b.Bytes(), err
	}
	z := gzip.NewWriter(&b)
	if err := errors.Join(s.format.write(p, z), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// How long one attempt to send may take, and all for a profile that is waited for. In
// between there are rests, each longer than the one before.
const (
	sendTimeout = 10 * time.Second
	sendAll     = 30 * time.Second
	sendRest    = 500 * time.Millisecond
	longestRest = 30 * time.Second
)

// refusal is what a server has against a profile.
type refusal struct {
	status string
	again  bool          // it may take it later
	after  time.Duration // when
	text   string
}

func (r *refusal) Error() string {
	if r.text == "" {
		return r.status
	}
	return r.status + ": " + r.text
}

// check makes sure, before anything is recorded, that there is a server who takes
// profiles. It is sent one without anything in it, or where others than OpenTelemetry's
// are sent, asked for what is there.
func (s *server) check() error {
	method := http.MethodHead
	var body []byte
	if s.format == &otlpFormat {
		method = http.MethodPost
		body, _ = s.encodeEmpty()
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	err := s.attempt(ctx, method, body)
	var r *refusal
	if errors.As(err, &r) && (s.format != &otlpFormat || r.again) {
		return nil // it is there, and may take it when it is asked to
	}
	if err != nil {
		return fmt.Errorf("output %s: %w", s, err)
	}
	return nil
}

func (s *server) encodeEmpty() ([]byte, error) {
	var b bytes.Buffer
	err := gzip.NewWriter(&b).Close()
	return b.Bytes(), err
}

// send sends a body until it is taken, refused for good, or the context ends. What it
// tries again for is told once.
func (s *server) send(ctx context.Context, body []byte) error {
	told := ""
	for rest := sendRest; ; rest = min(2*rest, longestRest) {
		err := s.attempt(ctx, http.MethodPost, body)
		if err == nil {
			return nil
		}
		wait := rest
		if r := (*refusal)(nil); errors.As(err, &r) {
			if !r.again {
				return err
			}
			wait = max(wait, r.after)
		}
		if ctx.Err() != nil {
			return err
		}
		if why := err.Error(); why != told {
			fmt.Fprintf(os.Stderr, "swbpf: send to %s: %s; trying again\n", s, printable(why))
			told = why
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// sendClient follows a redirection only where the same is sent there: after the others
// of them a GET would be answered, as if the profile had been taken.
var sendClient = &http.Client{CheckRedirect: func(req *http.Request, via []*http.Request) error {
	if req.Method != via[0].Method || len(via) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}}

// maxRedirects is how many redirections of one request are followed.
const maxRedirects = 5

// maxAnswer is how much is read of what a server answers, in bytes.
const maxAnswer = 64 << 10

// attempt sends a request once.
func (s *server) attempt(ctx context.Context, method string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = s.header.Clone()
	resp, err := sendClient.Do(req)
	if err != nil {
		return withoutURL(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // of no use when cut
	if resp.StatusCode/100 == 2 {
		return s.partial(resp, answer)
	}
	r := &refusal{status: resp.Status}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		r.again = true
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
			r.after = min(time.Duration(seconds)*time.Second, longestRest)
		}
	}
	switch t := resp.Header.Get("Content-Type"); {
	case strings.HasPrefix(t, "text/plain"):
		r.text, _, _ = strings.Cut(strings.TrimSpace(string(answer)), "\n")
	case t == protobufType: // a google.rpc.Status
		text, _ := messageField(answer, 2)
		r.text = string(text)
	}
	if to, err := resp.Location(); err == nil {
		r.text = "the server is said to be at " + to.Redacted()
	}
	return r
}

// partial returns what a server says that it did not take of a request which was all
// right otherwise: an ExportProfilesServiceResponse.
func (s *server) partial(resp *http.Response, answer []byte) error {
	if s.format != &otlpFormat || resp.Header.Get("Content-Type") != protobufType {
		return nil
	}
	success, _ := messageField(answer, 1)
	_, rejected := messageField(success, 1)
	text, _ := messageField(success, 2)
	if rejected == 0 {
		return nil
	}
	return &refusal{status: fmt.Sprintf("%s, but %s rejected", resp.Status, plural(int(min(rejected, 1<<31-1)), "profile")), text: string(text)}
}

// messageField returns the first field of a number in a protobuf message: its bytes or
// its value. Of a message that is none it returns nothing.
func messageField(b []byte, field uint64) (text []byte, value uint64) {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, 0
		}
		b = b[n:]
		v, n := binary.Uvarint(b)
		if n <= 0 || key&7 != 0 && key&7 != 2 {
			return nil, 0
		}
		b = b[n:]
		var body []byte
		if key&7 == 2 {
			if v > uint64(len(b)) {
				return nil, 0
			}
			body, b = b[:v], b[v:]
		}
		if key>>3 == field {
			return body, v
		}
	}
	return nil, 0
}
