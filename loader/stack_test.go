package loader

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// The stack of main has this much above its own frame at most: what the C
// library's start needs, and the kernel's start_stack.
const aboveMain = 4 << 10

// fromSP returns the copied stack from SP up.
func fromSP(t *testing.T, p *Sample) []byte {
	t.Helper()
	sp, r := p.Regs.Raw(p.Arch.SP), p.Regions[0]
	if below := sp - r.Addr; below != 0 && below != belowSP || below > uint64(len(r.Data)) {
		t.Fatalf("stack of %d bytes at %#x, SP is %#x", len(r.Data), r.Addr, sp)
	}
	return r.Data[sp-r.Addr:]
}

// A copied stack is, byte for byte, what the kernel shows in /proc/PID/mem.
func TestStackBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fill  int
		limit int
		end   StackEnd
	}{
		{"less than a page", 100, 0, StackEndBottom},
		{"some pages", 10 << 10, 0, StackEndBottom},
		{"just below the limit", 60 << 10, 0, StackEndBottom},
		{"over the limit, whole", 90 << 10, 0, StackEndBottom},
		{"all that is copied whole", WholeStackBytes - aboveMain, 0, StackEndBottom},
		{"more than is copied whole", WholeStackBytes, 0, StackEndLimit},
		{"over a limit asked for", 90 << 10, DefaultStackBytes, StackEndLimit},
		{"90 KiB", 90 << 10, 128 << 10, StackEndBottom},
		{"1 MiB less a little", 1<<20 - 8<<10, MaxStackBytes, StackEndBottom},
		{"over 1 MiB", 1 << 20, MaxStackBytes, StackEndLimit},
		{"limit of one page", 10 << 10, 1, StackEndLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startTarget(t, stackTarget(t), "fill", strconv.Itoa(c.fill))
			s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, StackBytes: c.limit})
			bottom := readMainStack(t, p.pid)
			limit := c.limit
			switch {
			case limit == 0:
				limit = DefaultStackBytes
			case limit < 4096:
				limit = 4096
			}
			var loop steady
			readUntil(t, s, func(smp *Sample) bool {
				if !loop.holds(smp) {
					return false
				}
				stack := smp.Regions[0]
				sp := smp.Regs.Raw(smp.Arch.SP)
				if belowSP != 0 && stack.Addr == sp {
					return false // still in the system call that said it is ready
				}
				if stack.Addr != sp-belowSP || smp.StackEnd != c.end {
					t.Errorf("stack at %#x (SP %#x) ends by %v, want %v", stack.Addr, sp, smp.StackEnd, c.end)
				}
				n := len(fromSP(t, smp))
				switch {
				case c.end == StackEndLimit && n != limit:
					t.Errorf("%d bytes with a limit of %d", n, limit)
				case c.end == StackEndBottom && (n < c.fill || n > c.fill+aboveMain || sp+uint64(n) < bottom):
					t.Errorf("%d bytes for %d, up to %#x for %#x", n, c.fill, sp+uint64(n), bottom)
				}
				if live := smp.LiveBytes; live < bottom-sp || live > bottom-sp+aboveMain {
					t.Errorf("%d live bytes, %d from SP to the start", live, bottom-sp)
				}
				if want := p.memory(t, stack.Addr, len(stack.Data)); !bytes.Equal(stack.Data, want) {
					t.Errorf("the copy of %d bytes differs from the memory", n)
				}
				return true
			})
		})
	}
}

