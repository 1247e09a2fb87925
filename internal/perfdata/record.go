package perfdata

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Type is the kind of a record: enum perf_event_type, and enum perf_user_event_type of what perf
// itself writes.
type Type uint32

// The kinds of records that a Reader returns. There are others, which it returns too.
const (
	TypeMmap        Type = unix.PERF_RECORD_MMAP
	TypeLost        Type = unix.PERF_RECORD_LOST
	TypeComm        Type = unix.PERF_RECORD_COMM
	TypeExit        Type = unix.PERF_RECORD_EXIT
	TypeFork        Type = unix.PERF_RECORD_FORK
	TypeSample      Type = unix.PERF_RECORD_SAMPLE
	TypeMmap2       Type = unix.PERF_RECORD_MMAP2
	TypeLostSamples Type = unix.PERF_RECORD_LOST_SAMPLES
	TypeKsymbol     Type = unix.PERF_RECORD_KSYMBOL
	TypeCgroup      Type = unix.PERF_RECORD_CGROUP

	firstUserType     Type = 64
	typeHeaderAttr    Type = 64
	typeTracingData   Type = 66
	typeBuildID       Type = 67
	typeFinishedRound Type = 68
	typeAuxTrace      Type = 71
	typeEventUpdate   Type = 78
	typeHeaderFeature Type = 80
	typeCompressed    Type = 81
	typeCompressed2   Type = 83
)

// Mode is where a record's code ran: PERF_RECORD_MISC_CPUMODE_MASK.
type Mode uint8

// The modes.
const (
	ModeUnknown Mode = iota
	ModeKernel
	ModeUser
	ModeHypervisor
	ModeGuestKernel
	ModeGuestUser

	modeMask = 7
)

// Bits of Record.Misc, some of which mean another thing in another kind of record.
const (
	MiscMmapData     = unix.PERF_RECORD_MISC_MMAP_DATA
	MiscCommExec     = unix.PERF_RECORD_MISC_COMM_EXEC
	MiscForkExec     = unix.PERF_RECORD_MISC_FORK_EXEC // perf itself has made the record
	MiscLostByFilter = 1 << 15                         // PERF_RECORD_MISC_LOST_SAMPLES_BPF: of TypeLostSamples, that a filter left out
	miscMmapBuildID  = unix.PERF_RECORD_MISC_MMAP_BUILD_ID
)

// ErrMalformed is of a record that is shorter than what it says is in it. Others can be read.
var ErrMalformed = errors.New("malformed perf record")

// Record is a record of a recording. It is valid until the next is read.
type Record struct {
	Type  Type
	Misc  uint16
	Time  uint64 // in ns of the events' clock; 0 where that is not told
	Event int    // index in File.Events; -1 when the record is of none of them

	attr *Attr // of the event, or of the first
	all  bool  // records other than samples have a trailer
	body []byte
}

// Mode tells where the code of a sample ran, or of a mapping does.
func (r *Record) Mode() Mode { return Mode(r.Misc & modeMask) }

// trailerBytes is the length of what is at the end of records other than samples.
func trailerBytes(sampleType uint64) int {
	const each = unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME | unix.PERF_SAMPLE_ID | unix.PERF_SAMPLE_STREAM_ID |
		unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_IDENTIFIER
	return 8 * bits.OnesCount64(sampleType&each)
}

// own returns the body without the trailer.
func (r *Record) own() cursor {
	b := r.body
	if r.all {
		b = b[:max(len(b)-trailerBytes(r.attr.SampleType), 0)]
	}
	return cursor{b: b}
}

// trimKsymbol cuts off what kernels leave behind a record of code that they made: those up to 6.18 add
// the length of the trailer again for each other event that is told of it. The record itself ends with
// the name, padded to 8 bytes, and one trailer.
func trimKsymbol(body []byte, sampleType uint64) []byte {
	const before = 16
	if len(body) < before {
		return body
	}
	n := len(name(body[before:]))
	if end := before + (n+8)&^7 + trailerBytes(sampleType); end < len(body) {
		return body[:end]
	}
	return body
}

// trailerTime returns the time of a record that is no sample.
func trailerTime(body []byte, sampleType uint64) uint64 {
	n := trailerBytes(sampleType)
	if sampleType&unix.PERF_SAMPLE_TIME == 0 || n > len(body) {
		return 0
	}
	b := body[len(body)-n:]
	if sampleType&unix.PERF_SAMPLE_TID != 0 {
		b = b[8:]
	}
	return binary.LittleEndian.Uint64(b)
}

