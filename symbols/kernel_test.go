package symbols

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/swbpf/swbpf/internal/testenv"
)

const kallsyms = `0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000040 T startup
ffffffff81000040 t __startup
ffffffff81000100 t helper
ffffffff81000200 D data
ffffffff81000210 d data2
ffffffff81000300 W weak
ffffffffc0001000 t mod_init	[ext4]
ffffffffc0001100 t mod_exit	[ext4]
ffffffffc0002000 t bpf_prog_6deef7357e7b4530_main	[bpf]
`

func TestKallsyms(t *testing.T) {
	k, err := parseKallsyms(strings.NewReader(kallsyms))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		addr uint64
		want string
	}{
		{0, ""}, {0xffffffff80ffffff, ""},
		{0xffffffff81000000, "_text+0"}, {0xffffffff8100003f, "_text+63"},
		{0xffffffff81000040, "startup+0"}, {0xffffffff810001ff, "helper+255"},
		{0xffffffff81000200, ""}, {0xffffffff81000210, ""}, {0xffffffff810002ff, ""},
		{0xffffffff81000300, "weak+0"}, {0xffffffff8100ffff, "weak+64767"},
		{0xffffffff81000300 + maxLastSymbol, ""}, // nobody's, before the modules
		{0xffffffffc0001000, "mod_init+0 ext4"}, {0xffffffffc00010ff, "mod_init+255 ext4"},
		{0xffffffffc0001100, "mod_exit+0 ext4"},
		{0xffffffffc0002001, "bpf_prog_6deef7357e7b4530_main+1 bpf"},
		{^uint64(0), ""},
	} {
		got := ""
		if s, ok := k.Lookup(tc.addr); ok {
			got = strings.TrimSpace(fmt.Sprintf("%s+%d %s", s.Name, s.Offset, s.Module))
		}
		if got != tc.want {
			t.Errorf("%#x: %q, want %q", tc.addr, got, tc.want)
		}
	}
	_, err = parseKallsyms(strings.NewReader("0000000000000000 T _stext\n0000000000000000 T foo\n"))
	if !errors.Is(err, ErrRestricted) {
		t.Errorf("hidden addresses: %v", err)
	}
	for _, s := range []string{"", "\n", "zz", "ffffffff81000000 T", strings.Repeat("x", 1<<17)} {
		if _, err := parseKallsyms(strings.NewReader(s)); err == nil || errors.Is(err, ErrRestricted) {
			t.Errorf("%.20q: %v", s, err)
		}
	}
}

// TestKernel compares with the lines of the file. It parses the bytes that it
// compares with: BPF programs come and go between two reads.
func TestKernel(t *testing.T) {
	if _, err := OpenKernel(); errors.Is(err, ErrRestricted) {
		testenv.Lacks(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	k, err := parseKallsyms(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	at := map[uint64][]string{}
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		addr, err := strconv.ParseUint(w[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains("tTwW", w[1]) {
			at[addr] = append(at[addr], w[2])
		}
	}
	for addr, names := range at {
		s, ok := k.Lookup(addr)
		if addr != 0 && (!ok || s.Offset != 0 || !slices.Contains(names, s.Name)) {
			t.Fatalf("%#x: %+v, want one of %s", addr, s, names)
		}
	}
	if len(at) < 10000 {
		t.Errorf("only %d addresses", len(at))
	}
}

func FuzzKallsyms(f *testing.F) {
	f.Add([]byte(kallsyms), uint64(0xffffffff81000100))
	f.Add([]byte("0000000000000001 t a\tb\n1 d d\n"), uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, addr uint64) {
		if k, err := parseKallsyms(strings.NewReader(string(b))); err == nil {
			if s, ok := k.Lookup(addr); ok && (s.Offset > addr || s.Name == "") {
				t.Errorf("%#x: %+v", addr, s)
			}
		}
	})
}

func BenchmarkOpenKernel(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := OpenKernel(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestKernelBPF names the code of a BPF program, and nothing behind it: what
// lies there may be a filter of a socket, which the kernel does not list.
func TestKernelBPF(t *testing.T) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "swbpf_names", Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("needs root")
	}
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	starts, _ := info.JitedKsymAddrs()
	lens, _ := info.JitedFuncLens()
	k, err := OpenKernel()
	if err != nil || len(starts) != 1 || len(lens) != 1 || starts[0] == 0 {
		t.Fatal(starts, lens, err)
	}
	start, size := uint64(starts[0]), uint64(lens[0])
	for _, off := range []uint64{0, size - 1} {
		s, ok := k.Lookup(start + off)
		if !ok || s.Module != "bpf" || s.Offset != off || !strings.HasSuffix(s.Name, "_swbpf_names") {
			t.Errorf("+%#x: %+v %v", off, s, ok)
		}
	}
	if s, ok := k.Lookup(start + size); ok && s.Offset == size {
		t.Errorf("behind it: %+v", s)
	}
}
