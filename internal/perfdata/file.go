package perfdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// Magic is what files begin with.
const Magic = "PERFILE2"

// ErrByteOrder is of a file that a big-endian machine has written.
var ErrByteOrder = errors.New("recorded on a big-endian machine, which is not supported")

// FormatError tells what is wrong with a file, and where.
type FormatError struct {
	Offset int64 // in bytes from the start of the file
	What   string
}

// Error implements error.
func (e *FormatError) Error() string { return fmt.Sprintf("perf.data: byte %d: %s", e.Offset, e.What) }

// File is what is known of a recording as a whole.
type File struct {
	Events   []Event   // at least one
	BuildIDs []BuildID // of files that have samples

	Host     string   // name of the machine; this and what follows is empty where it is not told
	Release  string   // of its kernel: "6.12.3"
	Machine  string   // as uname -m has it: "x86_64"
	Tool     string   // version of perf
	Command  []string // perf record with its arguments
	CPUs     int      // that were online
	First    uint64   // times of the first and the last sample, in ns of the events' clock; 0 when not told
	Last     uint64
	Unended  bool // perf did not come to write the end: it was killed, or still runs
	Cut      bool // there are fewer bytes than the header says
	HasTrace bool // there is a trace of the processor (AUXTRACE), which is passed over

	r          io.ReaderAt
	begin, end int64          // of the records
	parts      []Part         // that have further records
	byID       map[uint64]int // index in Events by an event's ID
	idAt       int            // where samples have the ID: the byte in their body; -1: they have none
	allIDs     bool           // other records have a trailer
	idFromEnd  int            // where that has the ID, in bytes before its end; 0: all are of the first event
}

// Part is a file of nothing but records, as 'perf record --threads' writes one for each of its threads
// beside the one that has the header.
type Part struct {
	Name string // for errors
	R    io.ReaderAt
	Size int64 // bytes
}

// BuildID is that of a file that samples were in.
type BuildID struct {
	Path   string // "[kernel.kallsyms]", "[vdso]", or that of the file, as the process saw it
	ID     []byte
	PID    int32 // -1 for files of all processes
	Kernel bool  // code of the kernel
}

// Features that the header tells of: HEADER_* of tools/perf/util/header.h.
const (
	featureBuildID    = 2
	featureHostname   = 3
	featureRelease    = 4
	featureVersion    = 5
	featureMachine    = 6
	featureCPUs       = 7
	featureCommand    = 11
	featureEvents     = 12
	featureSampleTime = 21
	featureDirectory  = 24
	numFeatures       = 256
)

const (
	pipeHeaderBytes = 16
	fileHeaderBytes = 104
	maxFeature      = 64 << 20 // bytes of one
	maxEvents       = 1 << 12
	maxIDs          = 1 << 20 // of all events, one each for a CPU or thread
	maxBuildIDs     = 1 << 20
	maxParts        = 1 << 10
)

// Open reads the header of a file of so many bytes, and looks through it for what is told of the
// recording as a whole. It reads from r and the parts as long as there are Readers.
func Open(r io.ReaderAt, size int64, parts ...Part) (*File, error) {
	if len(parts) > maxParts {
		return nil, fmt.Errorf("perf.data: the recording is in more than %d parts", maxParts)
	}
	f := &File{r: r, parts: parts, byID: map[uint64]int{}}
	head := make([]byte, min(size, fileHeaderBytes))
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return nil, readError(err)
	}
	le := binary.LittleEndian
	switch {
	case len(head) >= 8 && string(head[:8]) == "2ELIFREP":
		return nil, ErrByteOrder
	case len(head) >= 8 && string(head[:8]) == "PERFFILE":
		return nil, errors.New("written by perf of before Linux 2.6.38, which is not supported")
	case len(head) < pipeHeaderBytes || string(head[:8]) != Magic:
		return nil, &FormatError{0, "this is no perf.data"}
	}
	var err error
	if le.Uint64(head[8:]) == pipeHeaderBytes {
		f.begin, f.end = pipeHeaderBytes, size
		err = f.scan()
	} else {
		err = f.readHeader(head, size)
	}
	if err != nil {
		return nil, err
	}
	if len(f.Events) == 0 {
		return nil, &FormatError{f.begin, "there is no event"}
	}
	return f, f.identify()
}

