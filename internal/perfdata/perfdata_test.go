package perfdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/perfdata/perftest"
)

// open opens a recording in memory.
func open(t testing.TB, b []byte) *File {
	t.Helper()
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// readAll reads all records, in the order in which they come, and gives each to take.
func readAll(t testing.TB, f *File, take func(*Record)) *Reader {
	t.Helper()
	r := f.Records()
	defer r.Close()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return r
		}
		if err != nil {
			t.Fatal(err)
		}
		take(rec)
	}
}

// sampleBody makes a sample with all that its event asks for, and what is to be read of it.
func sampleBody(a *perftest.Attr, rng *rand.Rand) ([]byte, Sample) {
	var b []byte
	var want Sample
	put := func(v ...any) { b = append(b, perftest.Bytes(v...)...) }
	has := func(bit uint64) bool { return a.SampleType&bit != 0 }
	word := func() uint64 { return rng.Uint64() }
	some := func(most int) []uint64 {
		s := make([]uint64, rng.IntN(most+1))
		for i := range s {
			s[i] = word()
		}
		return s
	}
	if has(unix.PERF_SAMPLE_IDENTIFIER) {
		put(a.ID)
	}
	if has(unix.PERF_SAMPLE_IP) {
		want.IP = word()
		put(want.IP)
	}
	if has(unix.PERF_SAMPLE_TID) {
		want.PID, want.TID = int32(rng.IntN(1<<22)), int32(rng.IntN(1<<22))
		put(int(want.PID), int(want.TID))
	}
	if has(unix.PERF_SAMPLE_TIME) {
		put(word() >> 1)
	}
	if has(unix.PERF_SAMPLE_ADDR) {
		put(word())
	}
	if has(unix.PERF_SAMPLE_ID) {
		put(a.ID)
	}
	if has(unix.PERF_SAMPLE_STREAM_ID) {
		put(word())
	}
	if has(unix.PERF_SAMPLE_CPU) {
		want.CPU, want.HasCPU = uint32(rng.IntN(1<<10)), true
		put(want.CPU, 0)
	}
	want.Period = a.Period
	if has(unix.PERF_SAMPLE_PERIOD) {
		want.Period = word()
		put(want.Period)
	}
	if has(unix.PERF_SAMPLE_READ) {
		values := 1
		extra := bits.OnesCount64(a.ReadFormat & (readID | readLost))
		if a.ReadFormat&readGroup != 0 {
			values = rng.IntN(4)
			put(uint64(values))
		}
		times := make([]byte, 8*bits.OnesCount64(a.ReadFormat&(readTimeEnabled|readTimeRunning)))
		if a.ReadFormat&readGroup != 0 {
			put(times)
		}
		for range values {
			v := Value{Value: word(), ID: word()}
			put(v.Value)
			if a.ReadFormat&readGroup == 0 {
				put(times)
			}
			if a.ReadFormat&readID != 0 {
				put(v.ID)
				want.Read = append(want.Read, v)
				extra--
			}
			put(make([]byte, 8*extra))
			extra = bits.OnesCount64(a.ReadFormat & (readID | readLost))
		}
	}
	if has(unix.PERF_SAMPLE_CALLCHAIN) {
		want.HasCallchain, want.Callchain = true, some(9)
		put(uint64(len(want.Callchain)), want.Callchain)
	}
	if has(unix.PERF_SAMPLE_RAW) {
		n := 8*rng.IntN(5) + 4
		put(n, make([]byte, n))
	}
	if has(unix.PERF_SAMPLE_BRANCH_STACK) {
		n := rng.IntN(4)
		put(uint64(n))
		if a.BranchType&branchHardwareIndex != 0 {
			put(word())
		}
		put(make([]byte, 24*n))
		if a.BranchType&branchCounters != 0 {
			put(make([]byte, 8*n))
		}
	}
	if has(unix.PERF_SAMPLE_REGS_USER) {
		want.RegsABI = RegsABI(rng.IntN(3))
		put(uint64(want.RegsABI))
		if want.RegsABI != RegsNone {
			want.RegsMask = a.RegsUser
			for range bits.OnesCount64(a.RegsUser) {
				want.Regs = append(want.Regs, word())
			}
			put(want.Regs)
		}
	}
	if has(unix.PERF_SAMPLE_STACK_USER) {
		stack := make([]byte, 8*rng.IntN(20))
		for i := range stack {
			stack[i] = byte(word())
		}
		want.StackAsked = uint64(len(stack))
		put(want.StackAsked)
		if len(stack) > 0 {
			filled := rng.IntN(len(stack) + 1)
			want.Stack = stack[:filled]
			put(stack, uint64(filled))
		}
	}
	for _, bit := range []uint64{unix.PERF_SAMPLE_WEIGHT | sampleWeightStruct, unix.PERF_SAMPLE_DATA_SRC, unix.PERF_SAMPLE_TRANSACTION} {
		if has(bit) {
			put(word())
		}
	}
	if has(unix.PERF_SAMPLE_REGS_INTR) {
		put(uint64(Regs64), make([]byte, 8*bits.OnesCount64(a.RegsIntr)))
	}
	if has(unix.PERF_SAMPLE_PHYS_ADDR) {
		put(word())
	}
	if has(unix.PERF_SAMPLE_CGROUP) {
		want.Cgroup = word()
		put(want.Cgroup)
	}
	for _, bit := range []uint64{unix.PERF_SAMPLE_DATA_PAGE_SIZE, unix.PERF_SAMPLE_CODE_PAGE_SIZE} {
		if has(bit) {
			put(word())
		}
	}
	if has(unix.PERF_SAMPLE_AUX) {
		put(uint64(16), make([]byte, 16))
	}
	return b, want
}

