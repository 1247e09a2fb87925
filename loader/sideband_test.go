package loader

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// record makes a perf record with the fields that end each.
func record(typ uint32, misc uint16, body []byte) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, typ)
	b = le.AppendUint16(b, misc)
	b = le.AppendUint16(b, uint16(8+len(body)+sampleIDBytes))
	b = append(b, body...)
	b = le.AppendUint32(b, 7) // pid
	b = le.AppendUint32(b, 8) // tid
	b = le.AppendUint64(b, 99)
	b = le.AppendUint32(b, 3) // cpu
	return le.AppendUint32(b, 0)
}

func mmapBody(addr, n uint64, path string) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 17)
	b = le.AppendUint32(b, 18)
	b = le.AppendUint64(b, addr)
	b = le.AppendUint64(b, n)
	b = le.AppendUint64(b, 0x5000)
	b = le.AppendUint32(b, 0xfe) // major
	b = le.AppendUint32(b, 1)    // minor
	b = le.AppendUint64(b, 1234)
	b = le.AppendUint64(b, 5678)
	b = le.AppendUint32(b, 5) // protection
	b = le.AppendUint32(b, 2) // flags
	b = append(b, path...)
	return append(b, make([]byte, 8-len(path)%8)...)
}

func taskBody(pid, ppid, tid, ptid uint32) []byte {
	var b []byte
	for _, v := range []uint32{pid, ppid, tid, ptid} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, 8)...)
}

func ksymbolBody(addr uint64, n uint32, typ, flags uint16, name string) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(nil, addr)
	b = le.AppendUint32(b, n)
	b = le.AppendUint16(b, typ)
	b = le.AppendUint16(b, flags)
	b = append(b, name...)
	return append(b, make([]byte, 8-len(name)%8)...)
}

// longer makes a record longer by n bytes.
func longer(record []byte, n int) []byte {
	record = append(record, bytes.Repeat([]byte{0xff}, n)...)
	binary.LittleEndian.PutUint16(record[6:], uint16(len(record)))
	return record
}

