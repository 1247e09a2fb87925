// Package debuginfod fetches separate debug files, and programs, by build ID from debuginfod
// servers, and keeps them on disk.
//
// Nothing is fetched unless a Client is made and handed to the symbolizer:
// a build ID tells a server what runs here. The directory has the layout of
// elfutils' own client, so that both find what the other has fetched:
// BUILDID/debuginfo and BUILDID/executable, empty for a file that no server has.
package debuginfod

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// ErrNotFound is returned for a build ID that no server knows.
var ErrNotFound = errors.New("no debuginfod server has the file")

// ErrTooLarge is returned for a file above Client.MaxSize.
var ErrTooLarge = errors.New("debug file is too large")

// Defaults of a Client.
const (
	DefaultTimeout = 90 * time.Second
	DefaultMaxSize = 4 << 30
	missLifetime   = 10 * time.Minute // how long a miss is believed, or a silence
)

// Client asks servers for debug files. It is safe for concurrent use; two
// goroutines that want the same file may both fetch it. A server that did not
// answer in time is not asked again for ten minutes: each file would take another
// Timeout.
type Client struct {
	URLs    []string      // of the servers, asked in order
	Dir     string        // of the files kept
	Timeout time.Duration // for one file from one server; 0: DefaultTimeout
	MaxSize int64         // of one file in bytes; 0: DefaultMaxSize

	silent sync.Map // *silence of servers that did not answer, by URL
}

// silence is that of a server.
type silence struct {
	since time.Time
	err   error
}

// FromEnvironment makes a Client as the variables of elfutils say:
// DEBUGINFOD_URLS, and DEBUGINFOD_CACHE_PATH or XDG_CACHE_HOME. It returns nil
// where no server is named.
func FromEnvironment() *Client {
	urls := strings.Fields(os.Getenv("DEBUGINFOD_URLS"))
	if len(urls) == 0 {
		return nil
	}
	return New(urls...)
}

// New makes a Client of these servers that keeps files where FromEnvironment
// would.
func New(urls ...string) *Client {
	return &Client{URLs: urls, Dir: cacheDir()}
}

func cacheDir() string {
	if d := os.Getenv("DEBUGINFOD_CACHE_PATH"); d != "" {
		return d
	}
	d, err := os.UserCacheDir()
	if err != nil { // no home directory
		d = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Geteuid()))
	}
	return filepath.Join(d, "debuginfod_client")
}

// DebugInfo returns the path of the debug file of a build ID, given in hex.
// The caller checks that the file is the right one. The error wraps
// ErrNotFound when no server has it, and tells of each server that failed.
func (c *Client) DebugInfo(ctx context.Context, buildID string) (path string, err error) {
	return c.file(ctx, buildID, "debuginfo")
}

// Executable is DebugInfo for the program or library itself.
func (c *Client) Executable(ctx context.Context, buildID string) (path string, err error) {
	return c.file(ctx, buildID, "executable")
}

// file returns the path of one of the files of a build ID, as servers call it.
func (c *Client) file(ctx context.Context, buildID, kind string) (path string, err error) {
	id, err := hex.DecodeString(buildID)
	if err != nil || len(id) == 0 || len(id) > 64 {
		return "", fmt.Errorf("%q is not a build ID", buildID)
	}
	dir := filepath.Join(c.Dir, hex.EncodeToString(id))
	path = filepath.Join(dir, kind)
	if st, err := os.Stat(path); err == nil {
		if st.Size() > 0 {
			return path, nil
		}
		if time.Since(st.ModTime()) < missLifetime {
			return "", fmt.Errorf("build ID %s: %w", buildID, ErrNotFound)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	var errs []error
	for _, server := range c.URLs {
		if s, ok := c.silent.Load(server); ok && time.Since(s.(*silence).since) < missLifetime {
			errs = append(errs, s.(*silence).err)
			continue
		}
		err := c.fetch(ctx, strings.TrimSuffix(server, "/")+"/buildid/"+hex.EncodeToString(id)+"/"+kind, path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, errSilent) && ctx.Err() == nil {
			c.silent.Store(server, &silence{time.Now(), err})
		}
		if !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return "", fmt.Errorf("build ID %s: %w", buildID, errors.Join(errs...))
	}
	// All servers said no: ask again later only. A miss that cannot be noted
	// costs another question.
	_ = os.WriteFile(path, nil, 0o600)
	return "", fmt.Errorf("build ID %s: %w", buildID, ErrNotFound)
}

// errSilent is of a server that did not answer in time.
var errSilent = errors.New("debuginfod server does not answer")

// errBadURL has nothing of the URL, which may have a password.
var errBadURL = errors.New("the address of a debuginfod server is no URL")

// fetch stores what a server has at url as path. Errors show no password.
func (c *Client) fetch(ctx context.Context, url, path string) error {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return errBadURL
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return whetherSilent(err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", req.URL.Redacted(), resp.Status)
	}
	if err := c.store(resp.Body, path); err != nil {
		return fmt.Errorf("%s: %w", req.URL.Redacted(), whetherSilent(err))
	}
	return nil
}

// whetherSilent marks an error that is for want of an answer in time.
func whetherSilent(err error) error {
	var n net.Error
	if errors.As(err, &n) && n.Timeout() {
		return fmt.Errorf("%w: %w", errSilent, err)
	}
	return err
}

// store writes a file whole or not at all.
func (c *Client) store(r io.Reader, path string) (err error) {
	limit := c.MaxSize
	if limit == 0 {
		limit = DefaultMaxSize
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".fetch-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	n, err := io.Copy(tmp, io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return err
	case n == 0:
		return io.ErrUnexpectedEOF
	case n > limit:
		return fmt.Errorf("more than %d bytes: %w", limit, ErrTooLarge)
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