// Samples are read whatever is in them.
func TestSampleTypes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		a := perftest.Attr{
			SampleType: rng.Uint64() & (1<<25 - 1), ReadFormat: rng.Uint64() & 31, Period: 4711,
			BranchType: rng.Uint64() & (branchHardwareIndex | branchCounters), RegsUser: rng.Uint64() & rng.Uint64(), RegsIntr: rng.Uint64() & 0xffff, ID: 7,
		}
		if a.SampleType&unix.PERF_SAMPLE_WEIGHT != 0 {
			a.SampleType &^= sampleWeightStruct // one or the other
		}
		rec := perftest.Recording{Attrs: []perftest.Attr{a}}
		body, want := sampleBody(&a, rng)
		rec.Add(uint32(TypeSample), unix.PERF_RECORD_MISC_USER, body)
		n := 0
		readAll(t, open(t, rec.File()), func(r *Record) {
			n++
			var got Sample
			if err := r.Sample(&got); err != nil {
				t.Errorf("sample type %#x: %v", a.SampleType, err)
			}
			if len(got.Callchain) == 0 {
				got.Callchain = want.Callchain
			}
			if len(got.Regs) == 0 {
				got.Regs = want.Regs
			}
			if len(got.Read) == 0 {
				got.Read = want.Read
			}
			if len(got.Stack) == 0 {
				got.Stack = want.Stack
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("sample type %#x: read %+v, want %+v", a.SampleType, got, want)
			}
			if r.Mode() != ModeUser {
				t.Errorf("mode %v", r.Mode())
			}
			for cut := range len(body) {
				short := *r
				short.body = body[:cut:cut]
				_ = short.Sample(&got) // an error or not, but no panic
			}
		})
		if n != 1 {
			t.Fatalf("%d records", n)
		}
	}
}

// timed is an event whose records have a time.
var timed = perftest.Attr{SampleType: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME, Flags: perftest.SampleIDAll, ID: 3, Name: "cycles:u"}

// times returns the times at which the records of a recording come out.
func times(t testing.TB, b []byte) (times []uint64, r *Reader) {
	t.Helper()
	r = readAll(t, open(t, b), func(rec *Record) { times = append(times, rec.Time) })
	return times, r
}

