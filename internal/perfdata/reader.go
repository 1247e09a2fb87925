package perfdata

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Reader goes through the records of a File in order of time, those without a time as they come.
// perf writes what the CPUs have noted one after the other, and says when a round of that is over
// (PERF_RECORD_FINISHED_ROUND): what was noted before the round that precedes it is all there then.
// Parts have no rounds: of these the one is read on that is behind the others in time.
type Reader struct {
	f      *File
	blocks blockList
	open   []*source // not at their ends
	from   *source   // that is being read

	queue   []entry // waiting, in the order in which they were read
	due     []entry // those that are to come out next
	next    int     // in due
	seq     uint64  // records that were taken in
	latest  uint64  // time of any of them
	flushTo uint64  // what latest was at the end of the round before
	given   *block  // that the last record is in
	at      uint64  // time of the records that came out
	rec     Record
	ended   bool
	err     error

	Cut       bool   // a last record is cut off
	Late      uint64 // records that came too late for their place in time
	Malformed uint64 // records that are not of any event
	Traced    uint64 // bytes of AUXTRACE that were passed over
}

// maxQueued bounds what waits for its place in time, in bytes, of which an entry is taken to have
// entryBytes besides: of more the first half comes out. Rounds of perf have a few MB for each CPU.
const (
	maxQueued  = 256 << 20
	entryBytes = 64
)

// entry is a record that waits.
type entry struct {
	time  uint64
	seq   uint64 // of those of one time, the first comes first
	block *block
	rec   []byte // with its header
}

// source is a file that records are read from.
type source struct {
	name   string // of a part; "" for the file with the header
	file   cutter
	end    int64
	packed *unpacker // of compressed records; nil before the first
	latest uint64    // time of any record
}

// Records begins to read them.
func (f *File) Records() *Reader {
	r := &Reader{f: f}
	r.add("", f.r, f.begin, f.end)
	most := f.end - f.begin
	for _, p := range f.parts {
		r.add(p.Name, p.R, 0, p.Size)
		most = max(most, p.Size)
	}
	r.blocks.each = int(min(max(most, minBlock), maxBlock/int64(len(r.open))))
	return r
}

func (r *Reader) add(name string, from io.ReaderAt, begin, end int64) {
	s := &source{name: name, end: end}
	s.file = cutter{blocks: &r.blocks, offset: begin, read: func(b []byte, at int64) (int, error) {
		return from.ReadAt(b[:min(int64(len(b)), max(end-at, 0))], at)
	}}
	r.open = append(r.open, s)
}

// Close ends reading before all was read.
func (r *Reader) Close() {
	for _, s := range r.open {
		s.close()
	}
}

func (s *source) close() {
	if s.packed != nil {
		s.packed.close()
	}
}

// Next returns the next record, which is valid until the call after. It returns io.EOF after the
// last, and a *FormatError where records cannot be told apart any more; those before it have come
// out then. Records that perf itself makes for its own use are left out.
func (r *Reader) Next() (*Record, error) {
	if r.given != nil {
		r.blocks.release(r.given)
		r.given = nil
	}
	for r.next >= len(r.due) {
		if r.ended {
			return nil, r.err
		}
		r.due, r.next = r.due[:0], 0
		r.from = r.open[0]
		for _, s := range r.open[1:] {
			if s.latest < r.from.latest {
				r.from = s
			}
		}
		if err := r.readOn(r.from); err != nil {
			r.endSource(r.from, err)
		}
	}
	e := &r.due[r.next]
	r.next++
	r.given = e.block
	r.load(e)
	return &r.rec, nil
}

