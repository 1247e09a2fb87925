package profile

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; got:\n%s", name, got)
	}
}

// symbols is a Symbolizer from a table.
type symbols map[Loc][]Line

func (s symbols) Symbolize(dst []Line, loc Loc) []Line { return append(dst, s[loc]...) }

func fixtureMeta() Meta {
	return Meta{
		Tool: "swbpf test", Target: "whole machine", Event: "cpu-clock", FrequencyHz: 99,
		Value: ValueType{"cpu", "nanoseconds"}, Period: 10_101_010,
		Start:    time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		Duration: 10 * time.Second, CPUs: 2, Kernel: "6.12.0 x86_64",
		Lost: []Tally{{"ring-full", 3}, {"no-record", 0}},
		Help: map[string]string{
			"stack-cut": "the stack is longer than what was copied of it; raise --stack-bytes",
			"ring-full": "user space did not keep up"},
		Notes: []string{"64 KiB of stack per sample"},
	}
}

// fixture is a small profile with one of everything. The stacks are added in
// the order of turns, which must not matter.
func fixture(turns ...int) *Profile {
	b := NewBuilder()
	syms := symbols{}
	var app, libc, kernel, gobin, jit uint32
	declare := map[int]func(){
		0: func() {
			app = b.Module(Module{Path: "/usr/bin/app", BuildID: "aabbcc", Kind: Native, Start: 0x1000, Limit: 0x9000, Offset: 0x1000})
		},
		1: func() {
			libc = b.Module(Module{Path: "/lib/libc.so.6", BuildID: "ddee", Kind: Native, Start: 0x26000, Limit: 0x17b000, Offset: 0x26000})
		},
		2: func() { kernel = b.Module(Module{Path: KernelPath, Kind: Kernel}) },
		3: func() {
			gobin = b.Module(Module{Path: "/usr/bin/gosrv", Kind: Go, Start: 0x401000, Limit: 0x600000, Offset: 0x1000})
		},
		4: func() { jit = b.Module(Module{Path: "[jit]", Kind: JIT}) },
	}
	if len(turns) == 0 {
		turns = []int{0, 1, 2, 3, 4}
	}
	for _, i := range turns {
		declare[i]()
	}
	syms[Loc{app, 0x1100}] = []Line{{Function: "main", File: "/src/app.cc", Line: 42, StartLine: 40}}
	syms[Loc{app, 0x1180}] = []Line{{Function: "main", File: "/src/app.cc", Line: 44, StartLine: 40}}
	syms[Loc{app, 0x1200}] = []Line{
		{Function: "std::vector<int>::push_back(int const&)", SystemName: "_ZNSt6vectorIiE9push_backERKi",
			File: "/usr/include/stl_vector.h", Line: 900, StartLine: 895, Inlined: true},
		{Function: "fill(int)", SystemName: "_Z4filli", File: "/src/app.cc", Line: 12, StartLine: 10}}
	syms[Loc{libc, 0x27000}] = []Line{{Function: "__libc_start_main"}}
	syms[Loc{libc, 0x30000}] = []Line{{Function: "read"}}
	syms[Loc{kernel, 0xffffffff81000100}] = []Line{{Function: "do_syscall_64"}}
	syms[Loc{kernel, 0xffffffff81000200}] = []Line{{Function: "vfs_read"}}
	syms[Loc{gobin, 0x401100}] = []Line{{Function: "main.handle", File: "/src/srv.go", Line: 7, StartLine: 5}}
	syms[Loc{gobin, 0x401200}] = []Line{{Function: "runtime.goexit", File: "/go/asm.s", Line: 1700, StartLine: 1690}}
	syms[Loc{jit, 0x7f0000001000}] = []Line{{Function: "Ljava/lang/String;::hashCode"}}

	app1 := Thread{PID: 100, TID: 100, Comm: Comm("app")}
	app2 := Thread{PID: 100, TID: 101, Comm: Comm("app worker")}
	srv := Thread{PID: 200, TID: 203, Comm: Comm("gosrv")}
	const ns = 10_101_010
	add := func(t Thread, stack []Loc, truncated string, n int64) { b.Add(t, stack, truncated, n, n*ns) }
	stacks := []func(){
		func() { add(app1, []Loc{{app, 0x1200}, {app, 0x1100}, {libc, 0x27000}}, "", 50) },
		func() {
			add(app1, []Loc{{kernel, 0xffffffff81000200}, {kernel, 0xffffffff81000100}, {libc, 0x30000}, {app, 0x1180}, {libc, 0x27000}}, "", 20)
			add(app2, []Loc{{app, 0x1200}, {app, 0x1100}, {libc, 0x27000}}, "", 7)
		},
		func() { add(srv, []Loc{{gobin, 0x401100}, {gobin, 0x401200}}, "", 12) },
		func() {
			add(app2, []Loc{{app, 0x1200}, {app, 0x2345}}, "stack-cut", 5)
			add(app2, []Loc{{0, 0x7fff00001234}}, "no-mapping", 1)
		},
		func() { add(srv, []Loc{{jit, 0x7f0000001000}, {jit, 0x7f0000002000}, {gobin, 0x401200}}, "", 4) },
	}
	for _, i := range turns {
		stacks[i]()
	}
	return b.Finish(fixtureMeta(), syms)
}

var otherTurns = [][]int{{4, 3, 2, 1, 0}, {2, 0, 4, 1, 3}}