// Records come out in order of time, across rounds and CPUs, compressed or not, from a file and from a
// pipe; those without a time come at once.
func TestOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, each := range []int{0, 7, 40, 1000, 60000} {
		stack := 30 // words at most
		if each == 0 || each > 1000 {
			stack = 4000
		}
		rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
		var want []uint64
		for round := range uint64(50) {
			// What a round has may be as old as the round before.
			for _, cpu := range [2]uint64{0, 1} {
				at := max(round, 1) * 1000
				for range rng.IntN(20) {
					at += 1 + uint64(rng.IntN(60))
					want = append(want, 2*at+cpu)
					rec.Add(uint32(TypeSample), 0, 5, 6, 2*at+cpu, make([]byte, 8*rng.IntN(stack)))
				}
			}
			rec.FinishRound()
		}
		slices.Sort(want)
		if each > 0 {
			rec.Compress(each)
		}
		for _, b := range [][]byte{rec.File(), rec.Pipe()} {
			got, r := times(t, b)
			if !slices.Equal(got, want) || r.Late != 0 {
				t.Errorf("in parts of %d: %d records, %d of them late, want %d in order", each, len(got), r.Late, len(want))
			}
			if r.blocks.inUse > 2*max(r.blocks.each, 64<<10) {
				t.Errorf("in parts of %d: %d bytes are still in use", each, r.blocks.inUse)
			}
		}
	}
	rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
	for _, at := range []uint64{90, 0, 50, ^uint64(0), 70} {
		rec.Add(uint32(TypeSample), 0, 5, 6, at)
	}
	if got, _ := times(t, rec.File()); !slices.Equal(got, []uint64{0, 0, 50, 70, 90}) {
		t.Errorf("times %d", got)
	}
}

// What comes later than two rounds is told of.
func TestLate(t *testing.T) {
	rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
	for _, at := range []uint64{100, 200, 300, 50, 400} {
		rec.Add(uint32(TypeSample), 0, 5, 6, at)
		rec.FinishRound()
	}
	if got, r := times(t, rec.File()); r.Late != 1 || len(got) != 5 {
		t.Errorf("times %d, %d late", got, r.Late)
	}
}

