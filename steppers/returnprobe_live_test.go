package steppers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/btf"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// nestedProgram calls down a known chain, recursion and a tail call included,
// from the end of which it makes ARGV[1] times ARGV[2] system calls getppid;
// in between it returns all the way.
const nestedProgram = `
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static long calls;
volatile long sink;
#define F __attribute__((noinline))
F void leaf(void) { for (long i = 0; i < calls; i++) sink += syscall(SYS_getppid); sink++; }
F void tail(void) { leaf(); sink++; }
F void jumper(void) { sink++; tail(); }
F void rec(int n) { volatile char pad[40]; pad[n] = n; if (n) rec(n - 1); else jumper(); sink += pad[n]; }
F void f5(void) { rec(9); sink++; }
F void f4(void) { f5(); sink++; }
F void f3(void) { f4(); sink++; }
F void f2(void) { f3(); sink++; }
F void f1(void) { f2(); sink++; }
int main(int argc, char **argv) {
	(void)argc;
	calls = atol(argv[2]);
	for (long i = atol(argv[1]); i > 0; i--) f1();
	return 0;
}
`

// nestedChain is the way down, without jumper, which may have jumped away.
var nestedChain = []string{"main", "f1", "f2", "f3", "f4", "f5",
	"rec", "rec", "rec", "rec", "rec", "rec", "rec", "rec", "rec", "rec", "tail", "leaf"}

