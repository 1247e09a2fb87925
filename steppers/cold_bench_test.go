//go:build linux

package steppers

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
	"golang.org/x/sys/unix"
)

// coldSpace is an address space with a file of the machine's: that of
// SWBPF_BENCH_IMAGE, for example a cc1plus, or else libcrypto.
func coldSpace(b *testing.B) (*procstate.AddressSpace, *procstate.Image) {
	b.Helper()
	path := os.Getenv("SWBPF_BENCH_IMAGE")
	if path == "" {
		found, _ := filepath.Glob("/usr/lib/*/libcrypto.so.[0-9]")
		if len(found) == 0 {
			b.Skip("no libcrypto")
		}
		path = found[0]
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		b.Fatal(err)
	}
	images := procstate.NewImages(0)
	b.Cleanup(func() { images.Close() })
	space := new(procstate.AddressSpace)
	ref := procstate.FileRef{Path: path, Dev: st.Dev, Inode: st.Ino}
	im, err := images.Open(&ref)
	if err != nil {
		b.Fatal(err)
	}
	for _, s := range im.Segments() {
		if s.Flags&1 != 0 {
			const base = 0x7f0000000000
			ref.Start, ref.End = base+s.Vaddr&^4095, base+(s.Vaddr+s.Memsz+4095)&^4095
			space.Insert(images.NewMapping(space, &ref, s.Off&^4095))
		}
	}
	return space, im
}

// BenchmarkColdFrame asks all steppers of a recording for the rule of a frame in
// a function that nothing is known of, in a file that was opened before: one that
// is in a call, and one that was interrupted.
func BenchmarkColdFrame(b *testing.B) {
	b.Run("called", func(b *testing.B) { benchmarkColdFrame(b, false) })
	b.Run("interrupted", func(b *testing.B) { benchmarkColdFrame(b, true) })
}

func benchmarkColdFrame(b *testing.B, interrupted bool) {
	space, im := coldSpace(b)
	starts := im.FuncStarts()
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(starts), func(i, j int) { starts[i], starts[j] = starts[j], starts[i] })
	snap := procstate.NewSnapshot(im.Arch(), 1, "", space)
	snap.Reset(1, &procstate.Regs{}, nil)
	members := func() []unwind.RuleStepper {
		tables := unwind.NewTables()
		return []unwind.RuleStepper{NewBottom(), NewDynamic(nil), NewSigHandler(), NewGo(), NewOCaml(), NewDebug(tables)}
	}
	all := members()
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	m := space.MappingAt(space.Mappings()[0].Start)
	b.ReportAllocs()
	i := 0
	start := threadCPU(b)
	for b.Loop() {
		if i == len(starts) {
			i, all = 0, members()
		}
		pc := m.Bias + starts[i] + 12
		i++
		if m = space.MappingAt(pc); m == nil {
			b.Fatalf("%#x is not mapped", pc)
		}
		for _, s := range all {
			r, ok := s.RuleAt(w, m, pc, interrupted)
			if !ok || r != unwind.RuleNotMe {
				break
			}
		}
	}
	b.ReportMetric(float64(threadCPU(b)-start)/float64(b.N), "cpu-ns/op")
}