// Of a stack that is cut the parts asked for are copied, up to its end, as far as a
// whole stack would be: but not what is there anyway, and nothing beyond a limit asked
// for. Before, the last of it is.
func TestStackParts(t *testing.T) {
	const fill, part, outer = 512 << 10, 16 << 10, 64 << 10
	for _, c := range []struct {
		name    string
		changes bool
		limit   int
		want    int // parts
	}{
		{"all", false, 0, 3},
		{"changes", true, 0, 3},
		{"limit", false, DefaultStackBytes, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startTarget(t, stackTarget(t), "fill", strconv.Itoa(fill))
			s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, StackBytes: c.limit, Changes: c.changes})
			var loop steady
			var from []uint64
			told, seen := uint64(0), 0
			readUntil(t, s, func(smp *Sample) bool {
				if !loop.holds(smp) {
					return false
				}
				sp := smp.Regs.Raw(smp.Arch.SP)
				end := sp + smp.LiveBytes
				if from == nil {
					last := (end+4095)&^4095 - outer
					for i, r := range smp.Regions[1:] {
						if n := min(part, end-last); c.want == 0 || r.Addr != last || uint64(len(r.Data)) != n {
							t.Errorf("outer part %d of %d bytes at %#x, want %d at %#x", i, len(r.Data), r.Addr, n, last)
						}
						last += part
					}
					if c.want > 0 && last < end {
						t.Errorf("%d parts end at %#x, the stack at %#x", smp.StackParts, last, end)
					}
					page := sp &^ 4095
					from = []uint64{page + 4096, page + 200<<10, page + 400<<10, (end - 1) &^ 4095, (end + 8191) &^ 4095}
					var parts [StackParts]uint64
					copy(parts[:], from)
					if err := s.SetStackParts(p.pid, &parts); err != nil {
						t.Fatal(err)
					}
					told = monotonic() + uint64(10*time.Millisecond) // a sample may be under way
				}
				if smp.Time <= told {
					return false
				}
				if smp.StackEnd != StackEndLimit || smp.StackParts > c.want || len(smp.Regions) != 1+smp.StackParts {
					t.Fatalf("ended by %v, %d regions, %d parts", smp.StackEnd, len(smp.Regions), smp.StackParts)
				}
				seen++
				if smp.StackParts < c.want || seen < 20 {
					return seen > 2000
				}
				for i, r := range smp.Regions[1:] {
					want := from[1+i]
					if n := min(part, end-want); r.Addr != want || uint64(len(r.Data)) != n {
						t.Errorf("part of %d bytes at %#x, want %d at %#x", len(r.Data), r.Addr, n, want)
					}
					if !bytes.Equal(r.Data, p.memory(t, r.Addr, len(r.Data))) {
						t.Errorf("the part at %#x differs from the memory", r.Addr)
					}
				}
				return true
			})
			if seen > 2000 {
				t.Errorf("no sample with %d parts", c.want)
			}
		})
	}
}

// A copy ends at a page that cannot be read, at the very byte.
func TestStackEndsAtHole(t *testing.T) {
	p := startTarget(t, stackTarget(t), "hole")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	readUntil(t, s, func(smp *Sample) bool {
		if smp.Regs.Raw(smp.Arch.SP)%4096 != 8 {
			return false
		}
		data := fromSP(t, smp)
		if smp.StackEnd != StackEndUnreadable || len(data) != 4*4096-8 || bytes.Count(data, []byte{0x5a}) != len(data) {
			t.Errorf("%d bytes, ended by %v", len(data), smp.StackEnd)
		}
		if smp.LiveBytes != 0 {
			t.Errorf("%d live bytes on a stack of unknown end", smp.LiveBytes)
		}
		return true
	})
}

// Without a readable stack a sample still has its registers, and is counted.
func TestUnreadableStack(t *testing.T) {
	p := startTarget(t, stackTarget(t), "nowhere")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	readUntil(t, s, func(smp *Sample) bool {
		if smp.Regs.Raw(smp.Arch.SP) != 0x10000 {
			return false
		}
		if smp.StackEnd != StackEndUnreadable || len(smp.Regions) != 1 || len(smp.Regions[0].Data) != 0 {
			t.Errorf("ended by %v, regions %v", smp.StackEnd, smp.Regions)
		}
		if st := stats(t, s); st.UnreadableStack == 0 || st.UnreadableStack > st.Samples {
			t.Errorf("%d of %d samples without stack", st.UnreadableStack, st.Samples)
		}
		return true
	})
}

// What is above the main thread's usual first frame is copied once it is known to be needed.
func TestStartsAbove(t *testing.T) {
	p := startTarget(t, stackTarget(t), "fill", "100")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	var usual uint64
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if smp.TID != smp.PID || !loop.holds(smp) || smp.StackEnd != StackEndBottom {
			return false
		}
		end := smp.Regs.Raw(smp.Arch.SP) + uint64(len(fromSP(t, smp)))
		if usual == 0 {
			usual = end
			if err := s.SetStartsAbove(p.pid); err != nil {
				t.Fatal(err)
			}
		}
		if more := int64(end - usual); more != 0 && more < 256 {
			t.Fatalf("the copy ends %d bytes above the usual end", more)
		}
		return end != usual
	})
}

