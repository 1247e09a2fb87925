package symbols

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// benchFile is the file that is named: SWBPF_BENCH_FILE, or the C library with
// its debug file where that is installed.
func benchFile(b *testing.B) string {
	if p := os.Getenv("SWBPF_BENCH_FILE"); p != "" {
		return p
	}
	return libc(b)
}

// benchAddresses are random addresses in the code of a file, the same every
// time.
func benchAddresses(im *procstate.Image, n int) []uint64 {
	text, _ := im.Section(".text")
	r := rand.New(rand.NewSource(1))
	addrs := make([]uint64, n)
	for i := range addrs {
		addrs[i] = text.Vaddr + uint64(r.Int63n(int64(text.Size)))
	}
	return addrs
}

// peers are programs that do the same, with functions and inlined calls.
var peers = [][]string{
	{"llvm-symbolizer-19", "-f", "-i", "-e"},
	{"eu-addr2line", "-f", "-i", "-C", "-e"},
	{"addr2line", "-f", "-i", "-C", "-e"},
}

// benchPeers runs each of the peers that is installed on the addresses.
func benchPeers(b *testing.B, path string, addrs []uint64) {
	var in strings.Builder
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	for _, args := range peers {
		b.Run(args[0], func(b *testing.B) {
			if _, err := exec.LookPath(args[0]); err != nil {
				b.Skip(err)
			}
			var rss int64
			for b.Loop() {
				cmd := exec.Command(args[0], append(args[1:], path)...)
				cmd.Stdin = strings.NewReader(in.String())
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
				rss = max(rss, maxRSS(cmd.ProcessState))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(addrs)), "ns/name")
			b.ReportMetric(float64(rss)/(1<<20), "MiB-rss")
		})
	}
}

// benchNames names the addresses with a new Symbolizer each time.
func benchNames(b *testing.B, path string, addrs []uint64) {
	b.Run("swbpf", func(b *testing.B) {
		b.ReportAllocs()
		var dst []Line
		for b.Loop() {
			im, err := openImage(path)
			if err != nil {
				b.Fatal(err)
			}
			s := New(Options{})
			for _, a := range addrs {
				dst = s.Lines(dst[:0], im.Image, a)
			}
			s.Close()
			im.f.Close()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(addrs)), "ns/name")
	})
	benchPeers(b, path, addrs)
}

// BenchmarkFirstName is the time from nothing to the name of one address.
func BenchmarkFirstName(b *testing.B) {
	path := benchFile(b)
	benchNames(b, path, benchAddresses(open(b, path), 1))
}

// BenchmarkNames names 10,000 addresses, from nothing.
func BenchmarkNames(b *testing.B) {
	path := benchFile(b)
	benchNames(b, path, benchAddresses(open(b, path), 10000))
}

// BenchmarkWarm names addresses of units that were read before.
func BenchmarkWarm(b *testing.B) {
	im := open(b, benchFile(b))
	addrs := benchAddresses(im, 10000)
	s := New(Options{Memory: 1 << 30})
	defer s.Close()
	var dst []Line
	for _, a := range addrs {
		dst = s.Lines(dst[:0], im, a)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		dst = s.Lines(dst[:0], im, addrs[i])
		i = (i + 1) % len(addrs)
	}
}