// uretprobe puts a uretprobe on a function of a file until the test is over,
// in one process or (-1) in all.
func uretprobe(t *testing.T, im *procstate.Image, path, function string, pid int) {
	t.Helper()
	pmu := func(file string) uint64 {
		b, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/" + file)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(b), "config:")), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var offset uint64
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == function {
			offset, _ = im.OffsetOfVaddr(s.Value, 1)
		}
		return offset == 0
	})
	if offset == 0 {
		t.Fatalf("%s has no function %s", path, function)
	}
	name := append([]byte(path), 0)
	attr := unix.PerfEventAttr{
		Type: uint32(pmu("type")), Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: 1 << pmu("format/retprobe"),
		Ext1:   uint64(uintptr(unsafe.Pointer(&name[0]))), Ext2: offset,
	}
	cpu := -1
	if pid < 0 {
		cpu = 0 // one for all
	}
	fd, err := unix.PerfEventOpen(&attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		t.Fatalf("uretprobe on %s: %v", function, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// walkedSample is the outcome of the walk of a sample.
type walkedSample struct {
	names []string // root first, of the program's functions alone
	top   string   // where the thread was: a function, or the number of a PC
	err   error
	pcs   []unwind.PC
	page  bool // the thread was in the page of uprobes
}

// recordNested runs the program under an event, with uretprobes on functions,
// and calls fn for each sample.
func recordNested(t *testing.T, group *unwind.AddressRangeGroup, path string, cfg loader.Config, probes []string, args []string, fn func(*walkedSample)) {
	t.Helper()
	cmd, err := loader.StartCommand(append([]string{path}, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cmd.Kill)
	im := steptest.OpenImage(t, path)
	for _, p := range probes {
		uretprobe(t, im, path, p, cmd.PID())
	}
	cfg.PIDs = []int{cmd.PID()}
	cfg.RingBytes = 64 << 20
	s, err := loader.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sb, err := loader.OpenSideband(loader.SidebandConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	images := procstate.NewImages(0)
	defer images.Close()
	procs := loader.NewProcesses(loader.ProcessesConfig{Sideband: sb, Images: images, PIDs: []int32{int32(cmd.PID())}})
	if err := procs.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	cmd.Resume()
	functions := functionsOf(im)
	poll := func(upTo uint64) {
		err := s.ReadSamples(upTo, func(p *loader.Sample) error {
			procs.Advance(p.Time)
			proc := procs.Process(p.PID)
			if proc == nil || !p.HasUser() {
				return nil
			}
			pc := p.Regs.Raw(p.Arch.PC)
			at := proc.Space.MappingAt(pc)
			if at == nil && p.Probes.Trampoline == 0 {
				return nil
			}
			if m := findMapping(proc.Space, path); m == nil {
				return nil // before the exec
			}
			snap := procstate.NewSnapshot(p.Arch, int(p.PID), proc.Exe, proc.Space)
			snap.Reset(procstate.ThreadID(p.TID), &p.Regs, p.Regions)
			snap.SetUserProbes(p.Probes)
			var ws walkedSample
			ws.pcs, ws.err = unwind.NewWalker(snap, group, nil).WalkPCs(nil, &p.Regs)
			ws.top = fmt.Sprintf("%#x", p.Regs.Raw(p.Arch.PC))
			ws.page = p.Probes.Trampoline != 0 && pc-p.Probes.Trampoline < 4096 ||
				at != nil && strings.HasPrefix(at.Path, procstate.UprobeCallsMapping)
			for i, pc := range ws.pcs {
				m := proc.Space.MappingAt(pc.Addr)
				if m == nil || m.Path != path {
					continue
				}
				if name := nameAt(functions, pc.Addr-m.Bias); name != "" {
					ws.names = append(ws.names, name)
					if i == 0 {
						ws.top = name
					}
				}
			}
			slices.Reverse(ws.names)
			fn(&ws)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for done, deadline := false, time.After(4*time.Minute); !done; {
		select {
		case <-cmd.Done():
			done = true
		case <-deadline:
			t.Fatal("the program does not end")
		case <-time.After(5 * time.Millisecond):
			poll(procs.Collect())
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	procs.Collect()
	poll(^uint64(0))
	if st, err := s.Stats(); err != nil || st.Lost() != 0 {
		t.Errorf("lost samples: %v, %v", st.LostByReason(), err)
	}
}

func findMapping(space *procstate.AddressSpace, path string) *procstate.Mapping {
	for _, m := range space.Mappings() {
		if m.Path == path {
			return m
		}
	}
	return nil
}

type functionRange struct {
	start, end uint64
	name       string
}

// functionsOf lists the functions that nestedProgram itself defines.
func functionsOf(im *procstate.Image) []functionRange {
	var out []functionRange
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if name := string(s.Name); slices.Contains(nestedChain, name) || name == "jumper" || slices.Contains(alternateFunctions, name) {
			out = append(out, functionRange{s.Value, s.Value + s.Size, name})
		}
		return true
	})
	return out
}

func nameAt(functions []functionRange, vaddr uint64) string {
	for _, f := range functions {
		if vaddr-f.start < f.end-f.start {
			return f.name
		}
	}
	return ""
}

// nestedBuilds are compilers and the steppers that walk what they make: with
// call frame information, by frame pointers, by data flow, in 32 bits.
var nestedBuilds = []struct {
	name    string
	cc      []string
	stepper func() unwind.FrameStepper
}{
	{"CFI", []string{"gcc", "-O2"}, nil},
	{"unoptimised", []string{"gcc", "-O0"}, nil},
	{"frame pointers", []string{"gcc", "-O2", "-fno-omit-frame-pointer"}, func() unwind.FrameStepper { return NewFrameFunc(nil) }},
	{"data flow", []string{"gcc", "-O2"}, func() unwind.FrameStepper { return NewAnalysis() }},
	{"32 bits", []string{"gcc", "-m32", "-O2"}, nil},
}

// groupWith makes the default group, or one with a single stepper in place of
// Debug for the program, which leaves it only what it must know.
func groupWith(stepper func() unwind.FrameStepper) *unwind.AddressRangeGroup {
	tables := unwind.NewTables()
	if stepper == nil {
		return Default(tables)
	}
	return unwind.NewGroup(NewBottom(), NewDynamic(nil), stepper(), &onlyLibraries{*NewDebug(tables)})
}

// onlyLibraries is a Debug stepper that does not know the program itself.
type onlyLibraries struct{ Debug }

func (d *onlyLibraries) Priority() unwind.Priority { return unwind.PriorityFrame - 1 }

func (d *onlyLibraries) CallerFrame(w *unwind.Walker, in, out *unwind.Frame) (unwind.Verdict, error) {
	if m := w.MappingAt(in.LookupPC()); m == nil || strings.Contains(filepath.Base(m.Path), "nested") {
		return unwind.NotMe, nil
	}
	return d.Debug.CallerFrame(w, in, out)
}

// Stacks under nested uretprobes are whole: the same chain of functions as
// the program has, down to a recognised bottom, and the same PCs as without
// the probes.
func TestStacksUnderReturnProbes(t *testing.T) {
	steptest.NeedPtrace(t)
	event, err := loader.ParseEvent("raw_syscalls:sys_enter")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range nestedBuilds {
		t.Run(b.name, func(t *testing.T) {
			if slices.Contains(b.cc, "-m32") {
				testenv.Needs32Bit(t)
			}
			path := steptest.Compile(t, b.cc, "nested.c", nestedProgram)
			collect := func(probes []string) map[string]int {
				stacks := map[string]int{}
				recordNested(t, groupWith(b.stepper), path, loader.Config{Event: event}, probes, []string{"3", "50"}, func(s *walkedSample) {
					if !slices.Contains(s.names, "leaf") {
						return // the C library's start and end
					}
					if s.err != nil {
						t.Errorf("walk ends with %v after %v", s.err, s.names)
					}
					names := slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return n == "jumper" })
					if !slices.Equal(names, nestedChain) {
						t.Errorf("chain %v", s.names)
					}
					stacks[strings.Join(s.names, " ")+fmt.Sprint(len(s.pcs))]++
				})
				return stacks
			}
			plain := collect(nil)
			probed := collect([]string{"f1", "f2", "f3", "f4", "f5", "rec", "jumper", "tail", "leaf"})
			if fmt.Sprint(probed) != fmt.Sprint(plain) || len(probed) != 1 {
				t.Errorf("stacks %v, without probes %v", probed, plain)
			}
		})
	}
}

// A timer meets the program anywhere, in the kernel's trampoline and in its
// handling of breakpoints too. A stack that is complete is a way down the
// chain that the program has. Few may be short, as an original return address
// is nowhere at times: Linux 6.18 lets samples that fall there be put off.
func TestStacksWhileReturning(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O2"}, "nested.c", nestedProgram)
	event, err := loader.ParseEvent("cpu-clock")
	if err != nil {
		t.Fatal(err)
	}
	samples, inPage, short := 0, 0, 0
	for runs := 0; (samples < 100 || inPage == 0) && runs < 100; runs++ { // how many a run has, the processor decides
		recordNested(t, Default(unwind.NewTables()), path, loader.Config{Event: event, Frequency: 4999},
			[]string{"f1", "f2", "f3", "f4", "f5", "rec", "jumper", "tail", "leaf"}, []string{"2000", "0"}, func(s *walkedSample) {
				if len(s.names) == 0 && !s.page {
					return // the loader
				}
				samples++
				if s.page {
					inPage++
				}
				if s.err != nil {
					short++
					return
				}
				names := slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return n == "jumper" })
				if len(names) > len(nestedChain) || !slices.Equal(names, nestedChain[:len(names)]) {
					t.Errorf("at %s: %v, %x", s.top, s.names, s.pcs)
				}
			})
	}
	t.Logf("%d samples, %d in the page of uprobes, %d short", samples, inPage, short)
	if samples < 100 || inPage == 0 {
		t.Error("too few samples")
	}
	var putOff *btf.Func
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	if spec.TypeByName("bpf_task_work_schedule_resume_impl", &putOff) == nil && short*100 > samples {
		t.Error("too many stacks are short")
	}
}

// A uprobe on an instruction of 5 bytes that does nothing becomes a call, which a timer
// meets anywhere. All stacks are the same way down the chain.
func TestStacksAtOptimizedProbes(t *testing.T) {
	atOptimized(t)
	const loop = "i < calls; i++) "
	path := steptest.Compile(t, []string{"gcc", "-O2"}, "nested.c", strings.Replace(nestedProgram, loop+"sink += syscall(SYS_getppid);",
		loop+`{ __asm__ volatile(".globl probed\nprobed: .byte 0x0f, 0x1f, 0x44, 0, 0"); sink++; }`, 1))
	putProbe(t, "uprobe:"+path+":probed")
	event, err := loader.ParseEvent("cpu-clock")
	if err != nil {
		t.Fatal(err)
	}
	samples, inPage, short := 0, 0, 0
	for runs := 0; (samples < 200 || inPage < 10) && runs < 20; runs++ {
		recordNested(t, Default(unwind.NewTables()), path, loader.Config{Event: event, Frequency: 4999}, nil, []string{"1", "200000"}, func(s *walkedSample) {
			if !s.page && !slices.Contains(s.names, "leaf") {
				return // before and after the loop
			}
			samples++
			if s.page {
				inPage++
			}
			if s.err != nil {
				short++
				return
			}
			names := slices.DeleteFunc(slices.Clone(s.names), func(n string) bool { return n == "jumper" })
			if !slices.Equal(names, nestedChain) {
				t.Errorf("at %s: %v, %x", s.top, s.names, s.pcs)
			}
		})
	}
	t.Logf("%d samples, %d in the page of calls, %d short", samples, inPage, short)
	if samples < 200 || inPage < 10 || short*100 > samples {
		t.Error("too few samples, or too many that are short")
	}
}

// At each instruction of the page that a uprobe has become a call of the stack is that of
// the place of the probe.
func TestStepsThroughOptimizedProbe(t *testing.T) {
	p, tid := atOptimized(t)
	w := unwind.NewWalker(p, Default(unwind.NewTables()), nil)
	var want []unwind.Frame // from the probe's place on
	var offsets []uint64
	for range 100 {
		frames, err := w.WalkStack(nil, tid)
		if err != nil {
			t.Fatalf("%v at %#x", err, frames[0].PC())
		}
		m := w.MappingAt(frames[0].PC())
		if m == nil || !strings.HasPrefix(m.Path, procstate.UprobeCallsMapping) {
			if len(offsets) > 0 {
				break
			}
			want = frames
		} else {
			offsets = append(offsets, frames[0].PC()-m.Start)
			frames = frames[1:]
			if len(frames) != len(want) {
				t.Fatalf("%d frames, want %d", len(frames), len(want))
			}
			for i := range want {
				if frames[i].PC() != want[i].PC() || frames[i].SP() != want[i].SP() || frames[i].FP() != want[i].FP() {
					t.Errorf("%#x: frame %d: pc %#x sp %#x, want %#x %#x", offsets, i, frames[i].PC(), frames[i].SP(), want[i].PC(), want[i].SP())
				}
			}
		}
		if err := p.Step(int(tid)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(offsets, []uint64{0, 1, 3, 4, 11, 13, 14, 16, 17}) {
		t.Errorf("instructions %d", offsets)
	}
}

// atOptimized is a process that is about to come to a uprobe that has become a call. It
// ends a test where the kernel makes no calls of such uprobes.
func atOptimized(t *testing.T) (*steptest.Process, procstate.ThreadID) {
	t.Helper()
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O1"}, "optimized.c", `
__attribute__((noinline)) void hit(void) { __asm__ volatile(".globl probed\nprobed: .byte 0x0f, 0x1f, 0x44, 0, 0"); }
int main(void) {
	for (int i = 0; i < 100; i++) hit();
	__asm__ volatile("int3");
	hit();
	return 0;
}`)
	putProbe(t, "uprobe:"+path+":probed")
	p, tid := steptest.StartToTrap(t, path)
	if err := p.UpdateMappings(); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(p.Libraries().(*procstate.AddressSpace).Mappings(), func(m *procstate.Mapping) bool {
		return strings.HasPrefix(m.Path, procstate.UprobeCallsMapping)
	}) {
		t.Skip("this kernel makes no calls of uprobes on instructions of 5 bytes: Linux 6.18 does on x86-64")
	}
	return p, tid
}

// putProbe puts a uprobe into all processes until the test is over.
func putProbe(t *testing.T, name string) {
	t.Helper()
	event, err := loader.ParseEvent(name)
	if err != nil {
		t.Fatal(err)
	}
	probe, err := loader.PutProbe(event, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { probe.Close() })
}

const probedProgram = `
__attribute__((noinline)) int probed(int n) {
	volatile char pad[32];
	pad[n] = 1;
	if (n == 0) { __asm__ volatile("int3"); return 1; }
	return probed(n - 1) + pad[n];
}
__attribute__((noinline)) int between(int n) { return probed(n) + 1; }
int main(void) { return between(3) == 0; }
`

// knownProbes is a process with the return addresses that a caller knows.
type knownProbes struct {
	procstate.ProcessState
	known procstate.UserProbes
}

func (p *knownProbes) UserProbes() *procstate.UserProbes { return &p.known }

// A stopped process under nested uretprobes is walked whole by one who knows
// the return addresses: as the same program without probes.
func TestReturnProbesOfCaller(t *testing.T) {
	steptest.NeedPtrace(t)
	path := steptest.Compile(t, []string{"gcc", "-O1", "-no-pie", "-static", "-fno-optimize-sibling-calls"}, "probed.c", probedProgram)
	var probes knownProbes
	group := Default(unwind.NewTables())
	stopped := func() *unwind.Walker {
		probes.ProcessState, _ = steptest.StartToTrap(t, path)
		return unwind.NewWalker(&probes, group, nil)
	}
	want, err := stopped().WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		t.Fatal(err)
	}
	uretprobe(t, steptest.OpenImage(t, path), path, "probed", -1)
	w := stopped()
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err == nil || len(frames) >= len(want) {
		t.Fatalf("%d frames and %v without knowledge of the probes", len(frames), err)
	}
	// The kernel knows what it replaced. Here the run without probes tells,
	// whose stack is the same but for where it is.
	shift := frames[0].SP() - want[0].SP()
	probes.known.Trampoline = frames[len(frames)-1].PC()
	for _, f := range want[1:] {
		probes.known.Returns = append(probes.known.Returns, procstate.ReplacedReturn{Stack: f.SP() + shift - 8, RA: f.PC()})
	}
	if frames, err = w.WalkStack(nil, procstate.DefaultThread); err != nil {
		t.Fatalf("%v after %d frames", err, len(frames))
	}
	if len(frames) != len(want) {
		t.Fatalf("%d frames, want %d", len(frames), len(want))
	}
	for i := range want {
		if frames[i].PC() != want[i].PC() || frames[i].SP() != want[i].SP()+shift {
			t.Errorf("frame %d: pc %#x sp %#x, want %#x %#x", i, frames[i].PC(), frames[i].SP(), want[i].PC(), want[i].SP()+shift)
		}
	}
}