func TestParseSideband(t *testing.T) {
	comm := append(taskBody(17, 18, 0, 0)[:8], "name\x00\x00\x00\x00"...)
	lost := binary.LittleEndian.AppendUint64(make([]byte, 8), 42)
	base := SidebandEvent{CPU: 3, Time: 99, PID: 17, TID: 18}
	with := func(change func(*SidebandEvent)) SidebandEvent {
		e := base
		change(&e)
		return e
	}
	tests := []struct {
		name   string
		record []byte
		want   SidebandEvent
		err    error
	}{
		{"mmap", record(unix.PERF_RECORD_MMAP2, 0, mmapBody(0x1000, 0x2000, "/a b")), with(func(e *SidebandEvent) {
			e.Kind, e.Addr, e.Len, e.Offset, e.Prot = SidebandMmap, 0x1000, 0x2000, 0x5000, 5
			e.Dev, e.Inode, e.Gen, e.Path = unix.Mkdev(0xfe, 1), 1234, 5678, "/a b"
		}), nil},
		{"mmap that wraps around", record(unix.PERF_RECORD_MMAP2, 0, mmapBody(^uint64(0), 2, "x")), SidebandEvent{}, errBadSideband},
		{"mmap too short", record(unix.PERF_RECORD_MMAP2, 0, mmapBody(0, 1, "")[:56]), SidebandEvent{}, errBadSideband},
		{"comm", record(unix.PERF_RECORD_COMM, 0, comm), with(func(e *SidebandEvent) { e.Kind, e.Comm = SidebandComm, "name" }), nil},
		{"exec", record(unix.PERF_RECORD_COMM, unix.PERF_RECORD_MISC_COMM_EXEC, comm),
			with(func(e *SidebandEvent) { e.Kind, e.Comm = SidebandExec, "name" }), nil},
		{"comm too short", record(unix.PERF_RECORD_COMM, 0, comm[:4]), SidebandEvent{}, errBadSideband},
		{"fork", record(unix.PERF_RECORD_FORK, 0, taskBody(17, 11, 18, 12)),
			with(func(e *SidebandEvent) { e.Kind, e.PPID = SidebandFork, 11 }), nil},
		{"exit", record(unix.PERF_RECORD_EXIT, 0, taskBody(17, 11, 18, 12)),
			with(func(e *SidebandEvent) { e.Kind, e.PPID = SidebandExit, 11 }), nil},
		{"fork too short", record(unix.PERF_RECORD_FORK, 0, taskBody(17, 11, 18, 12)[:16]), SidebandEvent{}, errBadSideband},
		{"lost", record(unix.PERF_RECORD_LOST, 0, lost),
			with(func(e *SidebandEvent) { e.Kind, e.Lost, e.PID, e.TID = SidebandLost, 42, 7, 8 }), nil},
		{"lost too short", record(unix.PERF_RECORD_LOST, 0, lost[:8]), SidebandEvent{}, errBadSideband},
		{"code of BPF", record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 1, 0, "bpf_prog_x")), with(func(e *SidebandEvent) {
			e.Kind, e.Addr, e.Len, e.Symbol, e.PID, e.TID = SidebandBPF, 0x1000, 0x20, "bpf_prog_x", 7, 8
		}), nil},
		{"code of BPF that went", record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 1, 1, "x")), with(func(e *SidebandEvent) {
			e.Kind, e.Addr, e.Len, e.Symbol, e.Gone, e.PID, e.TID = SidebandBPF, 0x1000, 0x20, "x", true, 7, 8
		}), nil},
		{"code of BPF, with what the kernel leaves behind it", longer(record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 1, 0, "bpf_prog_1234567")), 48),
			with(func(e *SidebandEvent) {
				e.Kind, e.Addr, e.Len, e.Symbol, e.PID, e.TID = SidebandBPF, 0x1000, 0x20, "bpf_prog_1234567", 7, 8
			}), nil},
		{"other code of the kernel", record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 2, 0, "x")), SidebandEvent{}, errOtherRecord},
		{"code that wraps around", record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(^uint64(0), 2, 1, 0, "x")), SidebandEvent{}, errBadSideband},
		{"code too short", record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0, 2, 1, 0, "")[:12]), SidebandEvent{}, errBadSideband},
		{"another", record(unix.PERF_RECORD_THROTTLE, 0, make([]byte, 24)), SidebandEvent{}, errOtherRecord},
		{"header only", make([]byte, 8), SidebandEvent{}, errBadSideband},
		{"nothing", nil, SidebandEvent{}, errBadSideband},
	}
	for _, test := range tests {
		var e SidebandEvent
		err := e.parse(test.record, names{})
		if err != test.err || (err == nil && e != test.want) {
			t.Errorf("%s: %+v, %v; want %+v, %v", test.name, e, err, test.want, test.err)
		}
	}
}

func FuzzParseSideband(f *testing.F) {
	f.Add(record(unix.PERF_RECORD_MMAP2, 0, mmapBody(0x1000, 0x2000, "/a b")))
	f.Add(record(unix.PERF_RECORD_COMM, unix.PERF_RECORD_MISC_COMM_EXEC, []byte("12345678name\x00\x00\x00\x00")))
	f.Add(record(unix.PERF_RECORD_FORK, 0, taskBody(17, 11, 18, 12)))
	f.Add(record(unix.PERF_RECORD_LOST, 0, make([]byte, 16)))
	f.Add(record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 1, 1, "bpf_prog_x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e SidebandEvent
		if e.parse(b, names{}) == nil && e.Addr+e.Len < e.Addr {
			t.Errorf("a mapping wraps around: %+v", e)
		}
	})
}

// testRing is a ring in ordinary memory.
func testRing(size int) *sidebandRing {
	return &sidebandRing{fd: -1, meta: new(unix.PerfEventMmapPage), data: make([]byte, size)}
}

// put writes a record as the kernel does.
func (r *sidebandRing) put(b []byte) {
	for i, c := range b {
		r.data[(r.meta.Data_head+uint64(i))%uint64(len(r.data))] = c
	}
	r.meta.Data_head += uint64(len(b))
}

