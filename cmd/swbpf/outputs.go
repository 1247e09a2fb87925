package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/profile"
)

// format is a way to write a profile.
type format struct {
	name       string
	extensions []string
	write      func(*profile.Profile, io.Writer) error
	open       string // the command that shows such a file, %s its path
	timed      bool   // it has the time of each sample, where that is known
	several    bool   // a file can have several events
}

var formats = []format{
	{"pprof", []string{".pb.gz", ".pprof", ".prof", ".pgo"}, (*profile.Profile).WritePprof, "go tool pprof %s", false, true},
	{"folded", []string{".folded", ".collapsed"}, (*profile.Profile).WriteFolded, "less %s", false, false},
	{"html", []string{".html", ".htm"}, (*profile.Profile).WriteHTML, "xdg-open %s", false, false},
	{"svg", []string{".svg"}, (*profile.Profile).WriteSVG, "xdg-open %s", false, false},
	{"speedscope", []string{".speedscope.json"}, (*profile.Profile).WriteSpeedscope, "speedscope %s", false, false},
	{"firefox", []string{".firefox.json"}, (*profile.Profile).WriteFirefox, "xdg-open https://profiler.firefox.com, and load %s there", true, false},
	{"perf", []string{".perf.txt", ".perf"}, (*profile.Profile).WritePerfScript, "less %s", true, true},
}

// formatHelp lists the formats, for the help of verbs that write them.
const formatHelp = `The extension of each -o tells its format, or --format does for all of them:

  pprof        .pb.gz, .pgo      for go tool pprof, 'swbpf view', go build -pgo
  html         .html             an interactive flame graph in one file
  svg          .svg              a flame graph for documents
  folded       .folded           a line for each distinct stack, and its count
  speedscope   .speedscope.json  for https://www.speedscope.app
  firefox      .firefox.json     for https://profiler.firefox.com, by time
  perf         .perf.txt         the text of 'perf script', sample by sample

A further .gz compresses the others than pprof, which always is. -o - writes to
standard output, in pprof's format unless --format names another. A URL,
-o http://collector:4318, is a server: it is sent the profile as OpenTelemetry's
protocol has it (OTLP/HTTP), or in the format of --format. The environment may
hold OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.`

// stdoutPath stands for standard output.
const stdoutPath = "-"

// formatOf picks the format by name, or by a path's extension if that is "".
func formatOf(path, name string) (f *format, compressed bool, err error) {
	switch {
	case isURL(path):
		if name == "" || name == otlpFormat.name {
			return &otlpFormat, false, nil
		}
		path = ""
	case strings.Contains(path, "://"):
		return nil, false, fmt.Errorf("output %q: a server is http://HOST:PORT or https://HOST:PORT", path)
	case name == "" && path == stdoutPath:
		name = formats[0].name
	}
	bare, compressed := strings.CutSuffix(path, ".gz")
	var names, known []string
	for i := range formats {
		f := &formats[i]
		if name == f.name {
			return f, compressed && i > 0, nil
		}
		for _, ext := range f.extensions {
			if name == "" && strings.HasSuffix(path, ext) {
				return f, false, nil
			}
			if name == "" && i > 0 && compressed && strings.HasSuffix(bare, ext) {
				return f, true, nil
			}
		}
		names, known = append(names, f.name), append(known, f.extensions[0])
	}
	if name != "" {
		return nil, false, fmt.Errorf("--format %q is none of %s", name, strings.Join(names, ", "))
	}
	return nil, false, fmt.Errorf("output %q: the extension tells the format, and is none of %s; or name it by --format", path, strings.Join(known, ", "))
}

// anyTimed reports whether an output has the times of samples.
func anyTimed(outs []*output) bool {
	return slices.ContainsFunc(outs, func(o *output) bool { return o.format.timed })
}

// output is a file that a recording will leave behind, standard output, or a server.
type output struct {
	path       string
	format     *format
	compressed bool
	file       *outFile   // nil for standard output and servers
	stdout     *os.File   // that, as it is when the program starts
	server     *server    // nil for files
	queue      *sendQueue // of what is sent to the server, nil to send it at once
	event      *outEvent  // which it is of, of several; nil for all
}