// What is known of a recording as a whole is the same from a file and from a pipe.
func TestFile(t *testing.T) {
	other := timed
	other.ID, other.Name, other.Flags = 4, "page-faults", other.Flags|1<<10
	first := timed
	first.SampleType |= unix.PERF_SAMPLE_IDENTIFIER
	other.SampleType |= unix.PERF_SAMPLE_IDENTIFIER
	rec := perftest.Recording{
		Attrs: []perftest.Attr{first, other}, Machine: "aarch64", Host: "box", Release: "6.1.0",
		BuildID: [][]byte{
			perftest.BuildIDRecord(0, unix.PERF_RECORD_MISC_USER, -1, bytes.Repeat([]byte{9}, 20), "/bin/true"),
			perftest.BuildIDRecord(0, unix.PERF_RECORD_MISC_KERNEL|1<<15, -1, bytes.Repeat([]byte{8}, 16), "[kernel.kallsyms]"),
		},
	}
	rec.Add(uint32(TypeSample), 0, uint64(4), 5, 6, uint64(1000))
	rec.Add(uint32(TypeSample), 0, uint64(3), 5, 6, uint64(1001))
	rec.Add(uint32(TypeSample), 0, uint64(99), 5, 6, uint64(1002)) // of no event
	rec.Add(71, 0, uint64(24), uint64(0), uint64(0), 0, 0, 0, 0)   // AUXTRACE, and what follows it
	rec.AddBytes(bytes.Repeat([]byte{0xff}, 24))
	rec.Add(uint32(TypeLost), 0, uint64(3), uint64(17), 5, 6, uint64(1003), uint64(3))
	rec.Add(uint32(TypeComm), MiscCommExec, 5, 6, "worker", 5, 6, uint64(1004), uint64(3))
	rec.Add(uint32(TypeFork), 0, 7, 5, 8, 6, uint64(1005), 7, 8, uint64(1005), uint64(3))
	rec.Add(uint32(TypeMmap2), unix.PERF_RECORD_MISC_USER, 5, 6, uint64(0x1000), uint64(0x2000), uint64(0x3000), 8, 1, uint64(77), uint64(5), unix.PROT_EXEC, 0,
		"/bin/true", 5, 6, uint64(1006), uint64(3))
	rec.Add(uint32(TypeMmap2), miscMmapBuildID, 5, 6, uint64(0x1000), uint64(0x2000), uint64(0x3000), []byte{3, 0, 0, 0, 1, 2, 3}, make([]byte, 17), unix.PROT_EXEC, 0,
		"/bin/true", 5, 6, uint64(1007), uint64(3))
	rec.Add(uint32(TypeMmap), MiscMmapData, 5, 6, uint64(0x1000), uint64(0x2000), uint64(0x3000), "/data", 5, 6, uint64(1008), uint64(3))
	rec.Add(uint32(TypeKsymbol), 0, uint64(0xffff), 64, uint16(1), uint16(1), "bpf_prog_x", 5, 6, uint64(1009), uint64(3), make([]byte, 24)) // as Linux up to 6.18 writes it
	rec.Add(uint32(TypeCgroup), 0, uint64(12), "/a.slice", 5, 6, uint64(1010), uint64(3))
	for _, b := range [][]byte{rec.File(), rec.Pipe()} {
		f := open(t, b)
		if f.Machine != "aarch64" || f.Host != "box" || f.Release != "6.1.0" || f.Unended || f.Cut || !f.HasTrace {
			t.Errorf("read %+v", f)
		}
		if len(f.Events) != 2 || f.Events[0].Name != "cycles:u" || f.Events[1].Name != "page-faults" || !f.Events[1].IsFrequency() || f.Events[0].IsFrequency() {
			t.Errorf("events %+v", f.Events)
		}
		if len(f.BuildIDs) != 2 || f.BuildIDs[0].Path != "/bin/true" || len(f.BuildIDs[0].ID) != 20 || f.BuildIDs[0].Kernel ||
			len(f.BuildIDs[1].ID) != 16 || !f.BuildIDs[1].Kernel {
			t.Errorf("build IDs %+v", f.BuildIDs)
		}
		var events []int
		r := readAll(t, f, func(rec *Record) {
			switch rec.Type {
			case TypeSample:
				events = append(events, rec.Event)
			case TypeLost:
				if n, err := rec.Lost(); n != 17 || err != nil {
					t.Errorf("lost %d, %v", n, err)
				}
			case TypeComm:
				if pid, tid, comm, err := rec.Comm(); pid != 5 || tid != 6 || string(comm) != "worker" || err != nil || rec.Misc&MiscCommExec == 0 {
					t.Errorf("comm %d/%d %q, %v", pid, tid, comm, err)
				}
			case TypeFork:
				if pid, tid, ppid, ptid, err := rec.Task(); pid != 7 || tid != 8 || ppid != 5 || ptid != 6 || err != nil {
					t.Errorf("fork %d/%d of %d/%d, %v", pid, tid, ppid, ptid, err)
				}
			case TypeMmap, TypeMmap2:
				var m Mmap
				err := rec.Mmap(&m)
				want := Mmap{PID: 5, TID: 6, Addr: 0x1000, Len: 0x2000, Offset: 0x3000, Path: []byte("/bin/true"), Prot: unix.PROT_EXEC, HasProt: true}
				switch rec.Time {
				case 1006:
					want.HasFile, want.Major, want.Minor, want.Inode, want.Generation = true, 8, 1, 77, 5
				case 1007:
					want.BuildID = []byte{1, 2, 3}
				case 1008:
					want.Prot, want.HasProt, want.IsForData, want.Path = 0, false, true, []byte("/data")
				}
				if err != nil || !reflect.DeepEqual(m, want) {
					t.Errorf("mapping %+v, %v, want %+v", m, err, want)
				}
			case TypeKsymbol:
				var k Ksymbol
				if err := rec.Ksymbol(&k); err != nil || string(k.Name) != "bpf_prog_x" || k.Addr != 0xffff || k.Len != 64 || k.Kind != 1 || !k.Unregister {
					t.Errorf("symbol %+v, %v", k, err)
				}
			case TypeCgroup:
				if id, path, err := rec.Cgroup(); id != 12 || string(path) != "/a.slice" || err != nil {
					t.Errorf("cgroup %d %q, %v", id, path, err)
				}
			default:
				t.Errorf("record of type %d", rec.Type)
			}
		})
		if slices.Sort(events); !slices.Equal(events, []int{-1, 0, 1}) || r.Malformed != 1 || r.Traced != 24 {
			t.Errorf("samples of events %d, %d malformed, %d bytes of trace", events, r.Malformed, r.Traced)
		}
	}
}

