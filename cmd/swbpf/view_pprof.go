package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/pprof/driver"
	pprof "github.com/google/pprof/profile"
)

// pprofHandlers returns the pages of pprof's web interface for a profile, by
// path. They run external tools (dot, objdump) as pprof does, but ask no
// network and write no file, except for views that the user saves.
func pprofHandlers(p *pprof.Profile, name string) (handlers map[string]http.Handler, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pprof's interface: %v", r)
		}
	}()
	err = driver.PProf(&driver.Options{
		Flagset: &pprofFlags{
			set:  flag.NewFlagSet("pprof", flag.ContinueOnError),
			args: []string{"-http=127.0.0.1:1", "-no_browser", "-symbolize=none", name}},
		Fetch:         pprofFetcher{p},
		UI:            pprofUI{},
		HTTPTransport: noNetwork{},
		HTTPServer: func(args *driver.HTTPServerArgs) error {
			handlers = args.Handlers
			return nil
		},
	})
	if err == nil && handlers == nil {
		err = errors.New("pprof's interface did not start")
	}
	return handlers, err
}

// pprofFetcher hands the profile that is already there to pprof.
type pprofFetcher struct{ p *pprof.Profile }

func (f pprofFetcher) Fetch(string, time.Duration, time.Duration) (*pprof.Profile, string, error) {
	return f.p.Copy(), "", nil
}

// noNetwork refuses all requests.
type noNetwork struct{}

func (noNetwork) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%s: the viewer asks no network", r.URL.Host)
}

// pprofUI is one that has nobody before it. Errors go to pprof's pages.
type pprofUI struct{}

func (pprofUI) ReadLine(string) (string, error)     { return "", io.EOF }
func (pprofUI) Print(...any)                        {}
func (pprofUI) PrintErr(...any)                     {}
func (pprofUI) IsTerminal() bool                    { return false }
func (pprofUI) WantBrowser() bool                   { return false }
func (pprofUI) SetAutoComplete(func(string) string) {}

// pprofFlags are flags with arguments that do not come from the command line.
type pprofFlags struct {
	set   *flag.FlagSet
	args  []string
	usage []string
}

func (f *pprofFlags) Bool(name string, def bool, usage string) *bool {
	return f.set.Bool(name, def, usage)
}
func (f *pprofFlags) Int(name string, def int, usage string) *int { return f.set.Int(name, def, usage) }
func (f *pprofFlags) Float64(name string, def float64, usage string) *float64 {
	return f.set.Float64(name, def, usage)
}
func (f *pprofFlags) String(name, def, usage string) *string { return f.set.String(name, def, usage) }
func (f *pprofFlags) StringList(name, def, usage string) *[]*string {
	return &[]*string{f.set.String(name, def, usage)}
}
func (f *pprofFlags) ExtraUsage() string        { return strings.Join(f.usage, "\n") }
func (f *pprofFlags) AddExtraUsage(text string) { f.usage = append(f.usage, text) }

func (f *pprofFlags) Parse(usage func()) []string {
	f.set.Usage = usage
	f.set.SetOutput(io.Discard)
	if f.set.Parse(f.args) != nil {
		return nil
	}
	return f.set.Args()
}
