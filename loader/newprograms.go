package loader

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
)

// NewPrograms tells of programs that are executed from files which are not known
// to be open, as soon as they are (bpf/exec.h), and of rings for samples that
// fill up (bpf/ring.h). It is the Session's, and for [Processes.Heed]; its
// methods belong to the goroutine that watches.
type NewPrograms struct {
	hook     link.Link
	fd       int // of the ring
	known    *ebpf.Map
	programs map[programFile]goProcess // what is in known
	consumer []byte                    // a page, whose first word is the position read up to
	producer []byte                    // a page likewise for writing, then the data, twice
	data     []byte
	told     []programFile // of the last take
}

type programFile = gen.SamplerProgramFile

// newNewPrograms attaches the program that tells.
func newNewPrograms(maps *gen.SamplerMaps, prog *ebpf.Program) (*NewPrograms, error) {
	n := &NewPrograms{fd: maps.News.FD(), known: maps.KnownPrograms, programs: map[programFile]goProcess{}}
	page, size := os.Getpagesize(), int(maps.News.MaxEntries())
	var err error
	if n.consumer, err = unix.Mmap(n.fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map the ring of news: %w", err)
	}
	if n.producer, err = unix.Mmap(n.fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		n.close()
		return nil, fmt.Errorf("map the ring of news: %w", err)
	}
	n.data = n.producer[page:]
	if n.hook, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exec", Program: prog}); err != nil {
		n.close()
		return nil, diagnose(err, "attach to sched_process_exec")
	}
	return n, nil
}

func (n *NewPrograms) close() error {
	var err error
	if n.hook != nil {
		err = n.hook.Close()
	}
	for _, mem := range [][]byte{n.consumer, n.producer} {
		if mem != nil {
			err = errors.Join(err, unix.Munmap(mem))
		}
	}
	return err
}

// ringRecordBusy is BPF_RINGBUF_BUSY_BIT of <linux/bpf.h>.
const ringRecordBusy = 1 << 31

// newsSince is what the kernel side has told of since the last time.
type newsSince struct {
	programs   []programFile // valid until the next time
	ringFills  bool
	endUnknown bool // there is a sample of a thread of which it is not known where its stack ends
}

// take returns what was told of since. All that the files' programs map before they run is
// in the side-band by then.
func (n *NewPrograms) take() (news newsSince) {
	if n == nil {
		return news
	}
	n.told = n.told[:0]
	read, written := position(n.consumer), position(n.producer)
	at, end := read.Load(), written.Load()
	for at < end {
		record := n.data[at%uint64(len(n.data)/2):]
		length := atomic.LoadUint32((*uint32)(unsafe.Pointer(&record[0])))
		if length&ringRecordBusy != 0 {
			break // told of when it is complete
		}
		switch body := unsafe.Pointer(&record[unix.BPF_RINGBUF_HDR_SZ]); {
		case length == uint32(unsafe.Sizeof(programFile{})):
			n.told = append(n.told, *(*programFile)(body))
		case *(*gen.SamplerNews)(body) == gen.SamplerNewsRING_FILLS:
			news.ringFills = true
		default:
			news.endUnknown = true
		}
		at += (uint64(length) + unix.BPF_RINGBUF_HDR_SZ + 7) &^ 7
	}
	read.Store(at)
	news.programs = n.told
	return news
}

func position(page []byte) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(page)))
}

// know has no more told of a file, which is open, and says what it is: the zero
// goProcess when it is no Go program, or it depends on the address.
func (n *NewPrograms) know(f programFile, is goProcess) {
	if len(n.programs) == int(n.known.MaxEntries()) {
		n.forget(func(programFile) bool { return true })
	}
	if n.known.Put(f, is) == nil {
		n.programs[f] = is
	}
}

// isKnown tells as what a file is known, if it is.
func (n *NewPrograms) isKnown(f programFile) (is goProcess, ok bool) {
	if n != nil {
		is, ok = n.programs[f]
	}
	return is, ok
}

// forget has those files told of again that which reports.
func (n *NewPrograms) forget(which func(programFile) bool) {
	if n == nil {
		return
	}
	for f := range n.programs {
		if which(f) {
			_ = n.known.Delete(f)
			delete(n.programs, f)
		}
	}
}
