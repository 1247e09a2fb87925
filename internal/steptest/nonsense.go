package steptest

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/swbpf/swbpf/procstate"
)

// Nonsense is a process of which some answers are none that a ProcessState, or what it gives, may have: lengths
// below zero or beyond what was asked for, errors along with all that was asked for, mappings and libraries that
// overflow or are not there, nil. It implements all that a ProcessState can.
type Nonsense struct {
	procstate.ProcessState
	Rand   *rand.Rand
	Rate   int                // an answer in so many is nonsense; 0: none
	Images []*procstate.Image // for mappings that are nonsense
	Panics bool               // it panics instead, with Fault
	seen   [16]uint64         // addresses
}

// lies reports whether the next answer is one.
func (p *Nonsense) lies() bool {
	lies := p.Rate > 0 && p.Rand.IntN(p.Rate) == 0
	if lies && p.Panics {
		panic(Fault)
	}
	return lies
}

// Fault is what a Nonsense panics with.
const Fault = "a fault of the caller's own code"

// number is one at which sums overflow, or one that was seen, or any.
func (p *Nonsense) number() uint64 {
	near := p.Rand.Uint64N(1<<13) - 1<<12
	return [...]uint64{0, 1, math.MaxUint64, math.MaxInt64, 1 << 63, 1<<48 - 1, near, p.Rand.Uint64(),
		p.seen[p.Rand.IntN(len(p.seen))], p.seen[p.Rand.IntN(len(p.seen))] + near}[p.Rand.IntN(10)]
}

func (p *Nonsense) see(addr uint64) { p.seen[p.Rand.IntN(len(p.seen))] = addr }

// length is that of what was read of a buffer of n bytes.
func (p *Nonsense) length(n int) int {
	return [...]int{-1, math.MinInt, n + 1, 2*n + 8, math.MaxInt, n, p.Rand.IntN(n + 1)}[p.Rand.IntN(7)]
}

var errNonsense = errors.New("nonsense")

func (p *Nonsense) error() error {
	return [...]error{nil, errNonsense, procstate.ErrUnreadable, procstate.ErrTerminated, procstate.ErrNoThread}[p.Rand.IntN(5)]
}

func (p *Nonsense) ReadMemory(addr uint64, buf []byte) (int, error) {
	p.see(addr)
	n, err := p.ProcessState.ReadMemory(addr, buf)
	if p.lies() {
		n, err = p.length(len(buf)), p.error()
	}
	return n, err
}

func (p *Nonsense) ReadWord(addr uint64) (uint64, bool) {
	p.see(addr)
	word, ok := p.ProcessState.ReadWord(addr)
	if p.lies() {
		word, ok = p.number(), p.Rand.IntN(4) > 0
	}
	return word, ok
}

func (p *Nonsense) PID() int {
	if p.lies() {
		return p.length(1)
	}
	return p.ProcessState.PID()
}

func (p *Nonsense) ExecutablePath() string {
	if p.lies() {
		return p.path()
	}
	return p.ProcessState.ExecutablePath()
}

func (p *Nonsense) path() string {
	return [...]string{"", "/", "[vdso]", procstate.UprobesMapping, "//anon", "/dev/zero", "\x00", "/memfd:x (deleted)", "libpython3.11.so.1.0"}[p.Rand.IntN(9)]
}

func (p *Nonsense) Arch() *procstate.Arch {
	if p.lies() {
		return [...]*procstate.Arch{nil, procstate.AMD64, procstate.ARM64, procstate.I386}[p.Rand.IntN(4)]
	}
	return p.ProcessState.Arch()
}

func (p *Nonsense) Threads() ([]procstate.ThreadID, error) {
	if p.lies() {
		return [...][]procstate.ThreadID{nil, {}, {-1}, {0, 0, 0}, {math.MinInt32, math.MaxInt32}}[p.Rand.IntN(5)], p.error()
	}
	return p.ProcessState.Threads()
}

func (p *Nonsense) Registers(tid procstate.ThreadID, regs *procstate.Regs) error {
	err := p.ProcessState.Registers(tid, regs)
	if p.lies() {
		*regs = procstate.Regs{ThreadPointer: p.number()}
		for i := range p.Rand.IntN(40) {
			regs.Set(procstate.Reg(i), p.number())
		}
		err = p.error()
	}
	return err
}

func (p *Nonsense) Libraries() procstate.LibraryState {
	libs := p.ProcessState.Libraries()
	if libs == nil || p.lies() {
		return nil
	}
	return &nonsenseLibraries{libs, p}
}

