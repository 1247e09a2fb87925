package oracle

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/emulated"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// Options tell what to run and how.
type Options struct {
	Args    []string // the program and its arguments
	Env     []string // added to the environment
	Dir     string   // working directory; "" is the caller's
	Configs []Config
	Output  io.Writer // of the program; nil discards it

	// Steps bounds the instructions that are judged; 0 is no bound.
	Steps int

	// Thread judges the first thread that the program starts, from its first
	// instruction on, and lets the others run.
	Thread bool

	// Child judges the program until it makes a child process, and then that
	// child in its place.
	Child bool

	// Trampoline, when not 0, is the address of code that the program itself puts
	// in place of return addresses.
	Trampoline uint64

	// Tramps are the instrumentation of the program, at link-time addresses.
	Tramps []Tramp

	// Probes are functions of the program that are put under a uretprobe.
	Probes []string

	// Marked judges from where the program first asks who its parent is, which
	// it does for nothing else. Until then it runs freely.
	Marked bool

	// Unmonitored stops the thread of the Go runtime that preempts goroutines
	// which run for 10 ms, in programs under qemu-user that are Marked.
	Unmonitored bool

	// PCs compares the PCs of frames alone, not their CFAs: of code that moves
	// its return address and takes its arguments off the stack, as that of V8
	// does, calls do not tell where a frame ends.
	PCs bool

	// Windows, when not 0, is the number of windows in which the program is
	// judged, WindowSteps instructions each, with free runs between them of
	// Skip on average. Otherwise it is judged from its entry point on.
	Windows     int
	WindowSteps int
	Skip        time.Duration
	Seed        uint64 // of the lengths of free runs

	// Fixtures, when not "", is a directory to which a Fixture is written for
	// each place where walks go astray, and for those in FixturesAt, named as
	// module+0xvaddr.
	Fixtures   string
	FixturesAt []string
}

// runner is a run in progress.
type runner struct {
	opt      *Options
	t        *tracee
	emulated *emulated.Program // in place of t
	target   *target
	images   *procstate.Images
	judges   []*judge
	seeder   *judge // all steppers, nothing hidden
	shadow   Shadow
	report   Report
	code     [16]byte
	end      uint64 // end of the stack mapping that SP was last found in
	start    uint64
}

// Run runs a program and judges every instruction of it, or of windows.
func Run(opt Options) (*Report, error) {
	if opt.Output == nil {
		opt.Output = io.Discard
	}
	if isARM64(opt.Args[0]) {
		return runEmulated(&opt)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := time.Now()
	t, err := startTracee(opt.Args, opt.Env, opt.Dir, opt.Output)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", opt.Args[0], err)
	}
	defer t.kill()
	r := newRunner(&opt, procstate.AMD64, t.pid, t.tid)
	defer r.images.Close()
	r.t = t
	entry, err := t.entry()
	if err != nil {
		return nil, err
	}
	if err := t.runTo(entry, procstate.AMD64); err != nil {
		return nil, err
	}
	if len(opt.Probes) > 0 {
		p, err := openProbes(t.pid, opt.Args[0], opt.Probes)
		if err != nil {
			return nil, err
		}
		defer p.close()
		r.target.probes = p
	}
	switch {
	case opt.Windows > 0:
		err = r.windows()
	case opt.Marked:
		if err = t.runPast(unix.SYS_GETPPID); err == nil {
			err = r.window(opt.Steps)
		}
	default:
		if opt.Thread {
			err = t.runToThread()
			r.target.tid = t.tid
		}
		if err == nil {
			err = r.remap()
			r.placeTramps()
		}
		if err == nil && opt.Child {
			err = t.watchChildren()
		}
		if err == nil {
			err = r.steps(opt.Steps)
		}
	}
	if err != nil && err != errExited {
		return nil, err
	}
	return r.finish(began), nil
}

func newRunner(opt *Options, arch *procstate.Arch, pid, tid int) *runner {
	r := &runner{opt: opt, images: procstate.NewImages(0), shadow: Shadow{trampoline: opt.Trampoline}}
	r.target = &target{arch: arch, pid: pid, tid: tid, exe: opt.Args[0], space: &procstate.AddressSpace{}, probes: &probes{}}
	for _, c := range opt.Configs {
		j := newJudge(c, r.target)
		j.fixtures, j.at, j.pcsOnly = opt.Fixtures, map[string]bool{}, opt.PCs
		for _, place := range opt.FixturesAt {
			j.at[place] = true
		}
		r.judges = append(r.judges, j)
	}
	r.seeder = newJudge(Configs[0], r.target)
	return r
}

