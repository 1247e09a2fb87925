package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/perfdata"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// perfDataFormat is what a profile's Format is that was made of what perf has recorded.
const perfDataFormat = "perf.data"

// perfRecording is a file that perf record has written. It stays open: other events of it may be
// asked for later.
type perfRecording struct {
	file    *perfdata.File
	names   []string // of the events
	code    codeOptions
	written time.Time // last; zero where that is not known
}

// codeOptions say where to look for what a recording of perf's tells of by its build ID alone.
type codeOptions struct {
	names symbols.Options
	fetch func(buildID string) (path string, err error) // a program or library; nil where none shall be fetched
}

// isPerfData reports whether a file begins as those of perf record do.
func isPerfData(head []byte) bool {
	return bytes.HasPrefix(head, []byte(perfdata.Magic)) || bytes.HasPrefix(head, []byte("2ELIFREP"))
}

// isPackedPerfData reports whether what begins so is such a file that gzip has compressed.
func isPackedPerfData(head []byte) bool {
	if !bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return false
	}
	z, err := gzip.NewReader(bytes.NewReader(head))
	if err != nil {
		return false
	}
	begin := make([]byte, len(perfdata.Magic))
	_, err = io.ReadFull(z, begin)
	return err == nil && isPerfData(begin)
}

// openPerfData opens a recording of perf, of which head was read ahead. One that comes from a pipe, or
// compressed, is put into a temporary file, as what is said of it as a whole is at its end. parts are
// further files of its records.
func openPerfData(in *bufio.Reader, from *os.File, packed bool, parts []perfdata.Part, code codeOptions) (*perfRecording, error) {
	r := &perfRecording{code: code}
	st, err := from.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().IsRegular() {
		r.written = st.ModTime()
	}
	if packed || !st.Mode().IsRegular() {
		var whole io.Reader = in
		if packed {
			if whole, err = gzip.NewReader(in); err != nil {
				return nil, err
			}
		}
		if from, err = spool(whole); err != nil {
			return nil, err
		}
		if st, err = from.Stat(); err != nil {
			return nil, err
		}
	}
	if r.file, err = perfdata.Open(from, st.Size(), parts...); err != nil {
		return nil, err
	}
	r.names = eventNames(r.file.Events)
	return r, nil
}

// openDir opens what perf record --threads has written to a directory: the file with the header, and those of
// further records.
func openDir(dir string) (head *os.File, parts []perfdata.Part, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if e.Name() != "data" && !strings.HasPrefix(e.Name(), "data.") || !e.Type().IsRegular() {
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		st, err := f.Stat()
		if err != nil {
			return nil, nil, err
		}
		if e.Name() == "data" {
			head = f
		} else {
			parts = append(parts, perfdata.Part{Name: e.Name(), R: f, Size: st.Size()})
		}
	}
	if head == nil {
		return nil, nil, errors.New("a directory, and none that 'perf record --threads' has written")
	}
	return head, parts, nil
}

// spool puts what is read into a temporary file, which is gone with the program.
func spool(in io.Reader) (*os.File, error) {
	f, err := os.CreateTemp("", "swbpf-perf-data-")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err == nil {
		_, err = io.Copy(f, in)
	}
	if err != nil {
		return nil, fmt.Errorf("put it into a temporary file: %w", err)
	}
	return f, nil
}

// eventNames are what the events of a recording are called: by perf's names, without terms of how they were
// recorded and without modifiers ("cycles:ppp" is "cycles"), except where several would be called the same.
func eventNames(events []perfdata.Event) []string {
	names := make([]string, len(events))
	short := map[string]int{}
	for i := range events {
		if names[i] = shortEventName(&events[i]); !events[i].IsDummy() {
			short[names[i]]++
		}
	}
	for i := range events {
		if short[names[i]] > 1 {
			names[i] = events[i].Name
		}
	}
	return names
}