// EventOf returns the index in Events of the event of an ID.
func (f *File) EventOf(id uint64) (i int, ok bool) {
	i, ok = f.byID[id]
	return i, ok
}

func readError(err error) error {
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("perf.data: %w", err)
}

// readHeader reads what is around the records of a file on disk.
func (f *File) readHeader(head []byte, size int64) error {
	le := binary.LittleEndian
	if len(head) < fileHeaderBytes || le.Uint64(head[8:]) < fileHeaderBytes {
		return &FormatError{8, "the header is cut off"}
	}
	attrBytes := le.Uint64(head[16:])
	attrs, data := sectionAt(head[24:]), sectionAt(head[40:])
	f.begin = data.offset
	if f.begin < fileHeaderBytes || f.begin > size {
		return &FormatError{40, fmt.Sprintf("the records are at byte %d of %d", f.begin, size)}
	}
	f.Unended = data.size == 0
	f.end = data.offset + data.size
	if f.Unended || data.size < 0 || f.end > size || f.end < f.begin {
		f.Cut = !f.Unended
		f.end = size
	}
	if err := f.readAttrs(attrs, attrBytes, size); err != nil {
		return err
	}
	if f.Unended || f.Cut {
		return f.scan()
	}
	var set [numFeatures / 64]uint64
	for i := range set {
		set[i] = le.Uint64(head[72+8*i:])
		if i == 3 {
			break
		}
	}
	if err := f.readFeatures(set, size); err != nil {
		return err
	}
	return f.scan()
}

// section is a part of a file: struct perf_file_section.
type section struct{ offset, size int64 }

func sectionAt(b []byte) section {
	return section{int64(binary.LittleEndian.Uint64(b)), int64(binary.LittleEndian.Uint64(b[8:]))}
}

// read returns the bytes of a part of a file of so many bytes.
func (f *File) read(s section, size int64) ([]byte, error) {
	if s.offset < 0 || s.size < 0 || s.size > maxFeature || s.offset > size || s.size > size-s.offset {
		return nil, &FormatError{s.offset, fmt.Sprintf("a part of %d bytes in a file of %d", s.size, size)}
	}
	b := make([]byte, s.size)
	if n, err := f.r.ReadAt(b, s.offset); n < len(b) {
		return nil, readError(err)
	}
	return b, nil
}

// readAttrs reads the events of a file on disk: attributes, each with where its IDs are.
func (f *File) readAttrs(s section, each uint64, size int64) error {
	if each < minAttrBytes+16 || each > 1<<12 {
		return &FormatError{16, fmt.Sprintf("an event has %d bytes", each)}
	}
	b, err := f.read(s, size)
	if err != nil {
		return err
	}
	for ; uint64(len(b)) >= each; b = b[each:] {
		at := s.offset
		attr, n, err := parseAttr(b[:each-16])
		if err != nil {
			return &FormatError{at, err.Error()}
		}
		ids, err := f.read(sectionAt(b[n:]), size)
		if err != nil {
			return err
		}
		if err := f.addEvent(attr, ids); err != nil {
			return &FormatError{at, err.Error()}
		}
	}
	return nil
}

// addEvent adds an event with its IDs, of 8 bytes each.
func (f *File) addEvent(a Attr, ids []byte) error {
	if len(f.Events) >= maxEvents {
		return fmt.Errorf("there are more than %d events", maxEvents)
	}
	for ; len(ids) >= 8; ids = ids[8:] {
		if len(f.byID) >= maxIDs {
			return fmt.Errorf("events have more than %d IDs", maxIDs)
		}
		f.byID[binary.LittleEndian.Uint64(ids)] = len(f.Events)
	}
	f.Events = append(f.Events, Event{Attr: a, Name: a.KindName()})
	return nil
}