// A thread's stack goes on past its end until its end is learned.
func TestLearnedStackEnd(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "2")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	var end uint64
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if smp.TID == smp.PID || !loop.holds(smp) {
			return false
		}
		sp := smp.Regs.Raw(smp.Arch.SP)
		if end == 0 {
			if smp.StackEnd == StackEndBottom || smp.LiveBytes != 0 {
				t.Errorf("unknown end: ended by %v, %d live bytes", smp.StackEnd, smp.LiveBytes)
			}
			end = sp + 100
			if err := s.SetStackEnd(int(smp.TID), end); err != nil {
				t.Fatal(err)
			}
			return false
		}
		if smp.StackEnd != StackEndBottom {
			return false // taken before
		}
		if n := len(fromSP(t, smp)); n != 100 || smp.LiveBytes != 100 {
			t.Errorf("%d bytes, %d live, want 100", n, smp.LiveBytes)
		}
		if err := s.SetStackEnd(int(smp.TID), 0); err != nil {
			t.Fatal(err)
		}
		return true
	})
	readUntil(t, s, func(smp *Sample) bool { return smp.TID != smp.PID && smp.StackEnd != StackEndBottom })
}

// Threads of which nothing is learned end as others of their process.
func TestThreadEnds(t *testing.T) {
	p := startTarget(t, stackTarget(t), "threads", "4")
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	var below uint64
	loops, ended := map[int32]*steady{}, map[int32]bool{}
	readUntil(t, s, func(smp *Sample) bool {
		loop := loops[smp.TID]
		if loop == nil {
			loop = &steady{}
			loops[smp.TID] = loop
		}
		if smp.TID == smp.PID || !loop.holds(smp) {
			return false
		}
		sp := smp.Regs.Raw(smp.Arch.SP)
		if below == 0 {
			below = smp.Regs.ThreadPointer - (sp + 100)
			if err := s.SetThreadEnds(p.pid, below); err != nil {
				t.Fatal(err)
			}
		}
		if smp.StackEnd != StackEndBottom {
			return false // taken before
		}
		if n, want := len(fromSP(t, smp)), smp.Regs.ThreadPointer-below-sp; uint64(n) != want || smp.LiveBytes != want {
			t.Errorf("%d bytes, %d live, want %d", n, smp.LiveBytes, want)
		}
		ended[smp.TID] = true
		return len(ended) == 2
	})
	if err := s.SetThreadEnds(p.pid, 0); err != nil {
		t.Fatal(err)
	}
	readUntil(t, s, func(smp *Sample) bool { return smp.TID != smp.PID && smp.StackEnd != StackEndBottom })
}

// The stack of a thread is copied whole beyond the limit, too, before its end is
// learned: then up to what belongs to the thread at its top.
func TestDeepThread(t *testing.T) {
	const fill = 90 << 10
	p := startTarget(t, stackTarget(t), "deep", strconv.Itoa(fill))
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	learned := 0
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if smp.TID == smp.PID || !loop.holds(smp) {
			return false
		}
		sp, n := smp.Regs.Raw(smp.Arch.SP), len(fromSP(t, smp))
		if learned == 0 {
			if top := smp.Regs.ThreadPointer; smp.StackEnd != StackEndLimit || n < fill || sp+uint64(n) != top {
				t.Fatalf("%d bytes up to %#x, the thread pointer is %#x, ended by %v", n, sp+uint64(n), top, smp.StackEnd)
			}
			learned = n - 100
			if err := s.SetStackEnd(int(smp.TID), sp+uint64(learned)); err != nil {
				t.Fatal(err)
			}
		}
		if smp.StackEnd != StackEndBottom {
			return false // taken before
		}
		if n != learned || smp.LiveBytes != uint64(learned) {
			t.Errorf("%d bytes, %d live, want %d", n, smp.LiveBytes, learned)
		}
		return true
	})
}

// The stack of a child that its parent waits for ends where the parent said, with clone above
// what the C library has put there.
func TestSpawnedStackEnd(t *testing.T) {
	for _, c := range []struct {
		name     string
		nr, want int
	}{{"clone", unix.SYS_CLONE, 512 + 16}, {"clone3", unix.SYS_CLONE3, 512}} {
		t.Run(c.name, func(t *testing.T) {
			p := startTarget(t, stackTarget(t), "spawn", strconv.Itoa(c.nr))
			s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid, childOf(t, p.pid)}})
			var loop steady
			readUntil(t, s, func(smp *Sample) bool {
				if int(smp.PID) == p.pid || !loop.holds(smp) {
					return false
				}
				data := fromSP(t, smp)
				if smp.StackEnd != StackEndBottom || int(smp.LiveBytes) != c.want || len(data) != c.want ||
					!bytes.Equal(data[:512], bytes.Repeat([]byte{0x5a}, 512)) {
					t.Errorf("%d bytes, %d live, ended by %v", len(data), smp.LiveBytes, smp.StackEnd)
				}
				return true
			})
		})
	}
}