// toStdout reports whether the output is no file but standard output.
func (o *output) toStdout() bool { return o.path == stdoutPath }

// see says how to look at what was written, or nothing for standard output.
func (o *output) see(w io.Writer) {
	switch {
	case o.server != nil:
		fmt.Fprintf(w, "sent to %s\n", o.server)
	case o.toStdout() && o.event != nil:
		fmt.Fprintf(w, "standard output has %s; pprof's format has all events\n", o.event.names[0])
	case o.event != nil && o.event.number > 0:
		fmt.Fprintf(w, "wrote %s, of %s\n", o.path, o.event.names[o.event.number])
	case !o.toStdout():
		fmt.Fprintf(w, "wrote %s; see it with: %s\n", o.path, fmt.Sprintf(o.format.open, shellQuote(o.path)))
	}
}

// openOutputs makes sure, before anything is recorded, that every path can be
// written. formatName is that of all, or "" for those of their extensions.
func openOutputs(paths []string, formatName string) (outs []*output, err error) {
	defer func() {
		if err != nil {
			discardOutputs(outs)
		}
	}()
	for i, path := range paths {
		if path != stdoutPath && slices.Contains(paths[:i], path) {
			return outs, fmt.Errorf("output %s is given twice", path)
		}
		out, err := openOutput(outs, path, formatName)
		if err != nil {
			return outs, err
		}
		outs = append(outs, out)
	}
	return outs, nil
}

// openOutput opens one beside others.
func openOutput(others []*output, path, formatName string) (*output, error) {
	f, compressed, err := formatOf(path, formatName)
	if err != nil {
		if st, statErr := os.Stat(path); statErr == nil && st.IsDir() {
			err = errIsDir(path) // says more
		}
		return nil, err
	}
	if isURL(path) {
		server, err := newServer(path, f)
		if err != nil {
			return nil, err
		}
		return &output{path: path, format: f, server: server}, nil
	}
	if path == stdoutPath {
		if slices.ContainsFunc(others, (*output).toStdout) {
			return nil, errors.New("standard output can be written to once")
		}
		if _, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS); err == nil && f.name == "pprof" {
			return nil, errors.New("standard output is a terminal, and pprof's format is not for people; pass it on to a program or a file")
		}
		return &output{path: path, format: f, stdout: os.Stdout}, nil
	}
	file, err := newOutFile(path)
	if err == nil {
		err = checkOther(file, path, others)
	}
	if err != nil {
		return nil, err
	}
	return &output{path: path, format: f, compressed: compressed, file: file}, nil
}

// checkOther reports that the file of a path is that of one of the outputs. It discards
// the file then.
func checkOther(file *outFile, path string, outs []*output) error {
	for _, o := range outs {
		if o.file != nil && file.is(o.file) {
			file.discard()
			return fmt.Errorf("outputs %s and %s are one file", o.path, path)
		}
	}
	return nil
}

