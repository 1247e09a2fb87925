package loader

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/swbpf/swbpf/procstate"
)

// scribbler replays what a thread of testdata/scribble.c does to its words.
type scribbler struct {
	round, x uint64
	words    []uint64
}

func (s *scribbler) run(round uint64) {
	n := uint64(len(s.words))
	for s.round < round {
		s.round++
		changes := n
		if s.round%97 != 0 {
			changes = s.round % 13
		}
		for range changes {
			s.x = s.x*6364136223846793005 + 1442695040888963407
			s.words[(s.x>>20)%n] = s.x
		}
	}
}

// Stacks put together from changes are, byte for byte, what the program has
// written, whatever records are lost and on whatever CPU its threads run.
func TestChangesOfStacks(t *testing.T) {
	const calls = 2000
	for _, c := range []struct {
		name           string
		threads, words int
		cfg            Config
	}{
		{"small", 3, 300, Config{}},
		{"large", 3, 6000, Config{}},
		{"over the limit, whole", 3, 25_000, Config{}},
		{"larger than the mirror", 2, 80_000, Config{StackBytes: MaxStackBytes, RingBytes: 64 << 20}},
		{"more than the mirror holds", 30, 6000, Config{}},
		{"lost records", 3, 2000, Config{RingBytes: 4096}},
		{"cut stacks", 3, 6000, Config{StackBytes: 8192}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Event, c.cfg.Changes = mustParse(t, "syscalls:sys_enter_getppid"), true
			n := calls
			if c.threads*c.words > 100_000 {
				n = 200
			}
			cmd, s := started(t, c.cfg, build(t, "scribble.c", "-O2", "-pthread"),
				strconv.Itoa(c.threads), strconv.Itoa(n), strconv.Itoa(c.words))
			threads := make([]scribbler, c.threads)
			for i := range threads {
				threads[i] = scribbler{x: uint64(i), words: make([]uint64, c.words)}
			}
			seen, same := uint64(0), 0
			last := map[uint32]*before{}
			check := func(p *Sample) error {
				seen++
				checkScribbles(t, p, threads)
				if last[p.CPU] == nil {
					last[p.CPU] = new(before)
				}
				same += last[p.CPU].check(t, p)
				return nil
			}
			cmd.Resume()
			for done := false; !done && !t.Failed(); {
				select {
				case <-cmd.Done():
					done = true
				case <-time.After(2 * time.Millisecond):
				}
				if err := s.ReadSamples(monotonic()-1e6, check); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := s.ReadSamples(^uint64(0), check); err != nil {
				t.Fatal(err)
			}
			st := stats(t, s)
			if seen != st.Samples || st.Samples+st.Lost() != uint64(c.threads*n) || seen == 0 {
				t.Errorf("%d samples read of %d, %d lost, of %d calls", seen, st.Samples, st.Lost(), c.threads*n)
			}
			switch c.name {
			case "small":
				if same == 0 {
					t.Error("no sample goes on from one before")
				}
				if st.Lost() != 0 || st.RingBytes > st.StackBytes/2 {
					t.Errorf("%d lost, %d bytes sent for stacks of %d", st.Lost(), st.RingBytes, st.StackBytes)
				}
			case "lost records":
				if st.LostRingFull == 0 {
					t.Error("none lost in a tiny ring")
				}
			}
		})
	}
}

// before is the sample before of a CPU.
type before struct {
	number, addr uint64
	stack        []byte
}

// check compares what a sample says is as it was with what was there, and returns
// how many bytes that are.
func (b *before) check(t *testing.T, p *Sample) int {
	t.Helper()
	data, addr := p.Regions[0].Data, p.Regions[0].Addr
	end, n := addr+uint64(len(data)), 0
	if p.Number != 0 && p.Number == b.number+1 && p.SameFrom < end {
		if b.addr+uint64(len(b.stack)) != end {
			t.Fatalf("sample %#x goes on from one that ended elsewhere", p.Number)
		}
		n = int(end - max(p.SameFrom, addr, b.addr))
		if !slices.Equal(data[len(data)-n:], b.stack[len(b.stack)-n:]) {
			t.Fatalf("sample %#x differs from the one before beyond %#x", p.Number, p.SameFrom)
		}
	}
	b.number, b.addr, b.stack = p.Number, addr, append(b.stack[:0], data...)
	return n
}