// A recording that perf did not end, or that was cut off, is read as far as it goes.
func TestUnended(t *testing.T) {
	rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
	for at := range uint64(10) {
		rec.Add(uint32(TypeSample), 0, 5, 6, 1+at)
	}
	whole := rec.File()
	dataAt := int(binary.LittleEndian.Uint64(whole[40:]))
	unended := slices.Clone(whole[:dataAt+10*24])
	binary.LittleEndian.PutUint64(unended[48:], 0)
	if f := open(t, unended); !f.Unended || f.Cut {
		t.Errorf("not ended: %+v", f)
	}
	if got, r := times(t, unended); len(got) != 10 || r.Cut {
		t.Errorf("not ended: %d records", len(got))
	}
	cut := whole[:dataAt+5*24+3]
	if f := open(t, cut); !f.Cut {
		t.Errorf("cut off: %+v", f)
	}
	if got, r := times(t, cut); len(got) != 5 || !r.Cut {
		t.Errorf("cut off: %d records", len(got))
	}
}

// Files that are not those of perf as it is now are told of.
func TestOtherFiles(t *testing.T) {
	other := timed
	other.ID, other.SampleType = 4, other.SampleType|unix.PERF_SAMPLE_ID
	mixed := perftest.Recording{Attrs: []perftest.Attr{timed, other}}
	for name, b := range map[string][]byte{
		"big-endian": []byte("2ELIFREP\x00\x00\x00\x00\x00\x00\x00\x68"), "old": append([]byte("PERFFILE"), make([]byte, 200)...),
		"none": []byte("hello, world, this is none"), "empty": nil, "no event": new(perftest.Recording).File(), "mixed": mixed.File(),
	} {
		_, err := Open(bytes.NewReader(b), int64(len(b)))
		if err == nil || errors.Is(err, ErrByteOrder) != (name == "big-endian") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where records cannot be told apart any more, those before come out, and where that is is told.
func TestBadRecord(t *testing.T) {
	rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
	rec.Add(uint32(TypeSample), 0, 5, 6, uint64(1))
	rec.AddBytes([]byte{9, 0, 0, 0, 0, 0, 7, 0}) // of 7 bytes
	r := open(t, rec.File()).Records()
	defer r.Close()
	if rec, err := r.Next(); err != nil || rec.Time != 1 {
		t.Errorf("first record: %v", err)
	}
	for range 2 {
		_, err := r.Next()
		var bad *FormatError
		if !errors.As(err, &bad) || bad.Offset != r.f.begin+24 {
			t.Errorf("second record: %v", err)
		}
	}
}

// What small compressed records hold is bounded.
func TestPackedZeros(t *testing.T) {
	rec := perftest.Recording{Attrs: []perftest.Attr{timed}}
	rec.AddBytes(bytes.Repeat(perftest.Record(uint32(TypeSample), 0, 5, 6, uint64(1), make([]byte, 60000)), maxUnpacked/60000+10))
	rec.Compress(2 * maxUnpacked)
	r := open(t, rec.File()).Records()
	defer r.Close()
	for {
		_, err := r.Next()
		var bad *FormatError
		if errors.As(err, &bad) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if r.blocks.inUse > maxUnpacked+4*r.blocks.each {
		t.Errorf("%d bytes in use", r.blocks.inUse)
	}
}

// seeds are recordings of all sorts.
func seeds() [][]byte {
	var all [][]byte
	a := timed
	a.SampleType |= unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_CALLCHAIN | unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER | unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_CGROUP
	a.RegsUser = 0xff
	b := a
	b.ID, b.Name = 8, "faults"
	for _, each := range []int{0, 300} {
		rec := perftest.Recording{
			Attrs: []perftest.Attr{a, b}, Machine: "x86_64", Host: "h", Release: "r",
			BuildID: [][]byte{perftest.BuildIDRecord(0, 0, -1, make([]byte, 20), "/bin/true")},
		}
		rng := rand.New(rand.NewPCG(5, 6))
		for range 4 {
			body, _ := sampleBody(&a, rng)
			rec.Add(uint32(TypeSample), 0, body)
			body, _ = sampleBody(&b, rng)
			rec.Add(uint32(TypeSample), 0, body)
			rec.FinishRound()
		}
		rec.Add(uint32(TypeMmap2), 0, 5, 6, uint64(0x1000), uint64(0x2000), uint64(0x3000), 8, 1, uint64(77), uint64(5), unix.PROT_EXEC, 0, "/bin/true", 5, 6, uint64(1), uint64(3))
		rec.Add(uint32(TypeComm), 0, 5, 6, "c", 5, 6, uint64(2), uint64(3))
		rec.Add(uint32(TypeKsymbol), 0, uint64(1), 2, 3, "k", 5, 6, uint64(2), uint64(3))
		if each > 0 {
			rec.Compress(each)
		}
		all = append(all, rec.File(), rec.Pipe())
	}
	return all
}

// readHostile reads everything of a file that may be anything.
func readHostile(t testing.TB, b []byte) {
	f, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return
	}
	readRecords(f)
	f.parts = []Part{{"a part", bytes.NewReader(b[f.begin:]), f.end - f.begin}, {"beyond", bytes.NewReader(b), -1}}
	readRecords(f)
}

func readRecords(f *File) {
	r := f.Records()
	defer r.Close()
	var s Sample
	var m Mmap
	var k Ksymbol
	for n := 0; ; n++ {
		rec, err := r.Next()
		if err != nil {
			break
		}
		_ = rec.Sample(&s)
		_ = rec.Mmap(&m)
		_ = rec.Ksymbol(&k)
		_, _, _, _ = rec.Comm()
		_, _, _, _, _ = rec.Task()
		_, _ = rec.Lost()
		_, _, _ = rec.Cgroup()
	}
}

// Files that are cut off anywhere, or damaged, are no harm.
func TestDamaged(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, b := range seeds() {
		for n := 0; n < len(b); n += 1 + n/200 {
			readHostile(t, b[:n])
		}
		for range 200 {
			damaged := slices.Clone(b)
			for range 1 + rng.IntN(4) {
				damaged[rng.IntN(len(damaged))] = byte(rng.Uint32())
			}
			readHostile(t, damaged)
		}
	}
}

func FuzzFile(f *testing.F) {
	for _, b := range seeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { readHostile(t, b) })
}

// What perf's threads have written each to a file of its own comes out in order of time, compressed or not; where a
// part cannot be understood, that is told, with its name.
func TestParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, each := range []int{0, 500} {
		head := perftest.Recording{Attrs: []perftest.Attr{timed}}
		head.Add(uint32(TypeComm), 0, 5, 6, "c", 5, 6, uint64(0))
		var parts []Part
		var want []uint64
		for i := range uint64(3) {
			part := perftest.Recording{}
			at := uint64(10)
			for range 100 * i { // one has none
				at += 1 + uint64(rng.IntN(60))
				want = append(want, 3*at+i)
				part.Add(uint32(TypeSample), 0, 5, 6, 3*at+i)
			}
			part.FinishRound() // which says nothing of the others
			if each > 0 {
				part.Compress(each)
			}
			parts = append(parts, Part{"data." + string(rune('0'+i)), bytes.NewReader(part.Data()), int64(len(part.Data()))})
		}
		slices.Sort(want)
		file := head.File()
		f, err := Open(bytes.NewReader(file), int64(len(file)), parts...)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		first := true
		r := readAll(t, f, func(rec *Record) {
			if first != (rec.Type == TypeComm) {
				t.Errorf("a record of type %d, the first: %v", rec.Type, first)
			}
			if first = false; rec.Type == TypeSample {
				got = append(got, rec.Time)
			}
		})
		if !slices.Equal(got, want) || r.Late != 0 || r.Cut {
			t.Errorf("in parts of %d: %d samples, %d late, want %d in order", each, len(got), r.Late, len(want))
		}
		parts[1].R, parts[1].Size = bytes.NewReader([]byte{9, 0, 0, 0, 0, 0, 7, 0}), 8
		f, err = Open(bytes.NewReader(file), int64(len(file)), parts...)
		if err != nil {
			t.Fatal(err)
		}
		r = f.Records()
		for err == nil {
			_, err = r.Next()
		}
		r.Close()
		if bad := (*FormatError)(nil); !errors.As(err, &bad) || !strings.Contains(err.Error(), "data.1") {
			t.Errorf("a part that is malformed: %v", err)
		}
	}
}