// checkServers makes sure, before anything is recorded, that servers take profiles. Where
// they are sent to again and again, one that does not answer may do so later.
func checkServers(outs []*output, again bool) error {
	for _, o := range outs {
		if o.server == nil {
			continue
		}
		err := o.server.check()
		if r := (*refusal)(nil); again && err != nil && !errors.As(err, &r) {
			fmt.Fprintf(os.Stderr, "swbpf: %s; going on\n", printable(err.Error()))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// discardOutputs removes what was not written.
func discardOutputs(outs []*output) {
	for _, o := range outs {
		if o.file != nil {
			o.file.discard()
		}
	}
}

// saveOutputs saves the profile everywhere. It returns the outputs that could be
// written, and what is wrong with the others.
func saveOutputs(outs []*output, p *profile.Profile) (saved []*output, failed error) {
	for _, o := range outs {
		if err := o.save(p); err != nil {
			failed = errors.Join(failed, err)
		} else {
			saved = append(saved, o)
		}
	}
	return saved, failed
}

// writeError says what could not be written, and why; nil remains nil.
func writeError(name string, err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // what there is besides is the name
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", name, err)
	}
	return err
}

// outEvent says which event an output is of, by its number, and which others are beside it.
type outEvent struct {
	number int
	names  []string // of all events
	paths  []string // of their files; none where there is the first event alone
}

// pathsByEvent are the names of files for each of several events, where a format has room for one: that
// of the first is as it was given.
func pathsByEvent(path string, events []string) []string {
	bare, ext := splitExtension(path)
	paths := []string{path}
	for _, event := range events[1:] {
		name := strings.Trim(notInNames().ReplaceAllString(event, "-"), "-.")
		own := bare + "." + name + ext
		for n := 2; slices.Contains(paths, own); n++ {
			own = fmt.Sprintf("%s.%s-%d%s", bare, name, n, ext)
		}
		paths = append(paths, own)
	}
	return paths
}

// notInNames matches what names of files had better not have.
var notInNames = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9._]+`) })

// byEvent replaces paths whose formats have room for one event by one for each, of
// several, and tells by path which one that is. A format that is wrong is told of elsewhere.
func byEvent(paths []string, formatName string, events []string) (all []string, of map[string]outEvent) {
	if len(events) < 2 {
		return paths, nil
	}
	of = map[string]outEvent{}
	for _, path := range paths {
		f, _, err := formatOf(path, formatName)
		if err != nil || f.several {
			all = append(all, path)
			continue
		}
		if path == stdoutPath || isURL(path) {
			of[path] = outEvent{names: events}
			all = append(all, path)
			continue
		}
		own := pathsByEvent(path, events)
		for i, p := range own {
			of[p] = outEvent{i, events, own}
		}
		all = append(all, own...)
	}
	return all, of
}

// tellEvents tells outputs which event they are of. paths are theirs, as they were when byEvent
// told that; named makes of those the paths that they have.
func tellEvents(outs []*output, paths []string, of map[string]outEvent, named func(path string) string) {
	for i, o := range outs {
		e, ok := of[paths[i]]
		if !ok {
			continue
		}
		own := e.paths
		e.paths = nil
		for _, path := range own {
			e.paths = append(e.paths, named(path))
		}
		o.event = &e
	}
}

// links lead from the page of an event to those of the others.
func (e *outEvent) links() *profile.Links {
	links := &profile.Links{}
	for i, path := range e.paths {
		links.Types = append(links.Types, profile.Link{Text: e.names[i], Address: url.PathEscape(filepath.Base(path)), Here: i == e.number})
	}
	return links
}

// save writes the profile and gives the file its name, or sends it.
func (o *output) save(p *profile.Profile) error {
	if o.event != nil {
		p = p.Events()[o.event.number]
	}
	if o.server != nil {
		body, err := o.server.encode(p)
		switch {
		case err != nil:
		case o.queue != nil:
			o.queue.add(body)
		default:
			ctx, cancel := context.WithTimeout(context.Background(), sendAll)
			defer cancel()
			err = o.server.send(ctx, body)
		}
		if err != nil {
			err = fmt.Errorf("send to %s: %w", o.server, err)
		}
		return err
	}
	return o.saveAs(func(w io.Writer) error {
		if o.event != nil && o.format.name == "html" {
			return p.WriteHTMLWithin(w, o.event.links())
		}
		return o.format.write(p, w)
	})
}

// saveAs is save for what write writes.
func (o *output) saveAs(write func(io.Writer) error) (err error) {
	name, to := o.path, io.Writer(o.file)
	if o.file == nil {
		name, to = "standard output", o.stdout
	}
	defer func() { err = writeError(name, err) }()
	w := bufio.NewWriterSize(to, 1<<16)
	if o.compressed {
		z := gzip.NewWriter(w)
		if err := errors.Join(write(z), z.Close()); err != nil {
			return err
		}
	} else if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil || o.file == nil {
		return err
	}
	return o.file.commit()
}
