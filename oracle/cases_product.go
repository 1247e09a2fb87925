package oracle

import "fmt"

// clangMusl compiles against musl with clang, for which there is no musl-gcc.
const clangMusl = "clang-19 -w -nostdlib -nostdinc -isystem /usr/include/x86_64-linux-musl -isystem $(clang-19 -print-resource-dir)/include" +
	" -L/usr/lib/x86_64-linux-musl -Wl,-dynamic-linker,/lib/ld-musl-x86_64.so.1 -o $OUT %s" +
	" /usr/lib/x86_64-linux-musl/Scrt1.o /usr/lib/x86_64-linux-musl/crti.o work.c -lc /usr/lib/x86_64-linux-musl/crtn.o"

// productCases are all combinations of compiler, optimisation, frame pointers,
// ways of linking and libc.
func productCases(configs []string) []Case {
	var cases []Case
	for _, cc := range []string{"gcc", "clang-19", "musl-gcc", "clang-19 with musl"} {
		ways := []struct{ name, flags string }{{"PIE", "-pie"}, {"not PIE", "-no-pie"}, {"static", "-static"}, {"static-pie", "-static-pie"}}
		needs, build := cc, cc+" -w %s -o $OUT work.c -lm"
		if cc == "clang-19 with musl" {
			needs, build = "musl-gcc", clangMusl
		}
		if needs == "musl-gcc" {
			ways = ways[:3] // its specs have no static-pie
		}
		for _, way := range ways {
			for _, opt := range []string{"-O0", "-O1", "-O2", "-O3", "-Os"} {
				for _, fp := range []string{"-fomit-frame-pointer", "-fno-omit-frame-pointer"} {
					flags := way.flags + " " + opt + " " + fp
					if way.flags == "-pie" || way.flags == "-static-pie" {
						flags += " -fpie"
					} else {
						flags += " -fno-pie"
					}
					cases = append(cases, Case{Table: tableProduct, Name: cc + " " + flags, Row: cc + ", " + way.name, Needs: needs,
						Build: fmt.Sprintf(build, flags), Configs: configs, Steps: 30000,
						Short: cc == "gcc" && flags == "-no-pie -O1 -fomit-frame-pointer -fno-pie"}) // jump tables of absolute addresses
				}
			}
		}
	}
	return cases
}

// arm64Cases are programs for AArch64.
func arm64Cases(configs []string) []Case {
	const gcc, gxx, clang = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "clang-19"
	var cases []Case
	add := func(name, needs, build string, steps int, short bool) {
		cases = append(cases, Case{Table: tableARM64, Name: name, Needs: needs, Build: build, Configs: configs, Steps: steps, Short: short})
	}
	for _, opt := range []string{"-O0", "-O1", "-O2", "-O3", "-Os"} {
		add("gcc "+opt, gcc, gcc+" -w "+opt+" -o $OUT work.c -lm", 30000, opt == "-O2")
		add("clang "+opt, clang, clang+" --target=aarch64-linux-gnu -w "+opt+" -o $OUT work.c -lm", 30000, false)
	}
	add("gcc -O2 -fomit-frame-pointer, bound at start", gcc, gcc+" -w -O2 -fomit-frame-pointer -Wl,-z,now -o $OUT work.c -lm", 30000, false)
	add("gcc -O2, static", gcc, gcc+" -w -O2 -static -o $OUT work.c -lm", 30000, false)
	add("gcc -O2, pointer authentication, static", gcc, gcc+" -w -O2 -mbranch-protection=standard -static -o $OUT work.c -lm", 30000, true)
	add("gcc -O0, pointer authentication of leaves too", gcc, gcc+" -w -O0 -mbranch-protection=pac-ret+leaf+bti -o $OUT work.c -lm", 30000, false)
	add("clang -Os, pointer authentication", clang, clang+" --target=aarch64-linux-gnu -w -Os -mbranch-protection=standard -o $OUT work.c -lm", 30000, false)
	add("C++ with exceptions, g++ -O2", gxx, gxx+" -O2 -o $OUT work.cc", 150000, false)
	add("C++ with exceptions, g++ -Os, pointer authentication", gxx, gxx+" -Os -mbranch-protection=standard -o $OUT work.cc", 150000, false)
	add("C++, throws through frame pointers, clang++ -O0", "clang++-19", "clang++-19 --target=aarch64-linux-gnu -O0 -o $OUT throws.cc", 0, false)
	add("signals, alternate stack, siglongjmp", gcc, gcc+" -O2 -o $OUT signals.c", 0, true)
	for _, program := range []string{"gowork", "gosignals"} {
		cases = append(cases, Case{Table: tableGo, Name: "AArch64, " + program, Needs: "go",
			Build:   "cd " + program + " && GOARCH=arm64 CGO_ENABLED=0 go build '-ldflags=-s -w' -o $OUT .",
			Configs: []string{"all", "go"}, Steps: 200000, Env: []string{"GOMAXPROCS=1"}})
	}
	golang := func(name, needs, program, flags string) {
		cases = append(cases, Case{Table: tableGo, Name: "AArch64, " + name, Needs: needs,
			Build:   "cd " + program + " && GOARCH=arm64 " + flags + " go build -o $OUT .",
			Configs: []string{"all", "go"}, Steps: 60000, Marked: true, Unmonitored: true, Env: goOnward})
	}
	golang("from the middle on", "go", "gowork", "CGO_ENABLED=0")
	golang("called by C, cgo", gcc, "gocallbacks", "CGO_ENABLED=1 CC="+gcc)
	for _, opt := range []string{"-O0", "-O2", "-Os"} {
		for _, pac := range []string{"none", "standard"} {
			cases = append(cases, Case{Table: tableFramesARM, Name: "gcc " + opt + " -mbranch-protection=" + pac, Needs: gcc,
				Build: gcc + " -w " + opt + " -mbranch-protection=" + pac + " -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer" +
					" -fno-asynchronous-unwind-tables -fno-stack-protector -fno-builtin -ffreestanding -static -nostdlib -o $OUT freestanding.c",
				Configs: []string{"all", "frame", "stripped", "analysis"}, Short: opt == "-O2"})
		}
	}
	return cases
}
