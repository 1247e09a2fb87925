package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
)

// part is a part of a recording that makes a profile of its own.
type part struct {
	began time.Time
	clock uint64            // CLOCK_MONOTONIC then, as samples have it
	lost  map[string]uint64 // by reason, before it began
}

// parts are what a recording with --every leaves behind: a file of each output for
// each part of it, named after the time at which that began.
type parts struct {
	every   time.Duration
	due     time.Time // when the part under way is over
	keep    int       // the files of an output that are kept; 0: all
	paths   []string
	events  map[string]outEvent // by path, where a recording is of several events
	format  string
	written int      // parts
	failed  int      // parts that could not be written, or not all files of which
	notes   []string // of the part before, which have been told

	own    map[string][]string   // by path of an output: the names of the files written last, no more than are kept
	queues map[string]*sendQueue // for servers, by path: who is away keeps no other waiting
}

// partTime is the time in the names of files, in UTC: they sort by it.
const partTime = "20060102T150405Z"

// minEvery is the shortest part, which the names tell apart.
const minEvery = time.Second

// splitExtension cuts off the extension that tells a format, or any where there is
// none like that.
func splitExtension(path string) (bare, ext string) {
	for i := range formats {
		for _, e := range formats[i].extensions {
			for _, e := range []string{e, e + ".gz"} {
				if strings.HasSuffix(path, e) && len(e) > len(ext) {
					ext = e
				}
			}
		}
	}
	if ext = cmp.Or(ext, filepath.Ext(path)); ext == filepath.Base(path) {
		ext = ""
	}
	return strings.TrimSuffix(path, ext), ext
}

// partPath is the name of an output's file for the part that began then. A server has
// the same for all.
func partPath(path string, began time.Time) string {
	if isURL(path) {
		return path
	}
	bare, ext := splitExtension(path)
	return bare + "-" + began.UTC().Format(partTime) + ext
}

