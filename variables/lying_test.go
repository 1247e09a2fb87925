package variables_test

import (
	"debug/elf"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// liarProgram is a program in whose functions a process that lies stands.
type liarProgram struct {
	liar  *steptest.Liar
	pcs   []uint64 // run-time addresses in functions with variables
	group *unwind.AddressRangeGroup
	names *symbols.Symbolizer
}

const liarStack, liarHeap, liarBias = 0x7ff000000000, 0x7fe000000000, 0x10000000

func newLiarProgram(t testing.TB, path string) *liarProgram {
	im := steptest.OpenImage(t, path)
	var libs procstate.AddressSpace
	for _, s := range im.Segments() {
		if s.Flags&elf.PF_X != 0 {
			bias := uint64(liarBias)
			if im.Type() == elf.ET_EXEC {
				bias = 0
			}
			libs.Insert(&procstate.Mapping{Start: bias + s.Vaddr&^4095, End: bias + (s.Vaddr+s.Memsz+4095)&^4095, Offset: s.Off &^ 4095, Path: path, Image: im})
		}
	}
	p := &liarProgram{liar: steptest.NewLiar(im.Arch(), &libs, path), group: steppers.Default(unwind.NewTables()),
		names: symbols.New(symbols.Options{DebugDirs: []string{}})}
	t.Cleanup(func() { p.names.Close() })
	p.liar.Leads = []uint64{liarStack, liarStack + 256, liarHeap, liarHeap + 4096}
	bias := libs.Libraries()[0].Bias
	for _, start := range im.FuncStarts() {
		fns, err := p.names.Functions(im, start+1)
		if err != nil || len(fns) == 0 || len(fns[len(fns)-1].Variables) == 0 {
			continue
		}
		p.pcs = append(p.pcs, bias+start)
	}
	if len(p.pcs) == 0 {
		t.Fatalf("%s: no function has variables", path)
	}
	return p
}

// Bounds on what is read for the text of one variable of a process that lies.
const (
	maxLyingReads = 1 << 18
	maxLyingBytes = 17 << 20
	maxLyingText  = 1 << 17
)

// read reads the variables of the function at pc, when memory is what seed makes it.
func (p *liarProgram) read(t testing.TB, seed, pc uint64) (known int) {
	p.liar.Begin(seed, pc, liarStack)
	w := unwind.NewWalker(p.liar, p.group, nil)
	w.MaxFrames = 2
	walk, _ := w.WalkStack(nil, procstate.DefaultThread)
	r := variables.New(w, p.names)
	fns, err := r.Functions(&walk[0])
	if err != nil {
		return 0
	}
	for _, fn := range fns {
		for _, v := range fn.Variables {
			p.liar.Reads, p.liar.Bytes = 0, 0
			value, err := r.Value(walk, 0, v)
			if err != nil {
				continue
			}
			known++
			s := value.Format(variables.Format{Depth: 3})
			if p.liar.Reads > maxLyingReads || p.liar.Bytes > maxLyingBytes || len(s) > maxLyingText {
				t.Errorf("seed %d, %#x: %s of %s takes %d reads of %d bytes for %d of text", seed, pc, v.Name, v.Type(), p.liar.Reads, p.liar.Bytes, len(s))
			}
		}
	}
	return known
}

// FuzzLyingValues reads variables of a process whose memory is anything.
func FuzzLyingValues(f *testing.F) {
	var programs []*liarProgram
	for _, c := range [][2]string{{"vars.c", "gcc -g -O0"}, {"vars.cc", "g++ -g -O0"}, {"vars.go", "go build -gcflags=-N"},
		{"vars.rs", "rustc -g -C debug-assertions=off -C overflow-checks=off"}, {"varsstd.cc", "g++ -std=c++17 -g -O0"}} {
		programs = append(programs, newLiarProgram(f, compile(f, c[0], c[1])))
	}
	for seed := range uint64(64) {
		f.Add(seed, uint8(seed), uint16(seed*97), uint16(20))
	}
	for i := range 16 { // the program's own, with slices of slices
		at := uint16(len(programs[2].pcs) - 1 - i)
		f.Add(uint64(75), uint8(2), at, uint16(200))
		f.Add(uint64(691), uint8(2), at, uint16(200))
	}
	f.Fuzz(func(t *testing.T, seed uint64, program uint8, at, within uint16) {
		p := programs[int(program)%len(programs)]
		p.read(t, seed, p.pcs[int(at)%len(p.pcs)]+uint64(within%1024))
	})
}
