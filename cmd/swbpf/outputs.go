package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/swbpf/swbpf/profile"
)

// format is a way to write a profile.
type format struct {
	name       string
	extensions []string
	write      func(*profile.Profile, io.Writer) error
	open       string // the command that shows such a file, %s its path
}

var formats = []format{
	{"pprof", []string{".pb.gz", ".pprof", ".prof"}, (*profile.Profile).WritePprof, "go tool pprof %s"},
	{"folded", []string{".folded", ".collapsed"}, (*profile.Profile).WriteFolded, "less %s"},
	{"html", []string{".html", ".htm"}, (*profile.Profile).WriteHTML, "xdg-open %s"},
	{"svg", []string{".svg"}, (*profile.Profile).WriteSVG, "xdg-open %s"},
	{"speedscope", []string{".speedscope.json"}, (*profile.Profile).WriteSpeedscope, "speedscope %s"},
}

// formatOf picks the format by a path's extension.
func formatOf(path string) (*format, error) {
	var known []string
	for i := range formats {
		for _, ext := range formats[i].extensions {
			if strings.HasSuffix(path, ext) {
				return &formats[i], nil
			}
		}
		known = append(known, formats[i].extensions[0])
	}
	return nil, fmt.Errorf("output %q: the extension tells the format, and is none of %s", path, strings.Join(known, ", "))
}

// output is a file that a recording will leave behind. It is written under a
// temporary name in the same directory and takes its own when complete, so
// that an old file is only replaced by a whole new one.
type output struct {
	path   string
	format *format
	tmp    *os.File
}

// openOutputs makes sure, before anything is recorded, that every path can be
// written.
func openOutputs(paths []string) (outs []*output, err error) {
	defer func() {
		if err != nil {
			discardOutputs(outs)
		}
	}()
	for _, path := range paths {
		f, err := formatOf(path)
		if err != nil {
			return outs, err
		}
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return outs, fmt.Errorf("output %s is a directory", path)
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return outs, fmt.Errorf("output: %w", err)
		}
		tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
		if err != nil {
			return outs, fmt.Errorf("output %s cannot be written: %w", path, err)
		}
		outs = append(outs, &output{path, f, tmp})
	}
	return outs, nil
}

// discardOutputs removes what was not written.
func discardOutputs(outs []*output) {
	for _, o := range outs {
		if o.tmp != nil {
			o.tmp.Close()
			os.Remove(o.tmp.Name())
			o.tmp = nil
		}
	}
}

// save writes the profile and gives the file its name.
func (o *output) save(p *profile.Profile) error {
	return o.saveAs(func(w io.Writer) error { return o.format.write(p, w) })
}

// saveAs is save for what write writes.
func (o *output) saveAs(write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", o.path, err)
		}
	}()
	w := bufio.NewWriterSize(o.tmp, 1<<16)
	if err := write(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := o.tmp.Chmod(0o644 &^ umask()); err != nil {
		return err
	}
	if err := o.tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(o.tmp.Name(), o.path); err != nil {
		return err
	}
	o.tmp = nil
	return nil
}
