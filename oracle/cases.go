package oracle

import "strings"

// Case is a program of the accuracy table: how it is built and run, and which
// configurations are judged on it.
type Case struct {
	Table string // the table that it is a row of
	Name  string
	Row   string // the row that it is summed up in with others; "" is one of its own
	Needs string // tools, and files by their paths, without which the case is left out, apart by spaces

	// Build is the command that makes the program, a shell line in the
	// directory of the sources with $OUT for the result; "" takes what is
	// installed.
	Build string
	Run   []string // with $OUT for what was built
	Env   []string

	Steps       int  // instructions judged at most
	Marked      bool // judge from a call of getppid on
	Unmonitored bool // without what preempts goroutines that run long
	PCs         bool // and of frames their PCs alone
	Windows     int
	WindowSteps int
	Thread      bool     // judge the first thread that the program starts
	Child       bool     // judge the first child process, when there is one
	Probes      []string // functions under a uretprobe

	Configs []string
	Short   bool // part of the short form
}

// Names of the tables, in order.
const (
	tableCompilers = "Compilers and flags (C)"
	tableFrames    = "Frame pointers and no unwind tables (C and Rust without libraries)"
	tableJIT       = "Code made at run time, with frame pointers"
	tableTold      = "Code made at run time, of which the program tells debuggers"
	tableLinking   = "Ways of linking, and variants of libc's string functions (C)"
	tableLanguages = "Languages"
	tableGo        = "Go"
	tableMarked    = "From the middle of longer programs on"
	tableProduct   = "All compilers, flags and ways of linking (C), summed up over -O0 to -Os with and without frame pointers"
	tableARM64     = "AArch64, under qemu-user"
	tableFramesARM = "AArch64: frame pointers and no unwind tables (C without a libc)"
	tableStacks    = "Signals, stacks, threads"
	tablePrograms  = "Programs of the distribution"
	tableWanderer  = "The Wanderer, which guesses"
)

var tables = []string{tableCompilers, tableProduct, tableFrames, tableJIT, tableTold, tableLinking, tableARM64, tableFramesARM, tableLanguages, tableGo, tableMarked, tableStacks, tablePrograms, tableWanderer}

// Environments of Go programs. One that is executed an instruction at a time is
// slow enough to be preempted all the time, and comes no further in its own code.
var (
	goPreempted = []string{"GOMAXPROCS=1"}
	goOnward    = []string{"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1"}
)

const rustNoTables = "rustc -O -C panic=abort -C force-unwind-tables=no -C force-frame-pointers=yes -o $OUT abort.rs"