// checkScribbles compares the words in a sample with those of its thread's
// round.
func checkScribbles(t *testing.T, p *Sample, threads []scribbler) {
	t.Helper()
	magic := binary.NativeEndian.AppendUint64(nil, 0x5c21bb1e5c21bb1e)
	data := p.Regions[0].Data
	at := 0
	for at+24 <= len(data) && !slices.Equal(data[at:at+8], magic) {
		at += 8
	}
	if at+24 > len(data) {
		t.Fatalf("no words in a stack of %d bytes", len(data))
	}
	thread, round := binary.NativeEndian.Uint64(data[at+8:]), binary.NativeEndian.Uint64(data[at+16:])
	if thread >= uint64(len(threads)) || round < threads[thread].round {
		t.Fatalf("thread %d in round %d", thread, round)
	}
	s := &threads[thread]
	s.run(round)
	words := data[at+24:]
	if p.StackEnd != StackEndLimit && len(words) < 8*len(s.words) {
		t.Fatalf("%d bytes after the magic word, ended by %v", len(words), p.StackEnd)
	}
	for i, want := range s.words {
		if len(words) < 8*i+8 {
			break
		}
		if got := binary.NativeEndian.Uint64(words[8*i:]); got != want {
			t.Fatalf("thread %d, round %d: word %d of %d is %#x, want %#x", thread, round, i, len(s.words), got, want)
		}
	}
}

// Where the verifier rejects the program that sends changes, all is sent.
func TestChangesRejected(t *testing.T) {
	testRejectChanges = true
	defer func() { testRejectChanges = false }()
	p := startTarget(t, stackTarget(t), "fill", "5000")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, Changes: true})
	if s.mirrors != nil {
		t.Fatal("the kernel has accepted what is out of bounds")
	}
	bottom := readMainStack(t, p.pid)
	readUntil(t, s, func(smp *Sample) bool {
		sp := smp.Regs.Raw(smp.Arch.SP)
		return bottom-sp >= 5000 && uint64(len(smp.Regions[0].Data)) == belowSP+smp.LiveBytes && smp.StackEnd == StackEndBottom
	})
}

// With and without changes the same is copied: the bounds of regions show no
// blocks.
func TestChangesOfStackBounds(t *testing.T) {
	p := startTarget(t, stackTarget(t), "fill", "5000")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, Changes: true})
	n := 0
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if !loop.holds(smp) {
			return false
		}
		stack, sp := smp.Regions[0], smp.Regs.Raw(smp.Arch.SP)
		if belowSP != 0 && stack.Addr == sp {
			return false // still in the system call that said it is ready
		}
		n++
		if stack.Addr != sp-belowSP || uint64(len(stack.Data)) != belowSP+smp.LiveBytes || smp.StackEnd != StackEndBottom {
			t.Errorf("stack at %#x (SP %#x), %d bytes for %d live, ended by %v", stack.Addr, sp, len(stack.Data), smp.LiveBytes, smp.StackEnd)
		}
		if want := p.memory(t, stack.Addr, len(stack.Data)); string(stack.Data) != string(want) {
			t.Errorf("sample %d differs from the memory", n)
		}
		return n == 5
	})
}

// group makes what is sent of a group: words of pieces, by piece and word.
func group(words map[int]map[int]uint64) []byte {
	out := make([]byte, 8)
	var mask uint64
	for p := range mirrorGroup / mirrorPiece {
		if words[p] == nil {
			continue
		}
		mask |= 1 << p
		at := len(out)
		out = append(out, make([]byte, 8)...)
		var changed uint64
		for w := range mirrorPiece / 8 {
			if v, ok := words[p][w]; ok {
				changed |= 1 << w
				out = binary.NativeEndian.AppendUint64(out, v)
			}
		}
		binary.NativeEndian.PutUint64(out[at:], changed)
	}
	binary.NativeEndian.PutUint64(out, mask)
	return out
}