// readFeatures reads the features that lie behind the records of a file on disk, in the order of
// their numbers. One that is malformed is missing.
func (f *File) readFeatures(set [numFeatures / 64]uint64, size int64) error {
	n := 0
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	table, err := f.read(section{f.end, int64(n) * 16}, size)
	if err != nil {
		f.Cut = true
		return nil
	}
	for i := range numFeatures {
		if set[i/64]>>(i%64)&1 == 0 {
			continue
		}
		s := sectionAt(table)
		table = table[16:]
		switch i {
		case featureDirectory:
			if len(f.parts) == 0 {
				return errors.New("a part of what 'perf record --threads' has written, which is a directory")
			}
		case featureBuildID, featureHostname, featureRelease, featureVersion, featureMachine, featureCPUs, featureCommand, featureEvents, featureSampleTime:
			b, err := f.read(s, size)
			if err != nil {
				f.Cut = true
				continue
			}
			f.feature(i, b)
		}
	}
	return nil
}

// feature takes one in.
func (f *File) feature(number int, b []byte) {
	c := cursor{b: b}
	switch number {
	case featureBuildID:
		for len(c.b) >= 8 {
			n := int(binary.LittleEndian.Uint16(c.b[6:]))
			if n < 8 || n > len(c.b) {
				return
			}
			f.addBuildID(c.bytes(n))
		}
	case featureHostname:
		f.Host = c.text()
	case featureRelease:
		f.Release = c.text()
	case featureVersion:
		f.Tool = c.text()
	case featureMachine:
		f.Machine = c.text()
	case featureCPUs:
		c.u32() // available
		f.CPUs = int(min(c.u32(), 1<<16))
	case featureCommand:
		f.Command = nil
		for n := c.u32(); n > 0 && !c.short && len(f.Command) < 1<<16; n-- {
			f.Command = append(f.Command, c.text())
		}
	case featureEvents:
		f.nameEvents(&c)
	case featureSampleTime:
		f.First, f.Last = c.u64(), c.u64()
	}
}

// nameEvents reads the names of events, which are in the order of the events themselves: each
// comes with its attributes and IDs again.
func (f *File) nameEvents(c *cursor) {
	n, attrBytes := int(c.u32()), int(c.u32())
	for i := range min(n, len(f.Events)) {
		c.bytes(attrBytes)
		ids := c.u32()
		name := c.text()
		of := i
		for ; ids > 0 && !c.short; ids-- {
			if known, ok := f.byID[c.u64()]; ok {
				of = known
			}
		}
		if name != "" && !c.short {
			f.Events[of].Name = name
		}
	}
}

// addBuildID takes in a record of a build ID: struct perf_record_header_build_id.
func (f *File) addBuildID(rec []byte) {
	const miscHasSize, idBytes = 1 << 15, 20
	if len(rec) < 8+4+24 || len(f.BuildIDs) >= maxBuildIDs {
		return
	}
	misc := binary.LittleEndian.Uint16(rec[4:])
	id := rec[12:32]
	if misc&miscHasSize != 0 {
		id = id[:min(rec[32], idBytes)]
	}
	mode := Mode(misc & modeMask)
	f.BuildIDs = append(f.BuildIDs, BuildID{
		PID: int32(binary.LittleEndian.Uint32(rec[8:])), ID: slices.Clone(id), Path: cString(rec[36:]),
		Kernel: mode == ModeKernel,
	})
}