// childOf waits until a process has a child.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	file := fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if child, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			return child
		}
		if time.Now().After(end) {
			t.Fatalf("process %d has no child", pid)
		}
	}
}

// The first region is found by its address whatever the thread runs.
func TestRegionsMatchRegisters(t *testing.T) {
	s := startSession(t, Config{Frequency: 997, Kernel: true})
	burn(t, 200)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	n := 0
	drain(t, s, func(smp *Sample) {
		n++
		if !smp.HasUser() {
			if len(smp.Regions) != 0 || smp.StackEnd != StackEndNone || smp.Regs != (procstate.Regs{}) {
				t.Errorf("%v sample of %s has user data", smp.User, smp.CommString())
			}
			return
		}
		if len(smp.Regions) == 0 {
			t.Errorf("sample of %s has no stack", smp.CommString())
			return
		}
		if at := smp.Regions[0].Addr; at > smp.Regs.Raw(smp.Arch.SP) && at%4096 == 0 {
			return // the page of SP itself was not there
		}
		fromSP(t, smp)
	})
	if n == 0 {
		t.Error("no samples of a busy machine")
	}
}

// Pages that a large frame has not touched are not there; the copy goes on
// behind them.
func TestStackWithHole(t *testing.T) {
	const frame = 80 << 10
	p := startTarget(t, stackTarget(t), "gap", strconv.Itoa(frame))
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, StackBytes: 128 << 10})
	bottom := readMainStack(t, p.pid)
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if !loop.holds(smp) {
			return false
		}
		copied := 0
		for i, r := range smp.Regions {
			copied += len(r.Data)
			if !bytes.Equal(r.Data, p.memory(t, r.Addr, len(r.Data))) {
				t.Errorf("region %d of %d bytes differs from the memory", i, len(r.Data))
			}
		}
		last := smp.Regions[len(smp.Regions)-1]
		if len(smp.Regions) != 2 || smp.StackEnd != StackEndBottom || last.Addr+uint64(len(last.Data)) < bottom {
			t.Errorf("%d regions, the last up to %#x for %#x, ended by %v",
				len(smp.Regions), last.Addr+uint64(len(last.Data)), bottom, smp.StackEnd)
		}
		if copied < 1024 || copied > frame/2 {
			t.Errorf("%d bytes of a stack with a hole of some %d", copied, frame)
		}
		return true
	})
}

// What is there of a stack is copied, and nothing else: as a page is met that is not there, and
// once the kernel side knows how to ask the page tables, by these.
func TestStackWithHoles(t *testing.T) {
	const frame = 600 << 10
	for _, c := range []struct {
		name          string
		tables, diffs bool
	}{
		{name: "by faults"},
		{"by page tables", true, false},
		{"by page tables, changes", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.tables && runtime.GOARCH != "amd64" {
				t.Skip("page tables are read on amd64 alone")
			}
			kernelTest(t)
			p := startTarget(t, stackTarget(t), "scatter", strconv.Itoa(frame))
			s, err := Open(Config{Frequency: 997, PIDs: []int{p.pid}, StackBytes: 1 << 20, Changes: c.diffs})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.toldPages = !c.tables
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.pid))
			if err != nil {
				t.Fatal(err)
			}
			defer pages.Close()
			var loop steady
			n := 0
			readUntil(t, s, func(smp *Sample) bool {
				if !loop.holds(smp) || c.tables && !s.toldPages {
					return false
				}
				n++ // those that were in the ring when it was told are not by tables
				checkPages(t, pages, smp)
				return n == 250 || t.Failed()
			})
			if told := s.rings.cpus[0].pageTables.Memory != 0; told != c.tables {
				t.Errorf("page tables: %v", told)
			}
		})
	}
}