func (p *Nonsense) BeforeWalk(tid procstate.ThreadID) error {
	if p.lies() {
		return p.error()
	}
	return p.ProcessState.BeforeWalk(tid)
}

func (p *Nonsense) AfterWalk(tid procstate.ThreadID) error {
	if p.lies() {
		return p.error()
	}
	return p.ProcessState.AfterWalk(tid)
}

// ReadCaptured implements procstate.CapturedMemory.
func (p *Nonsense) ReadCaptured(addr uint64, buf []byte) bool {
	p.see(addr)
	n, _ := p.ProcessState.ReadMemory(addr, buf)
	return n == len(buf) != p.lies()
}

// ReadLive implements procstate.LiveMemory.
func (p *Nonsense) ReadLive(addr uint64, buf []byte) int {
	p.see(addr)
	n, _ := p.ProcessState.ReadMemory(addr, buf)
	if p.lies() {
		n = p.length(len(buf))
	}
	return n
}

// UserProbes implements procstate.ProbedState.
func (p *Nonsense) UserProbes() *procstate.UserProbes {
	if !p.lies() {
		return &procstate.UserProbes{}
	}
	if p.Rand.IntN(2) == 0 {
		return nil
	}
	probes := &procstate.UserProbes{Trampoline: p.number(), Breakpoint: p.number()}
	for range p.Rand.IntN(4) {
		probes.Returns = append(probes.Returns, procstate.ReplacedReturn{})
	}
	return probes
}

// FloatRegister implements procstate.FloatState.
func (p *Nonsense) FloatRegister(procstate.ThreadID, uint64) ([]byte, error) {
	return [...][]byte{nil, {}, {1}, make([]byte, 8), make([]byte, 16), make([]byte, 1000)}[p.Rand.IntN(6)], p.error()
}

// OnLibraryChange implements procstate.LibraryNotifier.
func (p *Nonsense) OnLibraryChange(f procstate.LibraryFunc) {
	for range 8 {
		f(p.library(), p.Rand.IntN(2) == 0)
	}
}

// InCall says whether the PC is a return address.
func (p *Nonsense) InCall() bool { return p.lies() }

// WalkedThread says which thread is the default one.
func (p *Nonsense) WalkedThread() procstate.ThreadID { return procstate.ThreadID(p.length(1)) }

func (p *Nonsense) image() *procstate.Image {
	if len(p.Images) == 0 || p.Rand.IntN(3) == 0 {
		return nil
	}
	return p.Images[p.Rand.IntN(len(p.Images))]
}

func (p *Nonsense) library() procstate.Library {
	return procstate.Library{Path: p.path(), Bias: p.number(), Image: p.image()}
}

// nonsenseLibraries are the libraries of such a process.
type nonsenseLibraries struct {
	procstate.LibraryState
	p *Nonsense
}

func (l *nonsenseLibraries) MappingAt(addr uint64) *procstate.Mapping {
	p := l.p
	p.see(addr)
	m := l.LibraryState.MappingAt(addr)
	if !p.lies() {
		return m
	}
	lie := &procstate.Mapping{Start: p.number(), End: p.number(), Offset: p.number(), Path: p.path(), Image: p.image(), ImageErr: p.error(), Bias: p.number()}
	switch p.Rand.IntN(6) {
	case 0:
		return nil
	case 1:
		lie.Start, lie.End = 0, math.MaxUint64
	case 2:
		lie.Start, lie.End = addr, addr
	case 3:
		lie.Start, lie.End = addr-16, addr+16
	case 4:
		if m != nil {
			*lie = *m
			lie.Bias, lie.Image = p.number(), p.image()
		}
	}
	return lie
}

func (l *nonsenseLibraries) Libraries() []procstate.Library {
	p := l.p
	if !p.lies() {
		return l.LibraryState.Libraries()
	}
	if p.Rand.IntN(3) == 0 {
		return nil
	}
	libs := slices.Concat(l.LibraryState.Libraries(), l.LibraryState.Libraries())
	for range 4 {
		libs = append(libs, p.library())
	}
	p.Rand.Shuffle(len(libs), func(i, j int) { libs[i], libs[j] = libs[j], libs[i] })
	return libs
}

func (l *nonsenseLibraries) TrapAddress() uint64 { return l.p.number() }

func (l *nonsenseLibraries) Update() error { return l.p.error() }

// Highest tells how many bits addresses have.
func (l *nonsenseLibraries) Highest() *procstate.Mapping { return l.MappingAt(l.p.number()) }
