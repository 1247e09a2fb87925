package loader

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// SidebandKind tells what happened to a process.
type SidebandKind uint8

// Kinds of events.
const (
	SidebandMmap SidebandKind = iota + 1 // memory became executable
	SidebandComm                         // a thread was renamed
	SidebandExec                         // a process runs another program now
	SidebandFork                         // a thread or process was born
	SidebandExit                         // a thread ended
	SidebandLost                         // records are missing here
	SidebandBPF                          // code of a BPF program or trampoline came into the kernel, or went
)

// SidebandEvent is one piece of news about a process. PID is the process
// (tgid), TID the thread, both as our PID namespace sees them.
type SidebandEvent struct {
	Kind     SidebandKind
	CPU      uint32
	Time     uint64 // CLOCK_MONOTONIC, ns
	PID, TID int32

	PPID int32 // SidebandFork: the process that forked; PID itself for a thread

	// SidebandMmap: run-time address, length in bytes, and file offset of a
	// mapping that may merge several mmaps; its protection; the file.
	Addr, Len, Offset uint64
	Prot              procstate.Prot
	Dev, Inode, Gen   uint64 // Dev of the superblock, as unix.Mkdev makes it
	Path              string // "//anon", "[vdso]", ... where there is no file

	Comm string // SidebandComm, SidebandExec: the new name
	Lost uint64 // SidebandLost: number of records; 0 when that is not known

	// SidebandBPF: the name of the code at Addr, of Len bytes, and whether it
	// went. Who brought or took it is PID and TID, which may be foreign.
	Symbol string
	Gone   bool

	// The file of a SidebandMmap, once it was looked for.
	image    *procstate.Image
	imageErr error
	looked   bool

	due  bool // and no more in the queue of Processes
	last bool // of its process, mappings and names: those behind it were not queued
}

// isOfThread reports whether a thread other than a process's initial one is born, named
// or ends.
func (e *SidebandEvent) isOfThread() bool {
	switch e.Kind {
	case SidebandFork:
		return e.PID != e.TID || e.PID == e.PPID
	case SidebandComm, SidebandExit:
		return e.PID != e.TID
	}
	return false
}

// isOfMany reports whether it is of a kind of which a process makes as many as it likes,
// at little cost, and which /proc tells of as well.
func (e *SidebandEvent) isOfMany() bool {
	return e.Kind == SidebandMmap || e.Kind == SidebandComm
}

const (
	recordHeaderBytes = 8
	// sampleIDBytes is the length of what ends each record, after
	// dummySampleType: pid, tid, time, cpu, reserved.
	sampleIDBytes = 24
	mmap2Bytes    = 72 // up to the file name
	ksymbolBytes  = 24 // up to the name
)

var (
	errOtherRecord = errors.New("record of a kind that was not asked for")
	errBadSideband = errors.New("malformed perf record")
)

func recordSize(b []byte) uint64 { return uint64(binary.LittleEndian.Uint16(b[6:])) }

// names makes strings of the names in records, most of which come again and
// again.
type names map[string]string

const maxNames = 1024

// of returns what of b precedes the first NUL.
func (n names) of(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	s, ok := n[string(b)]
	if !ok {
		if len(n) >= maxNames {
			clear(n)
		}
		s = string(b)
		n[s] = s
	}
	return s
}