// finish completes the report.
func (r *runner) finish(began time.Time) *Report {
	r.report.Program = fmt.Sprint(r.opt.Args)
	r.report.Elapsed = time.Since(began)
	for _, j := range r.judges {
		r.report.Results = append(r.report.Results, j.result)
	}
	return &r.report
}

// remap reads the target's mappings.
func (r *runner) remap() error {
	var space *procstate.AddressSpace
	var err error
	if r.emulated != nil {
		space, err = r.emulated.Mappings(r.images)
	} else {
		space, err = r.images.LoadAddressSpace(int32(r.target.pid))
	}
	if err != nil {
		return err
	}
	r.target.space = space
	for _, j := range append(r.judges, r.seeder) {
		if err := j.mapped(space); err != nil {
			return err
		}
	}
	r.start, r.end = 0, 0
	return nil
}

// placeTramps tells the Shadow where the program's tramps are.
func (r *runner) placeTramps() {
	bias := uint64(0)
	for _, m := range r.target.space.Mappings() {
		if m.Path == r.opt.Args[0] {
			bias = m.Bias
		}
	}
	for _, t := range r.opt.Tramps {
		r.shadow.tramps = append(r.shadow.tramps, Tramp{t.Start + bias, t.End + bias, t.Up + bias, t.Down + bias})
	}
}

// findStack finds the mapping that SP is in.
func (r *runner) findStack(sp uint64) {
	if sp >= r.start && sp < r.end {
		return
	}
	r.start, r.end = sp, sp
	entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", r.target.pid), false)
	if err != nil {
		return
	}
	for _, e := range entries {
		if sp >= e.Start && sp < e.End {
			r.start, r.end = e.Start, e.End
		}
	}
}

// capture brings the target's state up to date with the stopped thread and
// returns the code at its PC.
func (r *runner) capture() ([]byte, error) {
	if err := r.t.registers(r.target.arch, &r.target.regs); err != nil {
		return nil, errExited
	}
	sp, pc := r.target.regs.Raw(procstate.AMD64.SP), r.target.regs.Raw(procstate.AMD64.PC)
	code := r.captureAt(sp, pc)
	if r.target.probes.reader == nil {
		return code, nil
	}
	err := r.target.probes.read(r.t.tid)
	r.shadow.trampoline = r.target.probes.state.Trampoline
	switch offset := pc - r.shadow.trampoline; {
	case offset < uint64(len(trampolineCode)):
		code = r.code[:copy(r.code[:], trampolineCode[offset:])]
	case r.target.isBreakpoint(code):
		r.target.original(code, pc)
	}
	if r.shadow.trampoline != 0 && r.target.space.MappingAt(r.shadow.trampoline) == nil {
		return code, r.remap() // the kernel has just mapped it
	}
	return code, err
}

// captureAt reads the stack of the stopped thread and returns the code at pc.
func (r *runner) captureAt(sp, pc uint64) []byte {
	r.findStack(sp)
	return r.code[:r.target.capture(sp, r.end, pc, r.code[:])]
}

func (r *runner) moment() moment {
	return moment{r.target.regs.Raw(r.target.arch.PC), r.target.regs.Raw(r.target.arch.SP)}
}

// steps executes up to n instructions (0: all) and judges at each.
func (r *runner) steps(n int) error {
	code, err := r.capture()
	if err != nil {
		return err
	}
	var in isa.Inst
	sig := unix.Signal(0)
	for i := 0; n == 0 || i < n; i++ {
		from := r.moment()
		known := isa.DecodeAMD64(code, from.pc, &in)
		between := known && r.shadow.landed && pushesMemory(&in)
		r.judgeAll(r.shadow.resumed(r.target.ReadWord) || between)
		if known {
			r.shadow.watch(&in, &r.target.regs)
		}
		rax := r.target.regs.Raw(0)
		delivered := sig
		if sig, err = r.t.step(sig); err != nil {
			return err
		}
		if r.t.madeChild() {
			if err := r.toChild(); err != nil {
				return err
			}
			sig = unix.SIGTRAP
		}
		if code, err = r.capture(); err != nil {
			return err
		}
		to := r.moment()
		switch {
		case delivered != 0 && r.signalled(from, to):
			// one that is ignored is delivered to nobody: the instruction
			// was executed
		case !known:
			r.shadow.lost = true
		case in.Flow == isa.Syscall && rax == unix.SYS_RT_SIGRETURN:
			r.shadow.sigreturn(to, r.target.ReadWord)
		case sig != unix.SIGTRAP && to == from:
			// stopped before the instruction was executed
		default:
			r.shadow.step(&in, from, to, r.target.ReadWord)
			r.shadow.forget(to.sp, r.target.ReadWord)
		}
		if in.Flow == isa.Syscall && rax == unix.SYS_EXECVE && to.pc != from.pc+uint64(in.Len) {
			r.shadow = Shadow{} // another program
		}
		if in.Flow == isa.Syscall && changesMappings(rax) {
			if err := r.remap(); err != nil {
				return err
			}
			if code, err = r.capture(); err != nil {
				return err
			}
		}
		if sig == unix.SIGTRAP || sig == unix.SIGSTOP {
			sig = 0
		}
	}
	return nil
}