func shortEventName(e *perfdata.Event) string {
	name := e.Name
	if kind := e.KindName(); strings.HasPrefix(name, kind+"/") {
		return kind
	}
	if i := strings.LastIndexByte(name, ':'); i > 0 && strings.Trim(name[i+1:], "ukhGHpPSDWIeb") == "" {
		return name[:i]
	}
	return name
}

// pickEvent returns the index of the event of a name.
func (r *perfRecording) pickEvent(name string) (int, error) {
	var names []string
	for i, e := range r.file.Events {
		if e.IsDummy() {
			continue
		}
		if name == e.Name || name == r.names[i] || name == shortEventName(&e) {
			return i, nil
		}
		names = append(names, r.names[i])
	}
	return 0, fmt.Errorf("%w: %q; it has %s", profile.ErrNoSuchType, name, strings.Join(names, ", "))
}

// profile makes the profile of all events that have samples, or of one that is asked for.
func (r *perfRecording) profile(o profile.ReadOptions) (*profile.Profile, error) {
	only := allEvents
	if o.SampleType != "" {
		var err error
		if only, err = r.pickEvent(o.SampleType); err != nil {
			return nil, err
		}
	}
	im, err := r.read(only, o)
	if err != nil {
		return nil, err
	}
	if len(im.counted()) == 0 {
		return nil, errors.New("perf has recorded no samples")
	}
	return im.finish(o), nil
}

// Values of perfImport.only, and of importedEvent.number.
const (
	allEvents   = -1
	notNumbered = -1
)

// maxImported is how many events are read at a time: profile.Thread.Event has room for no more.
const maxImported = math.MaxUint8 + 1

// importedEvent is what was read of an event.
type importedEvent struct {
	number  int    // by which the builder knows it; notNumbered before its first sample
	samples uint64 // also of an event that is not asked for
	period  uint64 // of all samples, while that is one
	varies  bool
}

// counterKey says whose value of a counter it is: of an ID, and of a thread where the values are by thread.
type counterKey struct {
	id  uint64
	tid int32
}

// perfImport makes a profile of the samples of a recording.
type perfImport struct {
	*pipeline
	r     *perfRecording
	only  int // index of the event that is asked for; allEvents
	table *loader.Recorded
	files *pastFiles
	arch  *procstate.Arch // of the machine; nil when it is none that is known

	comms    map[int32][16]byte // of threads
	born     map[int32]uint64   // when processes began to run their program, of those that did in the recording
	events   []importedEvent
	numbered int                   // of events
	counters map[counterKey]uint64 // the last value of each that samples have told
	first    uint64                // times of samples
	last     uint64
	sum      uint64 // of the periods
	leftOut  uint64 // samples of events beyond maxImported
	lost     uint64 // records, as the rings tell

	lostSamples uint64 // as the counters of events tell
	bad         uint64 // records that are malformed
	strayed     uint64 // call chains that were cut
	cut         bool
	late        uint64
	traced      uint64

	raw    perfdata.Sample
	sample loader.Sample
	region [1]procstate.Region
	chain  []uint64 // the user part of the stack, as the sample has it; nil where that is to be walked
}