// Records come out as they were put in, wherever they wrap around.
func TestRingWraps(t *testing.T) {
	r := testRing(4096)
	for i := range 500 {
		var want [][]byte
		for j := range i % 9 {
			b := record(unix.PERF_RECORD_COMM, 0, bytes.Repeat([]byte{byte(i)}, 8*(1+(i+j)%31)))
			r.put(b)
			want = append(want, b)
		}
		var got [][]byte
		if !r.read(func(b []byte) { got = append(got, bytes.Clone(b)) }) {
			t.Fatalf("round %d: the ring is out of order", i)
		}
		if len(got) != len(want) {
			t.Fatalf("round %d: %d records, want %d", i, len(got), len(want))
		}
		for j := range want {
			if !bytes.Equal(got[j], want[j]) {
				t.Fatalf("round %d: record %d: % x, want % x", i, j, got[j], want[j])
			}
		}
		if r.meta.Data_tail != r.meta.Data_head {
			t.Fatalf("round %d: the room was not given back", i)
		}
	}
}

// A ring whose contents make no sense is given up, and good again after.
func TestRingOutOfOrder(t *testing.T) {
	good := record(unix.PERF_RECORD_COMM, 0, make([]byte, 16))
	short := bytes.Clone(good)
	binary.LittleEndian.PutUint16(short[6:], 7)
	zero := bytes.Clone(good)
	binary.LittleEndian.PutUint16(zero[6:], 0)
	long := bytes.Clone(good)
	binary.LittleEndian.PutUint16(long[6:], uint16(len(long)+8))
	for name, b := range map[string][]byte{
		"size of 0": zero, "size below a header": short, "size past the head": long, "part of a header": good[:4],
	} {
		r := testRing(4096)
		r.put(good)
		r.put(b)
		n := 0
		if r.read(func([]byte) { n++ }) || n != 1 {
			t.Errorf("%s: read %d records", name, n)
		}
		r.meta.Data_head, r.meta.Data_tail = 0, 0
		r.put(good)
		if !r.read(func([]byte) { n++ }) || n != 2 {
			t.Errorf("%s: not good again", name)
		}
	}
	r := testRing(4096)
	r.meta.Data_head = 8192
	if r.read(func([]byte) { t.Error("a record") }) {
		t.Error("a head past the ring's size is in order")
	}
}

func TestDrainCounts(t *testing.T) {
	s := &Sideband{rings: map[int]*sidebandRing{0: testRing(4096)}, names: names{}}
	r := s.rings[0]
	r.put(record(unix.PERF_RECORD_COMM, 0, append(taskBody(17, 18, 0, 0)[:8], "name\x00\x00\x00\x00"...)))
	r.put(record(unix.PERF_RECORD_FORK, 0, taskBody(0, 0, 0, 0))) // of another PID namespace
	r.put(record(unix.PERF_RECORD_FORK, 0, taskBody(1<<32-1, 1, 1, 1)))
	r.put(record(unix.PERF_RECORD_LOST, 0, binary.LittleEndian.AppendUint64(make([]byte, 8), 42)))
	r.put(record(unix.PERF_RECORD_MMAP2, 0, nil))
	r.put(record(unix.PERF_RECORD_THROTTLE, 0, make([]byte, 24)))
	foreign := record(unix.PERF_RECORD_KSYMBOL, 0, ksymbolBody(0x1000, 0x20, 1, 0, "x"))
	copy(foreign[len(foreign)-sampleIDBytes:], make([]byte, 8))
	r.put(foreign) // whoever brought it, it is in the kernel
	var kinds []SidebandKind
	s.Drain(func(e *SidebandEvent) { kinds = append(kinds, e.Kind) })
	if want := (SidebandStats{Events: 3, Lost: 42, Malformed: 1, Foreign: 2}); s.Stats() != want {
		t.Errorf("%+v, want %+v", s.Stats(), want)
	}
	if fmt.Sprint(kinds) != fmt.Sprint([]SidebandKind{SidebandComm, SidebandLost, SidebandBPF}) {
		t.Errorf("kinds %v", kinds)
	}
}

// A program that starts ends a Wait. Its records may be spread over the CPUs:
// any is enough here.
func TestWait(t *testing.T) {
	f := followWith(t, SidebandConfig{WakeBytes: 1})
	f.cancel()
	if err := <-f.watched; err != nil {
		t.Fatal(err)
	}
	f.watched <- nil
	f.procs.Collect()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	if woken, err := f.sb.Wait(patience); !woken || err != nil {
		t.Errorf("a program that started: %v, %v", woken, err)
	}
}