// nameTime is the time that the files of a part are named after: when it began, unless
// there are files of that name, as when the clock was set back.
func (p *parts) nameTime(began time.Time) time.Time {
	for slices.ContainsFunc(p.pathsOf(began), func(path string) bool { return !isURL(path) && exists(path) }) {
		began = began.Add(time.Second)
	}
	return began
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// pathsOf are the names of all outputs for a part.
func (p *parts) pathsOf(began time.Time) (paths []string) {
	for _, path := range p.paths {
		paths = append(paths, partPath(path, began))
	}
	return paths
}

// check makes sure that files can be written and servers are there, and tells whether
// there are to be the times of samples.
func (p *parts) check() (timed bool, err error) {
	outs, err := openOutputs(p.pathsOf(time.Now()), p.format)
	if err == nil {
		err = checkServers(outs, true)
	}
	discardOutputs(outs)
	return anyTimed(outs), err
}

// save writes the files of a part, and removes those that are too old.
func (p *parts) save(prof *profile.Profile) (saved []*output) {
	named := p.nameTime(prof.Meta.Start)
	outs, err := openOutputs(p.pathsOf(named), p.format)
	tellEvents(outs, p.paths, p.events, func(path string) string { return partPath(path, named) })
	for _, o := range outs {
		o.queue = p.queueOf(o)
	}
	if err == nil {
		saved, err = saveOutputs(outs, prof)
		discardOutputs(outs)
	}
	for _, path := range p.paths {
		err = errors.Join(err, p.removeOld(path, named))
	}
	if err == nil {
		p.written++
	} else {
		p.failed++
		fmt.Fprintln(os.Stderr, "swbpf:", printable(err.Error()))
	}
	return saved
}

// queueOf returns what is sent to the server of an output with, nil for a file.
func (p *parts) queueOf(o *output) *sendQueue {
	if o.server == nil {
		return nil
	}
	q := p.queues[o.path]
	if q == nil {
		q = newSendQueue(o.server)
		p.queues[o.path] = q
	}
	return q
}

// finish writes the files of the last part, and waits until those are sent that are to
// be. It returns an error when parts are missing. Why they are has been told.
func (p *parts) finish(prof *profile.Profile) (saved []*output, err error) {
	saved = p.save(prof)
	if p.failed > 0 {
		err = fmt.Errorf("%d of %s could not be written", p.failed, plural(p.failed+p.written, "profile"))
	}
	lost, deadline := 0, time.Now().Add(sendAll)
	for path, q := range p.queues {
		if n := q.finish(deadline); n > 0 {
			lost += n
			saved = slices.DeleteFunc(saved, func(o *output) bool { return o.path == path })
		}
	}
	if lost > 0 {
		err = errors.Join(err, fmt.Errorf("%s could not be sent", plural(lost, "profile")))
	}
	return saved, err
}

// removeOld removes the oldest files of an output, also those of earlier recordings,
// where there are more than are kept with that of a part named after a time. Whatever the
// times in their names, as when the clock was set back, those written last are kept.
func (p *parts) removeOld(path string, named time.Time) error {
	if p.keep == 0 || isURL(path) {
		return nil
	}
	own := append(p.own[path], filepath.Base(partPath(path, named)))
	own = own[max(len(own)-p.keep, 0):]
	p.own[path] = own
	dir := filepath.Dir(path)
	files, err := os.ReadDir(dir) // in order
	if err != nil {
		return err
	}
	bare, ext := splitExtension(filepath.Base(path))
	files = slices.DeleteFunc(files, func(f os.DirEntry) bool {
		began, ok := strings.CutPrefix(f.Name(), bare+"-")
		began, isOurs := strings.CutSuffix(began, ext)
		_, err := time.Parse(partTime, began)
		return !ok || !isOurs || err != nil || !f.Type().IsRegular()
	})
	slices.SortStableFunc(files, func(a, b os.DirEntry) int {
		return slices.Index(own, a.Name()) - slices.Index(own, b.Name())
	})
	for _, f := range files[:max(len(files)-p.keep, 0)] {
		err = errors.Join(err, os.Remove(filepath.Join(dir, f.Name())))
	}
	return err
}

// untilDue returns how long to wait, at most d, so that sampling begins and a part ends
// in time.
func (r *recorder) untilDue(d time.Duration) time.Duration {
	if !r.hasBegun() {
		return min(d, time.Until(r.began))
	}
	if r.parts == nil {
		return d
	}
	return max(min(d, time.Until(r.parts.due)), time.Millisecond)
}

// begin says when the part that begins now is over: when it is time, unless that was
// missed, or the name of the part to follow would be the same.
func (p *parts) begin(now time.Time) {
	name := func(t time.Time) string { return t.UTC().Format(partTime) }
	for !p.due.After(now) || name(p.due) == name(now) {
		p.due = p.due.Add(p.every)
	}
}

// nextPart writes the profile of a part that is over, and begins the next. Samples
// wait in the rings meanwhile.
func (r *recorder) nextPart() error {
	p := r.parts
	now := time.Now()
	if p == nil || now.Before(p.due) {
		return nil
	}
	p.begin(now)
	r.precedence.rest()
	if err := r.countLost(); err != nil {
		return err
	}
	next := part{began: now, clock: procstate.Monotonic(), lost: maps.Clone(r.stats.LostByReason)}
	used := r.builder.UsedModules()
	r.stats.Modules = max(r.stats.Modules, r.modules.count(used))
	prof := r.build(r.meta())
	r.modules.forgetNames()
	r.modules.symbolizer.ForgetErrors()
	r.modules.forgetUnused(used)
	r.modules.notes = nil
	printNotes(os.Stderr, slices.DeleteFunc(slices.Clone(prof.Meta.Notes), func(note string) bool { return slices.Contains(p.notes, note) }))
	p.notes = prof.Meta.Notes
	p.save(prof)
	r.labels.forget()
	clear(r.memos[:])    // their stacks may have files that have been forgotten
	r.wakers.reset()     // likewise
	debug.FreeOSMemory() // what names took
	r.part = next
	return nil
}

// partDuration is how long the part has lasted.
func (r *recorder) partDuration() time.Duration {
	if all := r.session.Duration(); all != 0 { // it has ended
		return all - r.part.began.Sub(r.began)
	}
	return time.Duration(procstate.Monotonic() - r.part.clock)
}

// countLost takes over what has been lost so far.
func (r *recorder) countLost() error {
	st, err := r.session.Stats()
	if err != nil {
		return err
	}
	r.stats.Lost, r.stats.LostByReason = st.Lost(), st.LostByReason()
	return nil
}

// checkEvery checks what goes with --every.
func (o *recordOptions) checkEvery() error {
	switch {
	case o.every == 0 && o.keepParts != 0:
		return errors.New("--keep goes with --every")
	case o.every == 0:
		return nil
	case time.Duration(o.every) < minEvery:
		return fmt.Errorf("--every %v is less than %v", time.Duration(o.every), minEvery)
	}
	for _, path := range o.outputs {
		if path == stdoutPath {
			return errors.New("--every makes many profiles, and standard output can be written to once")
		}
		if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
			return fmt.Errorf("output %s is no file that --every could have others beside", path)
		}
	}
	return nil
}