// sampleTime returns the time of a sample.
func sampleTime(body []byte, sampleType uint64) uint64 {
	const before = unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID
	at := 8 * bits.OnesCount64(sampleType&before)
	if sampleType&unix.PERF_SAMPLE_TIME == 0 || len(body) < at+8 {
		return 0
	}
	return binary.LittleEndian.Uint64(body[at:])
}

// Mmap is a mapping: of PERF_RECORD_MMAP or PERF_RECORD_MMAP2.
type Mmap struct {
	PID, TID           int32 // -1 of the kernel's
	Addr, Len, Offset  uint64
	HasFile            bool // Major to Generation are known
	Major, Minor       uint32
	Inode, Generation  uint64
	BuildID            []byte // valid as long as the record; nil when not known
	Prot               uint32 // PROT_*
	Path               []byte // valid as long as the record
	HasProt, IsForData bool   // Prot is known; it is not for code
}

// Mmap reads the record of a mapping.
func (r *Record) Mmap(m *Mmap) error {
	c := r.own()
	*m = Mmap{PID: int32(c.u32()), TID: int32(c.u32()), Addr: c.u64(), Len: c.u64(), Offset: c.u64(), IsForData: r.Misc&MiscMmapData != 0}
	if r.Type == TypeMmap2 {
		switch id := c.bytes(24); {
		case id == nil:
		case r.Misc&miscMmapBuildID != 0:
			m.BuildID = id[4 : 4+min(id[0], 20)]
		default:
			le := binary.LittleEndian
			m.HasFile = true
			m.Major, m.Minor, m.Inode, m.Generation = le.Uint32(id), le.Uint32(id[4:]), le.Uint64(id[8:]), le.Uint64(id[16:])
		}
		m.Prot, m.HasProt = c.u32(), true
		c.u32() // flags
	}
	m.Path = name(c.b)
	if c.short || m.Addr+m.Len < m.Addr {
		return ErrMalformed
	}
	return nil
}

// name returns what of b precedes the first NUL.
func name(b []byte) []byte {
	for i, c := range b {
		if c == 0 {
			return b[:i]
		}
	}
	return b
}

// Comm reads the record of a thread's name. That it ran another program then is MiscCommExec.
func (r *Record) Comm() (pid, tid int32, comm []byte, err error) {
	c := r.own()
	pid, tid = int32(c.u32()), int32(c.u32())
	if c.short {
		err = ErrMalformed
	}
	return pid, tid, name(c.b), err
}

// Task reads a record of a thread that began, or ended, and of who began it.
func (r *Record) Task() (pid, tid, parentPID, parentTID int32, err error) {
	c := r.own()
	pid, parentPID, tid, parentTID = int32(c.u32()), int32(c.u32()), int32(c.u32()), int32(c.u32())
	if c.short {
		err = ErrMalformed
	}
	return pid, tid, parentPID, parentTID, err
}

// Lost reads how many records were lost, of TypeLost, or samples, of TypeLostSamples.
func (r *Record) Lost() (n uint64, err error) {
	c := r.own()
	if r.Type == TypeLost {
		c.u64() // ID
	}
	n = c.u64()
	if c.short {
		err = ErrMalformed
	}
	return n, err
}

// Cgroup reads the record of a cgroup's ID and path.
func (r *Record) Cgroup() (id uint64, path []byte, err error) {
	c := r.own()
	id = c.u64()
	if c.short {
		err = ErrMalformed
	}
	return id, name(c.b), err
}

// Ksymbol is code that came into the kernel, or went: of PERF_RECORD_KSYMBOL.
type Ksymbol struct {
	Addr       uint64
	Len        uint32
	Kind       uint16 // PERF_RECORD_KSYMBOL_TYPE_*
	Unregister bool
	Name       []byte // valid as long as the record
}

// Ksymbol reads such a record.
func (r *Record) Ksymbol(k *Ksymbol) error {
	c := r.own()
	*k = Ksymbol{Addr: c.u64(), Len: c.u32()}
	both := c.u32()
	k.Kind, k.Unregister = uint16(both), both>>16&unix.PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER != 0
	k.Name = name(c.b)
	if c.short || k.Addr+uint64(k.Len) < k.Addr {
		return ErrMalformed
	}
	return nil
}