// A CPU that is not followed any more is followed again when it is online, and
// the table is told that it has missed what happened there.
func TestSyncCPUs(t *testing.T) {
	f := follow(t)
	f.cancel()
	if err := <-f.watched; err != nil {
		t.Fatal(err)
	}
	f.watched <- nil
	all := len(f.sb.rings)
	var came uint32
	for cpu, ring := range f.sb.rings {
		ring.close()
		delete(f.sb.rings, cpu)
		came = uint32(cpu)
		break
	}
	offline := 1 << 15 // no machine has so many
	f.sb.rings[offline] = testRing(4096)
	f.sb.rings[offline].put(record(unix.PERF_RECORD_FORK, 0, taskBody(17, 11, 18, 12)))
	left, missed := 0, 0
	before := monotonic()
	err := f.sb.SyncCPUs(func(e *SidebandEvent) {
		switch {
		case e.Kind == SidebandFork && e.PID == 17:
			left++
		case e.Kind == SidebandLost && e.CPU == came && e.Time >= before:
			missed++
		default:
			t.Errorf("%+v", *e)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(f.sb.rings) != all || f.sb.rings[offline] != nil || left != 1 || missed != 1 {
		t.Errorf("%d CPUs followed, want %d; %d events of the one that left, %d of the one that came", len(f.sb.rings), all, left, missed)
	}
}

// Each of several that follow the same CPUs is told when a BPF program came and
// went.
func TestListeners(t *testing.T) {
	var all []*Sideband
	for range 3 {
		s, err := OpenSideband(SidebandConfig{RingBytes: 4 << 20})
		if err != nil {
			if os.Geteuid() != 0 {
				testenv.Lacks(t, "the side-band needs root: %v", err)
			}
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		all = append(all, s)
	}
	name := fmt.Sprintf("l%d", os.Getpid())
	before := monotonic()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	loaded := monotonic()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		var came, went uint64
		for end := time.Now().Add(patience); went == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			s.Drain(func(e *SidebandEvent) {
				switch {
				case e.Kind != SidebandBPF || !strings.HasSuffix(e.Symbol, "_"+name):
				case e.Gone:
					went = max(e.Time, 1)
				default:
					came = e.Time
				}
			})
		}
		if came < before || came > loaded || went < loaded || went > monotonic() {
			t.Errorf("%d: came at %d and went at %d; loaded between %d and %d", i, came, went, before, loaded)
		}
		if stats := s.Stats(); stats.Malformed > 0 {
			t.Errorf("%d: %+v", i, stats)
		}
	}
}

// The descriptors of events are given back. Others come and go: files of
// processes that start meanwhile are opened in the background.
func TestCloseSideband(t *testing.T) {
	count := func() (n int) {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if what, _ := os.Readlink(fd); what == "anon_inode:[perf_event]" {
				n++
			}
		}
		return n
	}
	follow(t)
	before := count()
	sb, err := OpenSideband(SidebandConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(); n <= before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	if err := sb.Close(); err != nil {
		t.Error(err)
	}
	if n := count(); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func BenchmarkDrain(b *testing.B) {
	s := &Sideband{rings: map[int]*sidebandRing{0: testRing(1 << 20)}, names: names{}}
	rec := record(unix.PERF_RECORD_MMAP2, 0, mmapBody(0x1000, 0x2000, "/usr/lib/x86_64-linux-gnu/libc.so.6"))
	for b.Loop() {
		s.rings[0].put(rec)
		s.Drain(func(*SidebandEvent) {})
	}
}

// Wake ends a Wait that is under way, and those to come.
func TestSidebandWake(t *testing.T) {
	sb := followWith(t, SidebandConfig{WakeBytes: 1 << 20}).sb
	woken := make(chan bool)
	go func() {
		for range 2 {
			w, err := sb.Wait(time.Hour)
			if err != nil {
				t.Error(err)
			}
			woken <- w
		}
	}()
	sb.Wake()
	for range 2 {
		if !<-woken {
			t.Error("not woken")
		}
	}
}

// The second Close closes nothing, whoever has the descriptors' numbers by then.
func TestSidebandClosesOnce(t *testing.T) {
	sb, err := OpenSideband(SidebandConfig{})
	if err != nil {
		testenv.Lacks(t, "no side-band: %v", err)
	}
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	var others []*os.File
	for range 64 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, f)
	}
	if err := sb.Close(); err != nil {
		t.Errorf("the second time: %v", err)
	}
	for _, f := range others {
		if err := f.Close(); err != nil {
			t.Errorf("a file that is not its own: %v", err)
		}
	}
}