// parse decodes a record: enum perf_event_type in <linux/perf_event.h>.
func (e *SidebandEvent) parse(record []byte, known names) error {
	le := binary.LittleEndian
	if len(record) < recordHeaderBytes+sampleIDBytes {
		return errBadSideband
	}
	typ, misc := le.Uint32(record), le.Uint16(record[4:])
	if typ == unix.PERF_RECORD_KSYMBOL {
		record = trimKernelSymbol(record)
	}
	id := record[len(record)-sampleIDBytes:]
	body := record[recordHeaderBytes : len(record)-sampleIDBytes]
	*e = SidebandEvent{
		PID: int32(le.Uint32(id)), TID: int32(le.Uint32(id[4:])),
		Time: le.Uint64(id[8:]), CPU: le.Uint32(id[16:]),
	}
	switch typ {
	case unix.PERF_RECORD_MMAP2:
		return e.parseMmap(body, known)
	case unix.PERF_RECORD_COMM:
		if len(body) < 8 {
			return errBadSideband
		}
		e.Kind = SidebandComm
		if misc&unix.PERF_RECORD_MISC_COMM_EXEC != 0 {
			e.Kind = SidebandExec
		}
		e.PID, e.TID = int32(le.Uint32(body)), int32(le.Uint32(body[4:]))
		e.Comm = known.of(body[8:])
	case unix.PERF_RECORD_FORK, unix.PERF_RECORD_EXIT:
		if len(body) < 24 {
			return errBadSideband
		}
		e.Kind = SidebandFork
		if typ == unix.PERF_RECORD_EXIT {
			e.Kind = SidebandExit
		}
		e.PID, e.PPID, e.TID = int32(le.Uint32(body)), int32(le.Uint32(body[4:])), int32(le.Uint32(body[8:]))
	case unix.PERF_RECORD_LOST:
		if len(body) < 16 {
			return errBadSideband
		}
		e.Kind, e.Lost = SidebandLost, le.Uint64(body[8:])
	case unix.PERF_RECORD_KSYMBOL:
		return e.parseKernelSymbol(body, known)
	default:
		return errOtherRecord
	}
	return nil
}

func (e *SidebandEvent) parseMmap(body []byte, known names) error {
	le := binary.LittleEndian
	if len(body) < mmap2Bytes-recordHeaderBytes {
		return errBadSideband
	}
	e.Kind = SidebandMmap
	e.PID, e.TID = int32(le.Uint32(body)), int32(le.Uint32(body[4:]))
	e.Addr, e.Len, e.Offset = le.Uint64(body[8:]), le.Uint64(body[16:]), le.Uint64(body[24:])
	e.Dev = unix.Mkdev(le.Uint32(body[32:]), le.Uint32(body[36:]))
	e.Inode, e.Gen = le.Uint64(body[40:]), le.Uint64(body[48:])
	e.Prot = procstate.Prot(le.Uint32(body[56:]) & 7)
	e.Path = known.of(body[64:])
	if e.Addr+e.Len < e.Addr {
		return errBadSideband
	}
	return nil
}

// trimKernelSymbol cuts off what the kernel leaves behind a record of code that
// it made: perf_event_ksymbol_output adds the length of the ID again for each
// other event on the CPU that is told of it. The record itself ends with the
// name, padded to 8 bytes, and the ID.
func trimKernelSymbol(record []byte) []byte {
	if len(record) < ksymbolBytes {
		return record
	}
	n := bytes.IndexByte(record[ksymbolBytes:], 0)
	if end := ksymbolBytes + (n+8)&^7 + sampleIDBytes; n >= 0 && end < len(record) {
		record = record[:end]
	}
	return record
}

// parseKernelSymbol decodes a record of code that the kernel made.
func (e *SidebandEvent) parseKernelSymbol(body []byte, known names) error {
	le := binary.LittleEndian
	if len(body) < ksymbolBytes-recordHeaderBytes {
		return errBadSideband
	}
	if le.Uint16(body[12:]) != unix.PERF_RECORD_KSYMBOL_TYPE_BPF {
		return errOtherRecord // pages of kprobes and ftrace
	}
	e.Kind, e.Addr, e.Len = SidebandBPF, le.Uint64(body), uint64(le.Uint32(body[8:]))
	e.Gone = le.Uint16(body[14:])&unix.PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER != 0
	e.Symbol = known.of(body[16:])
	if e.Addr+e.Len < e.Addr {
		return errBadSideband
	}
	return nil
}