// endSource notes that nothing more can be read of a file. Where that is not because of its end, all
// ends: there is nothing to be made of a part of the CPUs.
func (r *Reader) endSource(s *source, err error) {
	r.Cut = r.Cut || s.file.isInside() || s.packed != nil && s.packed.cut.isInside()
	if err != io.EOF && s.name != "" {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	if err == io.EOF && len(r.open) > 1 {
		s.close()
		s.file.drop()
		r.open = slices.DeleteFunc(r.open, func(o *source) bool { return o == s })
		return
	}
	r.ended, r.err = true, err
	r.flush(^uint64(0))
}

// readOn takes in the next record of a file.
func (r *Reader) readOn(s *source) error {
	rec, b, err := s.file.next()
	if err != nil {
		return err
	}
	switch typ := typeOf(rec); typ {
	case typeCompressed, typeCompressed2:
		return r.unpack(s, typ, rec)
	case typeFinishedRound:
		if len(r.f.parts) > 0 {
			return nil // it is not one of all
		}
		r.flush(r.flushTo)
		r.flushTo = r.latest
	case typeAuxTrace, typeTracingData:
		n := payload(typ, rec)
		if typ == typeAuxTrace {
			r.Traced += uint64(n)
		}
		return s.file.skip(n, s.end)
	default:
		r.take(rec, b)
	}
	return nil
}

// take queues a record, or has it come out at once.
func (r *Reader) take(rec []byte, b *block) {
	typ := typeOf(rec)
	if typ >= firstUserType {
		return
	}
	t := r.timeOf(typ, rec)
	b.refs++
	r.seq++
	e := entry{time: t, seq: r.seq, block: b, rec: rec}
	if t == 0 || t == ^uint64(0) {
		r.due = append(r.due, e)
		return
	}
	r.latest, r.from.latest = max(r.latest, t), max(r.from.latest, t)
	r.queue = append(r.queue, e)
	if r.blocks.inUse+entryBytes*len(r.queue) > maxQueued {
		r.flushHalf()
	}
}

// flush has the records up to a time come out.
func (r *Reader) flush(upTo uint64) {
	first := len(r.due)
	kept := r.queue[:0]
	for _, e := range r.queue {
		if e.time <= upTo {
			r.due = append(r.due, e)
		} else {
			kept = append(kept, e)
		}
	}
	clear(r.queue[len(kept):])
	r.queue = kept
	slices.SortFunc(r.due[first:], func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.seq, b.seq))
	})
}

// flushHalf has the earlier half of the records come out.
func (r *Reader) flushHalf() {
	times := make([]uint64, len(r.queue))
	for i := range r.queue {
		times[i] = r.queue[i].time
	}
	slices.Sort(times)
	r.flush(times[len(times)/2])
}

// load makes r.rec the record of an entry.
func (r *Reader) load(e *entry) {
	typ := typeOf(e.rec)
	i := r.eventOf(typ, e.rec[8:])
	if i < 0 {
		r.Malformed++
	}
	if e.time != 0 && e.time != ^uint64(0) {
		if e.time < r.at {
			r.Late++
		}
		r.at = max(r.at, e.time)
	}
	body := e.rec[8:]
	if typ == TypeKsymbol && r.f.allIDs {
		body = trimKsymbol(body, r.f.Events[i].SampleType)
	}
	r.rec = Record{
		Type: typ, Misc: binary.LittleEndian.Uint16(e.rec[4:]), Time: e.time, Event: i,
		attr: &r.f.Events[max(i, 0)].Attr, all: r.f.allIDs && typ != TypeSample, body: body,
	}
	if e.time == ^uint64(0) {
		r.rec.Time = 0
	}
}

func typeOf(rec []byte) Type { return Type(binary.LittleEndian.Uint32(rec)) }

// eventOf returns the index of the event that a record is of: -1 for a sample of none that is known.
func (r *Reader) eventOf(typ Type, body []byte) int {
	if len(r.f.Events) == 1 {
		return 0
	}
	at := r.f.idAt
	if typ != TypeSample {
		// Those that perf itself makes of what ran before have an ID of 0.
		if end := r.f.idFromEnd; end > 0 && r.f.allIDs && typ != TypeKsymbol && len(body) >= end {
			return r.f.byID[binary.LittleEndian.Uint64(body[len(body)-end:])]
		}
		return 0
	}
	if at < 0 {
		return 0 // all have the same; see identify
	}
	if len(body) < at+8 {
		return -1
	}
	i, ok := r.f.byID[binary.LittleEndian.Uint64(body[at:])]
	if !ok {
		return -1
	}
	return i
}

// timeOf returns the time of a record, 0 where it has none.
func (r *Reader) timeOf(typ Type, rec []byte) uint64 {
	body := rec[8:]
	i := r.eventOf(typ, body)
	if i < 0 || typ != TypeSample && !r.f.allIDs {
		return 0
	}
	sampleType := r.f.Events[i].SampleType
	if typ == TypeSample {
		return sampleTime(body, sampleType)
	}
	if typ == TypeKsymbol {
		body = trimKsymbol(body, sampleType)
	}
	return trailerTime(body, sampleType)
}

// unpack takes in the records that a compressed one holds.
func (r *Reader) unpack(s *source, typ Type, rec []byte) error {
	at := s.file.recordAt
	data := rec[8:]
	if typ == typeCompressed2 { // struct perf_record_compressed2: the length, and padding behind
		n := uint64(0)
		if len(data) >= 8 {
			n = binary.LittleEndian.Uint64(data)
			data = data[8:]
		}
		if n > uint64(len(data)) {
			return &FormatError{at, "a compressed record is cut off"}
		}
		data = data[:n]
	}
	if s.packed == nil {
		s.packed = newUnpacker(&r.blocks, r.take, max(maxWindow/(1+len(r.f.parts)), minWindow))
	}
	if err := s.packed.feed(data); err != nil {
		return &FormatError{at, fmt.Sprintf("a compressed record: %v", err)}
	}
	return nil
}
