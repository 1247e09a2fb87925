package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/swbpf/swbpf/profile"
)

// viewServer serves the pages of one profile on the loopback interface.
type viewServer struct {
	listener net.Listener

	profile *profile.Profile
	pprof   func() (map[string]http.Handler, error)

	mu    sync.Mutex
	types map[string]*viewType // those that were asked for
}

// viewType is what is shown of one type of samples.
type viewType struct {
	*viewPages
	flame func() ([]byte, error)
}

// listenLoopback listens at an address that must be of this machine alone.
func listenLoopback(address string) (*viewServer, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: %w", address, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("--listen %q: profiles are only served on a loopback address, such as 127.0.0.1:8080; from elsewhere, use ssh -L", address)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("--listen %q: %w", address, err)
	}
	return &viewServer{listener: l}, nil
}

// serve answers until the context ends.
func (s *viewServer) serve(ctx context.Context, p *profile.Profile) error {
	handler, err := s.handler(p)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 1 << 16}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(s.listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if err := server.Shutdown(ending); errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	} else if err != nil {
		return err
	}
	return nil
}

// handler returns all pages.
func (s *viewServer) handler(p *profile.Profile) (http.Handler, error) {
	s.profile = p
	s.types = map[string]*viewType{}
	if _, err := s.ofType(""); err != nil {
		return nil, err
	}
	s.pprof = sync.OnceValues(func() (map[string]http.Handler, error) {
		inPprof, err := p.Pprof()
		if err != nil {
			return nil, err
		}
		return pprofHandlers(inPprof, p.Meta.Target)
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.forType((*viewType).serveFlame))
	mux.HandleFunc("GET /top", s.forType((*viewType).serveTop))
	mux.HandleFunc("GET /function", s.forType((*viewType).serveFunction))
	mux.HandleFunc("GET /favicon.ico", serveIcon) // of pprof's pages, which name none
	mux.HandleFunc("GET /pprof/", s.servePprof)
	mux.Handle("GET /pprof", http.RedirectHandler("/pprof/", http.StatusMovedPermanently))
	return localOnly(mux), nil
}

// ofType returns what is shown of a type of samples, or with "" of the one
// that the profile was read for.
func (s *viewServer) ofType(name string) (*viewType, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.profile
	name = cmp.Or(name, p.Type)
	if t := s.types[name]; t != nil {
		return t, nil
	}
	if name != p.Type || len(p.Meta.Also) > 0 {
		var err error
		if p, err = p.OfType(name); err != nil {
			return nil, err
		}
	}
	pages, err := newViewPages(p)
	if err != nil {
		return nil, err
	}
	pages.setTypes(s.profile)
	flameTypes := pages.types("/", nil)
	if p.Meta.ByValue && len(flameTypes) == 2 && !s.profile.HasEvents() {
		flameTypes = nil // the page itself shows values or counts
	}
	t := &viewType{pages, sync.OnceValues(func() ([]byte, error) {
		var b bytes.Buffer
		err := p.WriteHTMLWithin(&b, &profile.Links{Pages: pages.links("/"), Types: flameTypes, Function: pages.address("function", nil)})
		return b.Bytes(), err
	})}
	s.types[name] = t
	return t, nil
}

// forType answers a request by what is shown of the type of samples that it
// names.
func (s *viewServer) forType(serve func(*viewType, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		t, err := s.ofType(r.URL.Query().Get("type"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		serve(t, w, r)
	}
}

// localOnly refuses requests that pages of others cause: those under a name
// that an attacker made to lead here (DNS rebinding), and those from other
// origins, as the browser tells.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopbackHost(r.Host) {
			http.Error(w, "this server answers as 127.0.0.1 or localhost only", http.StatusMisdirectedRequest)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			http.Error(w, "requests from other pages are refused; enter the address by hand", http.StatusForbidden)
			return
		}
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// loopbackHost reports whether a Host header names this machine by an address
// or name that cannot be another's.
func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (t *viewType) serveFlame(w http.ResponseWriter, _ *http.Request) {
	page, err := t.flame()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Write(page)
}

func serveIcon(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "image/svg+xml")
	io.WriteString(w, profile.Icon)
}

// servePprof serves pprof's interface below /pprof/.
func (s *viewServer) servePprof(w http.ResponseWriter, r *http.Request) {
	handlers, err := s.pprof()
	if err != nil {
		http.Error(w, "pprof's interface is not available: "+err.Error(), http.StatusInternalServerError)
		return
	}
	at := path.Clean(strings.TrimPrefix(r.URL.Path, "/pprof"))
	h := handlers[at]
	if h == nil {
		http.NotFound(w, r)
		return
	}
	// Its links are relative, so it need not know where it is.
	http.StripPrefix("/pprof", h).ServeHTTP(w, r)
}