// checkPages compares which pages of a stack are in a sample with what the process's pagemap says.
func checkPages(t *testing.T, pagemap *os.File, smp *Sample) {
	t.Helper()
	const page = 4096
	regions := smp.StackRegions()
	last := regions[len(regions)-1]
	first, end := regions[0].Addr/page, (last.Addr+uint64(len(last.Data))+page-1)/page
	entries := make([]uint64, end-first)
	if _, err := pagemap.ReadAt(unsafe.Slice((*byte)(unsafe.Pointer(&entries[0])), 8*len(entries)), int64(first*8)); err != nil {
		t.Fatal(err)
	}
	copied := map[uint64]bool{}
	for _, r := range regions {
		for at := r.Addr / page; at*page < r.Addr+uint64(len(r.Data)); at++ {
			copied[at] = true
		}
	}
	for i, e := range entries {
		if there := e>>63 != 0; there != copied[first+uint64(i)] {
			t.Errorf("page %d of %d: there %v, copied %v", i, len(entries), there, copied[first+uint64(i)])
		}
	}
	if len(regions) < 20 || smp.StackEnd != StackEndBottom {
		t.Errorf("%d regions, ended by %v", len(regions), smp.StackEnd)
	}
}

// So it does in a thread whose stack's end is not known yet, up to what belongs to
// the thread at its top: until a walk gets there, nobody learns it.
func TestThreadWithHole(t *testing.T) {
	const frame = 30 << 10
	p := startTarget(t, stackTarget(t), "sparse", strconv.Itoa(frame))
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}})
	var loop steady
	readUntil(t, s, func(smp *Sample) bool {
		if smp.TID == smp.PID || !loop.holds(smp) {
			return false
		}
		last, top := smp.Regions[len(smp.Regions)-1], smp.Regs.ThreadPointer
		if len(smp.Regions) != 2 || smp.StackEnd != StackEndLimit || last.Addr+uint64(len(last.Data)) != top {
			t.Errorf("%d regions, the last up to %#x, the thread pointer is %#x, ended by %v",
				len(smp.Regions), last.Addr+uint64(len(last.Data)), top, smp.StackEnd)
		}
		return true
	})
}

// Stacks over the limit are copied whole wherever in the ring they come to lie, while few
// samples wait: also when a reader leaves the newest there, and a ring is never empty.
func TestWholeStacksBehindOthers(t *testing.T) {
	const fill, samples = 100 << 10, 300
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	p := startTarget(t, stackTarget(t), "fill", strconv.Itoa(fill))
	s := startSession(t, Config{Frequency: 997, PIDs: []int{p.pid}, RingBytes: possible * 4 << 20})
	whole, cut := 0, 0
	for end := time.Now().Add(patience); whole+cut < samples; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d samples", whole+cut)
		}
		// Some ten samples are newer: with two CPUs more than the reader copies out of the ring.
		err := s.ReadSamples(monotonic()-uint64(10*time.Millisecond), func(smp *Sample) error {
			if smp.StackEnd == StackEndBottom {
				whole++
			} else {
				cut++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Now and then a test has to wait for its turn.
	if cut > samples/5 {
		t.Errorf("%d of %d stacks were cut", cut, whole+cut)
	}
}

// Most samples of a program's main thread are taken in the straight line of
// bpf/usual.h, in user code and in the kernel: elsewhere they cost more, and nothing
// else tells.
func TestUsualSamples(t *testing.T) {
	for _, c := range []struct {
		args    []string
		changes bool
		kernel  float64 // share of the samples that are in the kernel, at least
	}{
		{args: []string{"fill", "3000"}},
		{args: []string{"fill", "3000"}, changes: true},
		{args: []string{"getppid", "1000000000"}, kernel: 0.2},
		{args: []string{"getppid", "1000000000"}, changes: true, kernel: 0.2},
	} {
		t.Run(fmt.Sprint(c.args, c.changes), func(t *testing.T) {
			p := exec.Command(stackTarget(t), c.args...)
			testenv.Start(t, p)
			s := startSession(t, Config{Frequency: 997, PIDs: []int{p.Process.Pid}, Kernel: true, Changes: c.changes})
			n, inKernel := 0, 0
			readUntil(t, s, func(smp *Sample) bool {
				if n++; len(smp.Kernel) > 0 {
					inKernel++
				}
				return n == 500
			})
			if st := stats(t, s); float64(st.Usual) < 0.95*float64(st.Samples) || float64(inKernel) < c.kernel*float64(n) {
				t.Errorf("%d of %d in a straight line, %d of %d in the kernel", st.Usual, st.Samples, inKernel, n)
			}
		})
	}
}
