package unwind

import (
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// benchmarkImage is the file that the benchmarks of tables read: that of
// SWBPF_BENCH_IMAGE, for example a libLLVM, or else libcrypto.
func benchmarkImage(b *testing.B) string {
	if path := os.Getenv("SWBPF_BENCH_IMAGE"); path != "" {
		return path
	}
	return libraryPath(b, "libcrypto.so.[0-9]")
}

// benchmarkAddresses returns code addresses in random order: at most n, one
// of each FDE.
func benchmarkAddresses(b *testing.B, t *Table, n int) []uint64 {
	t.openNext()
	h := t.sources[0].hdr
	var addrs []uint64
	file := new(window)
	for i := range h.count {
		e, ok := h.entries(file, i, i+1)
		if !ok {
			b.Fatal("unreadable header")
		}
		start, _, ok := h.entry(e, i)
		if !ok {
			b.Fatal("unreadable header")
		}
		addrs = append(addrs, start)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	return addrs[:min(n, len(addrs))]
}

// BenchmarkFirstRule is the first rule of an image never seen before.
func BenchmarkFirstRule(b *testing.B) {
	img := openTestImage(b, benchmarkImage(b))
	addrs := benchmarkAddresses(b, NewTable(img), 1<<20)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		NewTable(img).Rule(addrs[i%len(addrs)])
		i++
	}
}

// BenchmarkColdFDE is a rule of a function that nothing is kept of, in an
// image of which other functions are.
func BenchmarkColdFDE(b *testing.B) {
	img := openTestImage(b, benchmarkImage(b))
	t := NewTable(img)
	addrs := benchmarkAddresses(b, t, 1<<20)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i == len(addrs) {
			b.StopTimer()
			t.forget()
			t.Rule(addrs[0])
			i = 0
			b.StartTimer()
		}
		t.Rule(addrs[i])
		i++
	}
}

// BenchmarkKeptRule is a rule that the Table keeps, of 4,000 functions.
func BenchmarkKeptRule(b *testing.B) {
	img := openTestImage(b, benchmarkImage(b))
	t := NewTable(img)
	addrs := benchmarkAddresses(b, t, 4000)
	for _, a := range addrs {
		t.Rule(a)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if t.Rule(addrs[i]).why != ReasonNone {
			b.Fatal("no rule")
		}
		if i++; i == len(addrs) {
			i = 0
		}
	}
}

// BenchmarkTableMemory compiles all functions of an image, or of several, with
// colons between them. It reports the size of their tables, in all and for each row.
func BenchmarkTableMemory(b *testing.B) {
	var images []*procstate.Image
	var addrs [][]uint64
	for _, path := range strings.Split(benchmarkImage(b), ":") {
		img := openTestImage(b, path)
		images, addrs = append(images, img), append(addrs, benchmarkAddresses(b, NewTable(img), 1<<20))
	}
	var all *Tables
	for b.Loop() {
		all = NewTables()
		for i, img := range images {
			t := all.For(img)
			for _, a := range addrs[i] {
				for vaddr := a; ; {
					_, start, end, err := t.Row(vaddr)
					if err != nil {
						break
					}
					t.Rule(start)
					if vaddr = end; end == t.fde.end {
						break
					}
				}
			}
		}
	}
	rows := 0
	for _, img := range images {
		n, _ := all.For(img).kept.counts()
		rows += n
	}
	b.ReportMetric(float64(rows), "rows")
	b.ReportMetric(float64(all.used.Load()), "bytes")
	b.ReportMetric(float64(all.used.Load())/float64(rows), "bytes/row")
}

// counts returns the number of rows that are kept, and of the pieces of FDEs that
// they are of.
func (k *rows) counts() (rows, pieces int) {
	for _, g := range k.groups {
		if g == nil {
			continue
		}
		for _, page := range g {
			for _, row := range page {
				if row.rule != notKept {
					rows++
				}
				if row.start&pieceBegins != 0 {
					pieces++
				}
			}
		}
	}
	return rows, pieces
}