// Cases returns the rows of the accuracy table.
func Cases() []Case {
	var cases []Case
	native := []string{"all", "debug", "stripped", "analysis"}
	for _, cc := range []string{"gcc", "clang-19", "musl-gcc"} {
		for _, opt := range []string{"-O0", "-O1", "-O2", "-O3", "-Os"} {
			for _, fp := range []string{"-fomit-frame-pointer", "-fno-omit-frame-pointer"} {
				cases = append(cases, Case{
					Table: tableCompilers, Name: cc + " " + opt + " " + fp, Needs: cc,
					Build:   cc + " -w " + opt + " " + fp + " -o $OUT work.c -lm",
					Configs: native, Steps: 40000,
					Short: opt == "-O2" && fp == "-fomit-frame-pointer" || cc == "gcc" && opt == "-Os" && fp == "-fomit-frame-pointer",
				})
			}
			if cc == "musl-gcc" {
				continue
			}
			cases = append(cases, Case{
				Table: tableFrames, Name: cc + " " + opt, Needs: cc,
				Build: cc + " -w " + opt + " -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer -fno-asynchronous-unwind-tables" +
					" -fno-stack-protector -fno-builtin -ffreestanding -static -nostdlib -o $OUT freestanding.c",
				Configs: []string{"frame", "analysis"}, Short: opt == "-O0" || opt == "-O2",
			})
		}
	}
	for _, b := range []struct{ flags, needs string }{
		{"gcc -O0 -mindirect-branch=thunk-inline -mfunction-return=thunk-inline", "gcc"},
		{"gcc -O2 -mindirect-branch=thunk-inline -mfunction-return=thunk-inline", "gcc"},
		{"gcc -Os -mindirect-branch=thunk-inline -mharden-sls=all", "gcc"},
		{"gcc -O2 -mindirect-branch=thunk -mfunction-return=thunk", "gcc"},
		{"clang-19 -O2 -mretpoline", "clang-19"},
	} {
		cases = append(cases, Case{Table: tableCompilers, Name: b.flags, Needs: b.needs, Build: b.flags + " -o $OUT thunks.c",
			Configs: native, Short: strings.Contains(b.flags, "inline") || b.needs != "gcc"})
	}
	for _, opt := range []string{"1", "2", "3", "s"} {
		cases = append(cases, Case{Table: tableFrames, Name: "Rust without std, panic=abort, opt-level=" + opt, Needs: "rustc",
			Build: "rustc --edition 2021 -C opt-level=" + opt + " -C panic=abort -C force-unwind-tables=no -C force-frame-pointers=yes" +
				" -C relocation-model=static -C link-args='-nostartfiles -nostdlib -static' -o $OUT nostd.rs",
			Configs: []string{"frame", "analysis"}, Short: opt == "2"})
	}
	for _, opt := range []string{"-O0", "-O2"} {
		cases = append(cases, Case{Table: tableJIT, Name: "called by gcc " + opt, Needs: "gcc", Build: "gcc -w " + opt + " -o $OUT jit.c",
			Configs: []string{"all", "debug+frame"}, Steps: 20000, Short: opt == "-O2"})
	}
	for _, opt := range []string{"-O0", "-O2"} {
		cases = append(cases, Case{Table: tableJIT, Name: "addresses of nested functions, gcc " + opt, Needs: "gcc", Build: "gcc -w " + opt + " -o $OUT tramps.c 2>/dev/null",
			Configs: []string{"all", "debug+frame"}, Short: opt == "-O2"})
	}
	for _, opt := range []string{"-O0", "-O2"} {
		cases = append(cases, Case{Table: tableJIT, Name: "the same, -mfentry, gcc " + opt, Needs: "gcc",
			Build:   "gcc -w " + opt + " -pg -mfentry -c -o $OUT.o tramps.c && gcc -o $OUT $OUT.o 2>/dev/null",
			Configs: []string{"all", "debug+frame"}, Short: opt == "-O0"})
	}
	cases = append(cases, Case{Table: tableJIT, Name: "frames set up by another function, gcc -O2, PCs", Needs: "gcc", Build: "gcc -w -O2 -o $OUT prologue.c",
		Configs: []string{"all", "debug+frame"}, Marked: true, PCs: true})
	cases = append(cases, toldCases()...)
	link := func(name, needs, build string, short bool, env ...string) {
		cases = append(cases, Case{Table: tableLinking, Name: name, Needs: needs, Build: build, Env: env,
			Configs: native, Steps: 40000, Short: short})
	}
	link("static", "gcc", "gcc -w -O2 -static -o $OUT work.c -lm", true)
	link("static-pie", "gcc", "gcc -w -O2 -static-pie -o $OUT work.c -lm", false)
	link("not PIE", "gcc", "gcc -w -O2 -no-pie -o $OUT work.c -lm", false)
	link("lazy binding", "gcc", "gcc -w -O2 -Wl,-z,lazy -o $OUT work.c -lm", true)
	link("bound at start, no PLT", "gcc", "gcc -w -O2 -fno-plt -Wl,-z,now -o $OUT work.c -lm", false)
	link("musl, dynamic", "musl-gcc", "musl-gcc -w -O2 -o $OUT work.c -lm", false)
	link("musl, static", "musl-gcc", "musl-gcc -w -O2 -static -o $OUT work.c -lm", true)
	link("clang, static", "clang-19", "clang-19 -w -O2 -static -o $OUT work.c -lm", false)
	link("clang, static-pie", "clang-19", "clang-19 -w -O2 -static-pie -o $OUT work.c -lm", false)
	link("clang, not PIE", "clang-19", "clang-19 -w -O2 -no-pie -o $OUT work.c -lm", false)
	link("clang, lazy binding", "clang-19", "clang-19 -w -O2 -Wl,-z,lazy -o $OUT work.c -lm", false)
	link("clang, no PLT", "clang-19", "clang-19 -w -O2 -fno-plt -Wl,-z,now -o $OUT work.c -lm", false)
	link("clang -Os, static, frame pointers", "clang-19", "clang-19 -w -Os -fno-omit-frame-pointer -static -o $OUT work.c -lm", false)
	link("gcc -Os, static, frame pointers", "gcc", "gcc -w -Os -fno-omit-frame-pointer -static -o $OUT work.c -lm", false)
	link("musl, static, not PIE, -Os", "musl-gcc", "musl-gcc -w -Os -static -no-pie -o $OUT work.c -lm", false)
	const noEVEX = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ"
	link("libc's functions for AVX2", "gcc", "gcc -w -O1 -o $OUT work.c -lm", false, noEVEX)
	link("libc's functions for SSE2", "gcc", "gcc -w -O1 -o $OUT work.c -lm", false, noEVEX+",-AVX2,-AVX,-SSE4_2,-SSE4_1,-SSSE3,-ERMS,-FSRM,-BMI2")
	link("numbers to text and back", "gcc", "gcc -O2 -o $OUT numbers.c", true)
	link("no unwind tables, stripped", "gcc", "gcc -w -O2 -fno-asynchronous-unwind-tables -s -o $OUT work.c -lm", true)

	lang := func(name, needs, build string, steps int) {
		cases = append(cases, Case{Table: tableLanguages, Name: name, Needs: needs, Build: build, Configs: native, Steps: steps})
	}
	lang("C++ with exceptions, g++ -O2", "g++", "g++ -O2 -o $OUT work.cc", 400000)
	lang("C++ with exceptions, g++ -O0", "g++", "g++ -O0 -o $OUT work.cc", 400000)
	lang("C++ with exceptions, g++ -Os -static", "g++", "g++ -Os -static -o $OUT work.cc", 400000)
	lang("C++ with exceptions, clang++-19 -O2", "clang++-19", "clang++-19 -O2 -o $OUT work.cc", 400000)
	lang("C++ with exceptions, g++ -O3, frame pointers", "g++", "g++ -O3 -fno-omit-frame-pointer -o $OUT work.cc", 400000)
	lang("C++ with exceptions, clang++-19 -O0", "clang++-19", "clang++-19 -O0 -o $OUT work.cc", 400000)
	lang("C++ with exceptions, clang++-19 -Os, not PIE", "clang++-19", "clang++-19 -Os -no-pie -o $OUT work.cc", 400000)
	lang("Rust -O, panic=abort, no unwind tables", "rustc",
		rustNoTables, 0)
	lang("Rust -O, panic caught", "rustc", "rustc -O -o $OUT work.rs", 0)
	lang("Rust, panic caught", "rustc", "rustc -o $OUT work.rs", 0)
	goRow := func(name, dir, flags string, marked bool, env []string) {
		cases = append(cases, Case{Table: tableGo, Name: name, Needs: toolsOfGo(flags), Build: "cd " + dir + " && CGO_ENABLED=" + flags + " -o $OUT .",
			Configs: []string{"all", "go"}, Steps: 200000, Marked: marked, Env: env})
	}
	goRow("the runtime's start", "gowork", "0 go build", false, goPreempted)
	goRow("with symbols", "gowork", "0 go build", true, goOnward)
	goRow("stripped", "gowork", "0 go build -ldflags=-s", true, goOnward)
	goRow("signals and faults", "gosignals", "0 go build", true, goOnward)
	goRow("the same, PIE, stripped", "gosignals", "0 go build -buildmode=pie '-ldflags=-s -w'", true, goOnward)
	goRow("signals at any instruction", "goticks", "0 go build", true, goOnward)
	goRow("preempted again and again", "gosignals", "0 go build", true, goPreempted)
	goRow("race detector", "gowork", "1 go build -race", true, goOnward)
	goRow("race detector, signals and faults, stripped", "gosignals", "1 go build -race -ldflags=-s", true, goOnward)
	goRow("called by C, cgo", "gocallbacks", "1 go build", true, goOnward)
	goRow("the same, static, stripped", "gocallbacks", "1 go build '-ldflags=-s -w -extldflags=-static'", true, goOnward)
	goRow("the same, preempted again and again", "gocallbacks", "1 go build", true, goPreempted)

	cases = append(cases, productCases(native)...)
	cases = append(cases, arm64Cases(native)...)
	for _, version := range []string{"1.20.14", "1.21.13", "1.22.12", "1.23.12", "1.24.13", "1.25.5", "1.27.3"} {
		for _, program := range []string{"gowork", "gosignals"} {
			cases = append(cases, Case{Table: tableGo, Name: "Go " + version + ", " + program, Needs: "go",
				// With GO111MODULE=off, GOTOOLCHAIN is not heeded.
				Build: "cd " + program + " && export GOROOT=$(GOTOOLCHAIN=go" + version + " go env GOROOT) && " +
					"GO111MODULE=off CGO_ENABLED=0 $GOROOT/bin/go build -o $OUT main.go && $GOROOT/bin/go version $OUT | grep -q ' go" + version + "$'",
				Configs: []string{"all", "go"}, Steps: 200000, Marked: true, Env: goOnward})
		}
	}

	stacks := func(name, needs, build string, args []string, thread, short bool) {
		cases = append(cases, Case{Table: tableStacks, Name: name, Needs: needs, Build: build, Run: append([]string{"$OUT"}, args...),
			Configs: native, Thread: thread, Short: short})
	}
	stacks("signals, alternate stack, siglongjmp", "gcc", "gcc -O2 -o $OUT signals.c", nil, false, true)
	stacks("the same, alternate stack above", "gcc", "gcc -O2 -o $OUT signals.c", []string{"above"}, false, false)
	stacks("the same, musl", "musl-gcc", "musl-gcc -O2 -static -o $OUT signals.c", nil, false, false)
	stacks("coroutines, vfork, clone", "gcc", "gcc -O2 -o $OUT stacks.c -pthread", nil, false, true)
	stacks("contexts gone back to, uc_link", "gcc", "gcc -O2 -o $OUT contexts.c", nil, false, true)
	stacks("coroutines by hand-written code", "gcc", "gcc -O2 -o $OUT fibers.c", nil, false, true)
	stacks("split stacks", "gcc", "gcc -O2 -fsplit-stack -o $OUT split.c", nil, false, false)
	stacks("a thread", "gcc", "gcc -O2 -o $OUT stacks.c -pthread", nil, true, true)
	stacks("a thread, musl", "musl-gcc", "musl-gcc -O2 -static -DNO_CONTEXT -o $OUT stacks.c -pthread", nil, true, false)

	for _, cc := range []string{"gcc", "musl-gcc"} {
		cases = append(cases, Case{Table: tableStacks, Name: "signals at any instruction, " + cc, Needs: cc, Build: cc + " -O2 -w -o $OUT ticks.c",
			Configs: native, Steps: 40000})
	}
	stacks("hand-written frames", "gcc", "gcc -O2 -o $OUT assembly.c", nil, false, true)
	cases = append(cases,
		Case{Table: tableStacks, Name: "a child of vfork", Needs: "gcc", Build: "gcc -O2 -o $OUT children.c", Child: true, Configs: native, Short: true},
		Case{Table: tableStacks, Name: "a child of vfork, musl", Needs: "musl-gcc", Build: "musl-gcc -O2 -static -o $OUT children.c", Child: true, Configs: native},
		Case{Table: tableStacks, Name: "a child of posix_spawn, and its program", Needs: "gcc", Build: "gcc -O2 -o $OUT children.c",
			Run: []string{"$OUT", "spawn"}, Child: true, Configs: native, Steps: 60000})

	for _, b := range []struct{ name, flags string }{
		{"nested uretprobes", "-O2"}, {"the same, unoptimised", "-O0"}, {"the same, frame pointers, static", "-O2 -fno-omit-frame-pointer -static"},
	} {
		cases = append(cases, Case{Table: tableStacks, Name: b.name, Needs: "gcc", Build: "gcc " + b.flags + " -o $OUT nested.c",
			Probes:  []string{"main", "f1", "f2", "f3", "framed", "rec", "plain", "jumper", "tail", "leaf", "leave", "jump"},
			Configs: native, Short: b.flags == "-O2"})
	}

	cases = append(cases, markedCases(native)...)
	return append(cases, programCases(native)...)
}