// Records other than samples are read as the event has them that they are of.
func TestTrailers(t *testing.T) {
	other := timed
	other.ID, other.SampleType = 4, timed.SampleType|unix.PERF_SAMPLE_CPU|unix.PERF_SAMPLE_IDENTIFIER
	first := timed
	first.SampleType |= unix.PERF_SAMPLE_IDENTIFIER
	rec := perftest.Recording{Attrs: []perftest.Attr{first, other}}
	rec.Add(uint32(TypeComm), 0, 5, 6, "of the first", 5, 6, uint64(1001), uint64(3))
	rec.Add(uint32(TypeComm), 0, 5, 6, "of another", 5, 6, uint64(1002), 1, 0, uint64(4))
	rec.Add(uint32(TypeComm), 0, 5, 6, "of perf", 5, 6, uint64(1003), uint64(0))
	n := 0
	readAll(t, open(t, rec.File()), func(rec *Record) {
		n++
		_, _, comm, err := rec.Comm()
		if want := []string{"", "of the first", "of another", "of perf"}[n]; rec.Time != uint64(1000+n) || string(comm) != want || err != nil {
			t.Errorf("record %d: at %d, %q, %v", n, rec.Time, comm, err)
		}
	})
	if n != 3 {
		t.Errorf("%d records", n)
	}
}

// Nothing is allocated for a record once the first have been read.
func TestAllocations(t *testing.T) {
	a := timed
	a.SampleType |= unix.PERF_SAMPLE_CALLCHAIN | unix.PERF_SAMPLE_REGS_USER | unix.PERF_SAMPLE_STACK_USER
	a.RegsUser = 0xffff
	rec := perftest.Recording{Attrs: []perftest.Attr{a}}
	for i := range uint64(20000) {
		rec.Add(uint32(TypeSample), 0, 5, 6, i+1, uint64(2), []uint64{1, 2}, uint64(2), make([]byte, 16*8), uint64(1024), make([]byte, 1024), uint64(1000))
		if i%100 == 0 {
			rec.FinishRound()
		}
	}
	r := open(t, rec.File()).Records()
	defer r.Close()
	var s Sample
	next := func() {
		rec, err := r.Next()
		if err == nil {
			err = rec.Sample(&s)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 5000 {
		next()
	}
	if n := testing.AllocsPerRun(10000, next); n != 0 {
		t.Errorf("%v allocations for a record", n)
	}
}