// identify finds out how records tell which event they are of. All events must agree on that, or
// nothing could be read.
func (f *File) identify() error {
	first := f.Events[0].SampleType
	f.idAt, f.allIDs, f.idFromEnd = idOffset(first), f.Events[0].Flags&flagSampleIDAll != 0, idFromEnd(first)
	for _, e := range f.Events[1:] {
		if idFromEnd(e.SampleType) != f.idFromEnd {
			f.idFromEnd = 0
		}
		switch {
		case idOffset(e.SampleType) != f.idAt:
			return errors.New("perf.data: the events have their IDs at different places of a record")
		case f.idAt < 0 && e.SampleType != first:
			return errors.New("perf.data: samples do not tell which of several events they are of")
		}
	}
	return nil
}

// scan looks for what is told of the whole recording among the records: in a pipe nearly all is, and
// build IDs come at the end. Records are not checked here.
func (f *File) scan() error {
	buf := make([]byte, 1<<12)
	at, have := f.begin, buf[:0] // have is what is at at
	load := func(n int) bool {
		if len(have) >= n {
			return true
		}
		if n > len(buf) {
			buf = make([]byte, n)
		}
		m, err := f.r.ReadAt(buf[:min(int64(len(buf)), f.end-at)], at)
		have = buf[:m]
		return m >= n && (err == nil || err == io.EOF)
	}
	for at < f.end && load(8) {
		typ, size := Type(binary.LittleEndian.Uint32(have)), int(binary.LittleEndian.Uint16(have[6:]))
		if size < 8 {
			return nil // where the Reader will say so
		}
		skip := int64(size)
		if typ >= firstUserType && typ != typeFinishedRound && typ != typeCompressed && typ != typeCompressed2 && load(size) {
			if err := f.scanRecord(typ, have[:size], at); err != nil {
				return err
			}
			skip += payload(typ, have[:size])
		}
		if skip < 8 || skip > f.end-at {
			return nil
		}
		at += skip
		have = have[min(skip, int64(len(have))):]
	}
	return nil
}

// payload returns how many bytes follow a record that are not of its own size.
func payload(typ Type, rec []byte) int64 {
	switch {
	case typ == typeTracingData && len(rec) >= 12:
		return int64(binary.LittleEndian.Uint32(rec[8:])+7) &^ 7
	case typ == typeAuxTrace && len(rec) >= 16:
		return max(int64(binary.LittleEndian.Uint64(rec[8:])), 0)
	}
	return 0
}

func (f *File) scanRecord(typ Type, rec []byte, at int64) error {
	body := rec[8:]
	le := binary.LittleEndian
	switch typ {
	case typeHeaderAttr:
		attr, n, err := parseAttr(body)
		if err == nil {
			err = f.addEvent(attr, body[n:])
		}
		if err != nil {
			return &FormatError{at, err.Error()}
		}
	case typeEventUpdate:
		const name = 2 // PERF_EVENT_UPDATE__NAME
		if len(body) > 16 && le.Uint64(body) == name {
			if i, ok := f.byID[le.Uint64(body[8:])]; ok {
				f.Events[i].Name = cString(body[16:])
			}
		}
	case typeBuildID:
		f.addBuildID(rec)
	case typeHeaderFeature:
		if len(body) >= 8 {
			f.feature(int(min(le.Uint64(body), numFeatures)), body[8:])
		}
	case typeAuxTrace:
		f.HasTrace = true
	}
	return nil
}

// cString returns what of b precedes the first NUL.
func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// cursor takes values off the front of bytes. Past their end it gives zeros, and is short.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.b, c.short = nil, true
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u32() uint32 {
	if b := c.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if len(c.b) < 8 {
		c.b, c.short = nil, true
		return 0
	}
	v := binary.LittleEndian.Uint64(c.b)
	c.b = c.b[8:]
	return v
}

// words skips so many words of 8 bytes.
func (c *cursor) words(n uint64) []byte {
	if n > uint64(len(c.b)/8) {
		c.b, c.short = nil, true
		return nil
	}
	return c.bytes(int(n) * 8)
}

// text reads a string: its length in 4 bytes, padding included, and the bytes.
func (c *cursor) text() string { return cString(c.bytes(int(min(c.u32(), 1<<30)))) }