// toChild goes on with the child process that was just made. It runs on its
// parent's stack, or at the bottom of one of its own.
func (r *runner) toChild() error {
	if err := r.t.toChild(); err != nil {
		return err
	}
	r.target.pid, r.target.tid = r.t.pid, r.t.tid
	before := r.moment()
	if err := r.remap(); err != nil {
		return err
	}
	if _, err := r.capture(); err != nil {
		return err
	}
	if r.moment().sp != before.sp {
		r.shadow = Shadow{}
	}
	return nil
}

func changesMappings(nr uint64) bool {
	switch nr {
	case unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MREMAP, unix.SYS_MPROTECT, unix.SYS_BRK, unix.SYS_EXECVE:
		return true
	}
	return false
}

// judgeAll has every configuration walk the stack, unless no chain is the
// truth.
func (r *runner) judgeAll(between bool) {
	r.report.Steps++
	if between || r.shadow.unsettled() {
		r.report.Unjudged++
		return
	}
	for _, j := range r.judges {
		j.check(&r.shadow)
	}
}

// signalled follows the delivery of a signal to a handler, and reports whether
// the kernel has built a frame for one.
func (r *runner) signalled(from, to moment) bool {
	sp, ok1 := r.target.ReadWord(to.sp + sigframeRSP)
	pc, ok2 := r.target.ReadWord(to.sp + sigframeRIP)
	restorer, ok3 := r.target.ReadWord(to.sp)
	if ok1 && ok2 && ok3 && sp == from.sp && to.sp != from.sp {
		r.shadow.signal(moment{pc, sp}, to, restorer, 8)
		return true
	}
	return false
}

// windows lets the program run freely and judges it in between.
func (r *runner) windows() error {
	rnd := rand.New(rand.NewPCG(r.opt.Seed, 1))
	for range r.opt.Windows {
		if err := r.runFreely(time.Duration(rnd.Int64N(int64(2*r.opt.Skip) + 1))); err != nil {
			return err
		}
		if err := r.window(r.opt.WindowSteps); err != nil {
			return err
		}
	}
	return nil
}

// window judges up to n instructions (0: all) from where the program is.
func (r *runner) window(n int) error {
	if err := r.remap(); err != nil {
		return err
	}
	if _, err := r.capture(); err != nil {
		return err
	}
	r.report.Windows++
	if !r.seed() {
		r.report.BadSeeds++
		return nil
	}
	err := r.steps(n)
	if r.shadow.SeedErrors > 0 {
		r.report.BadSeeds++
	}
	return err
}

// runFreely lets the program run for some time.
func (r *runner) runFreely(d time.Duration) error {
	timer := time.AfterFunc(d, func() { _ = unix.Tgkill(r.t.pid, r.t.tid, unix.SIGSTOP) })
	defer timer.Stop()
	sig := unix.Signal(0)
	for {
		var err error
		if sig, err = r.t.cont(sig); err != nil {
			return err
		}
		if sig == unix.SIGSTOP {
			return nil
		}
		if sig == unix.SIGTRAP {
			sig = 0
		}
	}
}

// seed makes the shadow stack of a walk by all steppers.
func (r *runner) seed() bool {
	r.shadow = Shadow{}
	var err error
	j := r.seeder
	if j.frames, err = j.walker.WalkStack(j.frames[:0], procstate.DefaultThread); err != nil {
		return false
	}
	if j.walker.Arch() == procstate.AMD64 && len(j.frames) > 1 && j.frames[1].PCLocation.Kind == unwind.LocationRegister {
		return false // the return address is off the stack: where the caller's frame ends may not be known
	}
	for i := len(j.frames) - 1; i > 0; i-- {
		f := &j.frames[i]
		r.shadow.recs = append(r.shadow.recs,
			record{pc: f.PC(), sp: f.SP(), seeded: true, signal: f.Flags&unwind.Interrupted != 0})
	}
	return true
}