// A region that is laid over another one of the same record does not change
// the other's bytes.
func TestMirrorOverlap(t *testing.T) {
	m := &mirror{bytes: make([]byte, 4096)}
	if err := m.begin(1); err != nil {
		t.Fatal(err)
	}
	first, n, err := m.apply(&regionHeader{Addr: 0x1008, Len: 100, Mirror: 0}, group(map[int]map[int]uint64{0: {1: 0x11, 8: 0x22}}), nil)
	if err != nil || n != 8+8+8+8 {
		t.Fatalf("%d bytes used, %v", n, err)
	}
	regions := []procstate.Region{{Addr: 0x1008, Data: first}}
	second, _, err := m.apply(&regionHeader{Addr: 0x2000, Len: 64, Mirror: 64}, group(map[int]map[int]uint64{0: {0: 0x33}}), regions)
	if err != nil {
		t.Fatal(err)
	}
	if first := regions[0].Data; len(first) != 100 || first[0] != 0x11 || first[56] != 0x22 || second[0] != 0x33 {
		t.Errorf("first % x, second % x", first, second)
	}
}

// What is as it was in the record before is told of regions that lie alike.
func TestMirrorFollow(t *testing.T) {
	m := &mirror{bytes: make([]byte, 4096)}
	for i, c := range []struct {
		region regionHeader
		sent   []byte
		want   uint64
	}{
		{regionHeader{Addr: 0x1008, Len: 200, Mirror: 64}, group(map[int]map[int]uint64{0: {1: 1, 25: 2}}), ^uint64(0)},
		{regionHeader{Addr: 0x1008, Len: 200, Mirror: 64}, group(map[int]map[int]uint64{0: {1: 3, 24: 4}}), 0x10c8},
		{regionHeader{Addr: 0x1088, Len: 72, Mirror: 192}, group(map[int]map[int]uint64{0: {2: 5}}), 0x1098}, // higher up
		{regionHeader{Addr: 0x1088, Len: 72, Mirror: 192}, group(nil), 0x1080},
		{regionHeader{Addr: 0x1008, Len: 1000, Mirror: 64}, group(map[int]map[int]uint64{0: {1: 6}, 1: {0: 7}}), ^uint64(0)}, // another end
		{regionHeader{Addr: 0x1008, Len: 1000, Mirror: 64}, group(map[int]map[int]uint64{0: {1: 8}, 1: {0: 9}}), 0x1208},
		{regionHeader{Addr: 0x1008, Len: 1000, Mirror: 128}, group(map[int]map[int]uint64{0: {1: 8}}), ^uint64(0)}, // elsewhere
	} {
		if _, _, err := m.apply(&c.region, c.sent, nil); err != nil {
			t.Fatal(err)
		}
		if got := m.follow(&c.region); got != c.want {
			t.Errorf("%d: as it was from %#x on, want %#x", i, got, c.want)
		}
	}
}

// What does not fit is an error, and so is a record out of turn.
func TestMirrorMalformed(t *testing.T) {
	whole := group(map[int]map[int]uint64{0: {0: 1, 7: 2}, 1: {12: 3}})
	for name, c := range map[string]struct {
		region regionHeader
		sent   []byte
	}{
		"no mask":             {regionHeader{Len: 64}, nil},
		"cut in a mask":       {regionHeader{Len: 1024}, whole[:4]},
		"cut before a piece":  {regionHeader{Len: 1024}, whole[:8]},
		"cut in a piece":      {regionHeader{Len: 1024}, whole[:24]},
		"cut in its mask":     {regionHeader{Len: 1024}, whole[:36]},
		"cut in a word":       {regionHeader{Len: 1024}, whole[:len(whole)-1]},
		"piece past the end":  {regionHeader{Len: 512}, whole},
		"word past the end":   {regionHeader{Len: 576}, whole},
		"past the mirror":     {regionHeader{Len: 64, Mirror: 1 << 20}, whole},
		"longer than mirror":  {regionHeader{Len: 1 << 31}, whole},
		"second group wanted": {regionHeader{Len: uint32(mirrorGroup) + 1}, append(group(nil), 0)},
	} {
		m := &mirror{bytes: make([]byte, 1<<20)}
		if _, _, err := m.apply(&c.region, c.sent, nil); !errors.Is(err, errBadRecord) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	m := new(mirror)
	for i, c := range []struct {
		number uint32
		good   bool
	}{{1, true}, {2, true}, {2, false}, {4, false}, {1, false}} {
		if err := m.begin(c.number); (err == nil) != c.good {
			t.Errorf("%d: record %d: %v", i, c.number, err)
		}
	}
	if err := (*mirror)(nil).begin(1); !errors.Is(err, errBadRecord) {
		t.Errorf("without a mirror: %v", err)
	}
}