// read reads the records, and counts the samples of an event, or of allEvents.
func (r *perfRecording) read(only int, o profile.ReadOptions) (*perfImport, error) {
	b := profile.NewBuilder()
	labels := makeLabeller(b)
	labels.past = map[uint64]string{}
	im := &perfImport{
		pipeline: makePipeline(b, r.code.names, labels), r: r, only: only, arch: archOfMachine(r.file.Machine),
		comms: map[int32][16]byte{0: profile.Comm("swapper")}, born: map[int32]uint64{},
		events: slices.Repeat([]importedEvent{{number: notNumbered}}, len(r.file.Events)), counters: map[counterKey]uint64{},
	}
	im.table = loader.NewRecorded(cmp.Or(im.arch, procstate.HostArch(), procstate.AMD64))
	im.files = newPastFiles(r)
	im.procs, im.past, im.user = im.table, true, im.addUser
	im.modules.pastMap = func(pid int32) *os.File { return im.files.perfMap(pid, im.born[pid]) }
	im.modules.pastKernel = newPastKernel(im.files)
	if o.Times {
		b.KeepTimes()
	}
	records := r.file.Records()
	defer records.Close()
	for {
		rec, err := records.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = im.take(rec)
		}
		if errors.Is(err, perfdata.ErrMalformed) {
			im.bad++
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	im.cut = records.Cut || r.file.Cut
	im.late, im.traced = records.Late, records.Traced
	im.bad += records.Malformed
	return im, nil
}

// archOfMachine returns the architecture that uname -m calls so, nil where that is not known. What
// was killed before it could say what machine it is on was mostly recorded here.
func archOfMachine(machine string) *procstate.Arch {
	switch machine {
	case "":
		return procstate.HostArch()
	case "x86_64":
		return procstate.AMD64
	case "aarch64", "arm64":
		return procstate.ARM64
	}
	if strings.HasPrefix(machine, "i") && strings.HasSuffix(machine, "86") {
		return procstate.I386
	}
	return nil
}

// take deals with a record. An error that is no ErrMalformed ends reading.
func (im *perfImport) take(rec *perfdata.Record) error {
	switch rec.Type {
	case perfdata.TypeSample:
		return im.takeSample(rec)
	case perfdata.TypeMmap, perfdata.TypeMmap2:
		return im.takeMmap(rec)
	case perfdata.TypeComm:
		return im.takeComm(rec)
	case perfdata.TypeFork, perfdata.TypeExit:
		return im.takeTask(rec)
	case perfdata.TypeLost, perfdata.TypeLostSamples:
		n, err := rec.Lost()
		switch {
		case rec.Type == perfdata.TypeLost:
			im.lost += n
		case rec.Misc&perfdata.MiscLostByFilter == 0:
			im.lostSamples += n
		}
		return err
	case perfdata.TypeCgroup:
		id, path, err := rec.Cgroup()
		if err == nil {
			im.labels.past[id] = string(path)
		}
		return err
	case perfdata.TypeKsymbol:
		return im.takeKsymbol(rec)
	}
	return nil
}

func (im *perfImport) takeKsymbol(rec *perfdata.Record) error {
	var k perfdata.Ksymbol
	if err := rec.Ksymbol(&k); err != nil || k.Kind != unix.PERF_RECORD_KSYMBOL_TYPE_BPF {
		return err
	}
	im.modules.onBPF(&loader.SidebandEvent{Addr: k.Addr, Len: uint64(k.Len), Gone: k.Unregister, Symbol: string(k.Name)})
	return nil
}

func (im *perfImport) takeComm(rec *perfdata.Record) error {
	pid, tid, comm, err := rec.Comm()
	if err != nil {
		return err
	}
	e := loader.SidebandEvent{Kind: loader.SidebandComm, PID: pid, TID: tid, Comm: string(comm)}
	if rec.Misc&perfdata.MiscCommExec != 0 {
		e.Kind, e.TID = loader.SidebandExec, pid
		im.born[pid] = rec.Time
	}
	im.table.Apply(&e)
	im.comms[tid] = profile.Comm(e.Comm)
	return nil
}

// takeTask deals with a thread that began, or ended. What perf itself tells of those that ran before
// has no time.
func (im *perfImport) takeTask(rec *perfdata.Record) error {
	pid, tid, parentPID, parentTID, err := rec.Task()
	if err != nil {
		return err
	}
	e := loader.SidebandEvent{Kind: loader.SidebandExit, PID: pid, TID: tid, PPID: parentPID}
	if rec.Type == perfdata.TypeFork {
		e.Kind = loader.SidebandFork
		if comm, ok := im.comms[parentTID]; ok {
			im.comms[tid] = comm
		}
		if pid != parentPID && (rec.Time == 0 || rec.Misc&perfdata.MiscForkExec != 0) {
			e.PPID = 0
		} else if pid != parentPID {
			im.born[pid] = rec.Time
		}
	}
	im.table.Apply(&e)
	return nil
}

// takeMmap adds a mapping of code.
func (im *perfImport) takeMmap(rec *perfdata.Record) error {
	var m perfdata.Mmap
	if err := rec.Mmap(&m); err != nil {
		return err
	}
	switch {
	case m.IsForData || m.HasProt && m.Prot&unix.PROT_EXEC == 0:
		return nil
	case rec.Mode() == perfdata.ModeKernel:
		im.modules.pastKernel.mapped(&m)
		return nil
	case rec.Mode() != perfdata.ModeUser && rec.Mode() != perfdata.ModeUnknown || m.PID < 0:
		return nil // a guest's
	}
	ref := procstate.FileRef{
		PID: m.PID, TID: m.TID, Path: string(m.Path), Start: m.Addr, End: m.Addr + m.Len,
		Dev: unix.Mkdev(m.Major, m.Minor), Inode: m.Inode, Gen: m.Generation, HasGen: m.HasFile,
	}
	offset := m.Offset
	var image *procstate.Image
	var err error
	if ref.Path == "[vdso]" {
		offset = 0
		image, err = im.files.vdso(m.BuildID)
	} else if procstate.HasFile(ref.Path) {
		image, err = im.files.open(&ref, m.BuildID)
	}
	im.table.Map(&ref, offset, image, err)
	return nil
}

// counted are the indices of the events that are in the profile, in the order of the recording: those that have
// samples, and the one that was asked for if any has.
func (im *perfImport) counted() (events []int) {
	any := false
	for i := range im.events {
		any = any || im.events[i].samples > 0
		if im.events[i].number != notNumbered || i == im.only {
			events = append(events, i)
		}
	}
	if !any {
		return nil
	}
	return events
}

// describe says how an event was sampled, and what the samples count.
func (im *perfImport) describe(event int) profile.Event {
	e, read := &im.r.file.Events[event], &im.events[event]
	out := profile.Event{Name: im.r.names[event]}
	if e.IsFrequency() {
		out.FrequencyHz = int(min(e.Period, 1<<30))
	}
	if !read.varies && read.period == 0 {
		return out
	}
	out.Value = profile.ValueType{Type: out.Name, Unit: "count"}
	if e.CountsTime() {
		out.Value = profile.ValueType{Type: "cpu", Unit: "nanoseconds"}
	}
	if out.ByValue = read.varies; !read.varies {
		out.Period = int64(read.period)
	}
	return out
}

// finish names the profile.
func (im *perfImport) finish(o profile.ReadOptions) *profile.Profile {
	f, counted := im.r.file, im.counted()
	m := profile.Meta{Target: im.target(o), CPUs: f.CPUs, Clock: int64(im.first), Help: map[string]string{}}
	withRegs := true
	numbers := make([]uint8, im.numbered)
	for i, event := range counted {
		if n := im.events[event].number; n != notNumbered {
			numbers[n] = uint8(i)
		}
		withRegs = withRegs && f.Events[event].RegsUser != 0
		if e := im.describe(event); i > 0 {
			m.Also = append(m.Also, e)
		} else {
			m.Event, m.FrequencyHz, m.Value, m.Period, m.ByValue = e.Name, e.FrequencyHz, e.Value, e.Period, e.ByValue
		}
	}
	im.builder.RenumberEvents(numbers)
	if withRegs { // else it is not known which stacks are whole
		m.Tool = strings.TrimSpace("perf " + f.Tool)
	}
	if f.Release != "" {
		m.Kernel = strings.TrimSpace(f.Release + " " + f.Machine)
	}
	if im.last > im.first && im.last-im.first < 1<<62 {
		m.Duration = time.Duration(im.last - im.first)
	}
	for reason := range unwind.NumReasons {
		m.Help[reason.String()] = reason.Help()
	}
	for reason, help := range perfHelp {
		m.Help[reason] = help
	}
	if lost := max(im.lost, im.lostSamples); lost > 0 { // both tell of the same
		m.Lost = []profile.Tally{{Name: lostByPerf, N: int64(min(lost, 1<<62))}}
	}
	p := im.builder.Finish(m, im.modules)
	im.modules.noteErrors()
	if note := im.modules.pastKernel.note(); note != "" {
		im.modules.notes = append(im.modules.notes, note)
	}
	p.Meta.Notes = slices.Concat(im.notes(counted), im.files.notes(), im.modules.notes)
	p.Format, p.Type = perfDataFormat, m.Event
	for i := range f.Events {
		if im.events[i].samples > 0 && (im.only != allEvents || im.events[i].number != notNumbered) || i == im.only {
			p.Types = append(p.Types, profile.ValueType{Type: im.r.names[i], Unit: "count"})
		}
	}
	p.SetReader(im.r.profile)
	im.files.images.Close()
	return p
}

// target is what was recorded, by the command line of perf.
func (im *perfImport) target(o profile.ReadOptions) string {
	return cmp.Or(o.Name, perfDataFormat)
}

// notes tells what is not as it should be, of so many events.
func (im *perfImport) notes(events []int) (notes []string) {
	f := im.r.file
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if f.Unended {
		note("perf did not come to write the end of the recording")
	}
	if im.cut {
		note("the recording is cut off")
	}
	if im.bad > 0 {
		note("%s of the recording cannot be understood", plural(im.bad, "record"))
	}
	if im.late > 0 {
		note("%s came too late for their place in time: frames may be missing, as mappings were not known", plural(im.late, "record"))
	}
	if im.traced > 0 || f.HasTrace {
		note("the trace of the processor (AUXTRACE) is left out")
	}
	if im.leftOut > 0 {
		note("%s of further events left out: no more than %d are read at a time, or one by --sample-type", plural(im.leftOut, "sample"), maxImported)
	}
	const byKernel, without = 1, 2
	var how [3][]string // names of the events whose stacks are so
	for _, event := range events {
		switch e := &f.Events[event]; {
		case e.RegsUser != 0:
		case e.SampleType&unix.PERF_SAMPLE_CALLCHAIN != 0:
			how[byKernel] = append(how[byKernel], im.r.names[event])
		default:
			how[without] = append(how[without], im.r.names[event])
		}
	}
	of := func(names []string) string {
		if len(names) == len(events) {
			return ""
		}
		return "of " + strings.Join(names, ", ") + ": "
	}
	if names := how[byKernel]; len(names) > 0 {
		note("%sstacks are as the kernel has followed frame pointers; which of them lack frames is not known: 'perf record --call-graph dwarf' has what it takes", of(names))
		if im.strayed > 0 {
			note("%s of the kernel's led to where no code is, and were cut there", plural(im.strayed, "stack"))
		}
	}
	if names := how[without]; len(names) > 0 {
		note("%srecorded without call graphs: a sample has one frame; 'perf record --call-graph dwarf' has stacks", of(names))
	}
	return notes
}

// printWalked says how the stacks of a recording of perf's have come out, and what is missing.
func printWalked(w io.Writer, p *profile.Profile) {
	if p.Meta.Tool != "" {
		truncated := map[string]uint64{}
		for _, t := range p.Truncated {
			truncated[t.Name] = uint64(t.N)
		}
		fmt.Fprintf(w, "stacks: %d complete (%.2f %%)%s\n", p.Complete, percent(uint64(p.Complete), uint64(p.Samples)), reasons(", truncated", truncated))
		for _, t := range p.Truncated {
			if percent(uint64(t.N), uint64(p.Samples)) >= 1 {
				fmt.Fprintf(w, "  (%s: %s)\n", t.Name, p.Meta.Help[t.Name])
			}
		}
	}
	for _, lost := range p.Meta.Lost {
		fmt.Fprintf(w, "lost: %s (%s: %s)\n", plural(uint64(lost.N), "record"), lost.Name, p.Meta.Help[lost.Name])
	}
	printNotes(w, p.Meta.Notes)
}
