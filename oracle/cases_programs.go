package oracle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// programCases are programs as the distribution has them, and what the Wanderer
// makes of some.
func programCases(native []string) []Case {
	var cases []Case
	program := func(name string, run []string, steps, windows, window int) {
		cases = append(cases, Case{Table: tablePrograms, Name: name, Needs: run[0], Run: run, Configs: native,
			Steps: steps, Windows: windows, WindowSteps: window})
	}
	program("ls", []string{"/bin/ls", "-l", "/"}, 150000, 0, 0)
	program("bash, loops and a trap", []string{"/bin/bash", "-c", `for i in 1 2 3; do echo $i; done; trap "echo hi" USR1; kill -USR1 $$; echo ${BASH_VERSION//[0-9]/x}`}, 150000, 0, 0)
	program("openssl sha256 (libcrypto)", []string{"/usr/bin/openssl", "sha256", "/etc/services"}, 150000, 0, 0)
	program("openssl speed (libcrypto)", []string{"/usr/bin/openssl", "speed", "-seconds", "1", "sha256", "ecdsap256", "rsa2048"}, 0, 60, 1500)
	program("openssl speed, AES-GCM", []string{"/usr/bin/openssl", "speed", "-seconds", "1", "-evp", "aes-256-gcm"}, 0, 60, 1500)
	program("openssl speed, ChaCha20-Poly1305", []string{"/usr/bin/openssl", "speed", "-seconds", "1", "-evp", "chacha20-poly1305"}, 0, 60, 1500)
	for _, algorithm := range []string{"aes-128-cbc", "sha512", "md5", "rsa4096", "ecdsap256", "ed25519", "ecdhx25519"} {
		program("openssl speed, "+algorithm, []string{"/usr/bin/openssl", "speed", "-seconds", "1", algorithm}, 0, 60, 1500)
	}
	program("zstd", []string{"/usr/bin/zstd", "-q", "--single-thread", "-9", "-c", "/usr/bin/python3.11"}, 0, 60, 1500)
	program("git log", []string{"/usr/bin/git", "log", "--stat", "-30"}, 150000, 0, 0)
	program("python3, json and re", []string{"/usr/bin/python3", "-c", "import json,re\nfor i in range(4000): json.loads(json.dumps([{'a':i,'b':[1,2,{'x':'y'*i}]}]*20)); re.sub('a+b','x','aaab'*50)"}, 0, 60, 1500)
	program("python3, zlib", []string{"/usr/bin/python3", "-c", "import zlib\nfor i in range(4000): zlib.decompress(zlib.compress(bytes(range(256))*200, i%9+1))"}, 0, 60, 1500)
	program("perl", []string{"/usr/bin/perl", "-e", "print join ',', sort map { $_ * 7 % 13 } 1..300"}, 150000, 0, 0)
	program("sqlite3", []string{"/usr/bin/sqlite3", ":memory:", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<400000) SELECT count(*), sum(x*x%7), max(hex(x)) FROM c"}, 0, 60, 1500)
	program("ruby", []string{"/usr/bin/ruby", "-e", "300.times { |i| (1..400).map { |x| (x * i).to_s.reverse }.sort.join.scan(/[0-4]+/).tally }"}, 0, 60, 1500)
	program("php", []string{"/usr/bin/php", "-r", "for ($i = 0; $i < 3000; $i++) { $a = range(1, 200); usort($a, fn($x, $y) => $y <=> $x); preg_match_all('/[1-4]+/', json_encode($a), $m); }"}, 0, 60, 1500)
	program("clang++ -O2 (libLLVM)", []string{"/usr/bin/clang++-19", "-O2", "-w", "-c", "-o", "/dev/null", "work.cc"}, 0, 60, 1500)
	program("factor (libgmp)", []string{"/usr/bin/factor", "1606938044258990275541962092341162602522202993782792835301399"}, 0, 60, 1500)
	program("xz", []string{"/usr/bin/xz", "-c", "/usr/bin/python3"}, 0, 60, 1500)
	program("g++ -O2 (cc1plus)", []string{"/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus", "-quiet", "-w", "-O2", "-D_GNU_SOURCE", "work.cc", "-o", "/dev/null"}, 0, 60, 1500)

	guess := []string{"debug+wanderer", "analysis+wanderer", "wanderer"}
	wander := func(c Case) {
		c.Table, c.Configs = tableWanderer, guess
		cases = append(cases, c)
	}
	wander(Case{Name: "gcc -O0", Needs: "gcc", Build: "gcc -w -O0 -o $OUT work.c -lm", Steps: 30000})
	wander(Case{Name: "gcc -O2", Needs: "gcc", Build: "gcc -w -O2 -o $OUT work.c -lm", Steps: 30000})
	wander(Case{Name: "musl-gcc -O2", Needs: "musl-gcc", Build: "musl-gcc -w -O2 -o $OUT work.c -lm", Steps: 30000})
	wander(Case{Name: "C++ with exceptions, g++ -O2", Needs: "g++", Build: "g++ -O2 -o $OUT work.cc", Steps: 150000})
	wander(Case{Name: "python3, json and re", Needs: "/usr/bin/python3", Run: []string{"/usr/bin/python3", "-c",
		"import json,re\nfor i in range(4000): json.loads(json.dumps([{'a':i,'b':[1,2,{'x':'y'*i}]}]*20)); re.sub('a+b','x','aaab'*50)"}, Windows: 60, WindowSteps: 1500})
	return cases
}

// markedCases are parts of programs that take long to get there.
func markedCases(native []string) []Case {
	var cases []Case
	add := func(name, needs, build string, steps int, configs []string, run ...string) {
		cases = append(cases, Case{Table: tableMarked, Name: name, Needs: needs, Build: build, Run: run, Configs: configs,
			Steps: steps, Marked: true, Short: true})
	}
	golang := func(name, dir, flags string, steps int, env []string) {
		cases = append(cases, Case{Table: tableMarked, Name: name, Needs: toolsOfGo(flags), Build: "cd " + dir + " && CGO_ENABLED=" + flags + " -o $OUT .",
			Env: env, Configs: []string{"all", "go"}, Steps: steps, Marked: true, Short: true})
	}
	add("C++, an exception, -O0", "g++", "g++ -O0 -o $OUT work.cc", 60000, native)
	const throws = "g++ -O0 -fno-omit-frame-pointer -o $OUT throws.cc"
	add("C++, throws through frame pointers", "g++", throws, 0, native)
	cases = append(cases, Case{Table: tableMarked, Name: "the same, sizes of frames chosen at run time", Needs: "g++", Build: throws,
		Run: []string{"$OUT", "variable"}, Configs: native, Marked: true, Short: true})
	add("the same, over the remains of such frames", "g++", "g++ -O0 -o $OUT alloca.cc", 0, native)
	add("the same, static, g++ -O1", "g++", "g++ -O1 -static -o $OUT alloca.cc", 0, native)
	cases[len(cases)-1].Short = false
	add("the same, clang++-19 -O2", "clang++-19", "clang++-19 -O2 -o $OUT alloca.cc", 0, native)
	cases[len(cases)-1].Short = false
	add("Rust, a panic caught", "rustc", "rustc -O -o $OUT work.rs", 0, native)
	add("Rust without unwind tables", "rustc", rustNoTables, 0, native)
	// Which code libcrypto runs, the CPU decides. That of the short form is the same everywhere.
	add("libcrypto", "gcc", "gcc -O2 -o $OUT crypto.c -l:libcrypto.so.3", 60000, native)
	plain := cases[len(cases)-1]
	cases[len(cases)-1].Short = false
	plain.Name, plain.Env = "libcrypto, x86-64 alone", []string{"OPENSSL_ia32cap=0:0"}
	cases = append(cases, plain)
	add("zlib", "gcc", "gcc -O2 -o $OUT zlib.c -l:libz.so.1", 60000, native)
	add("python3, json, re and zlib", "/usr/bin/python3", "", 60000, native, "/usr/bin/python3", "-c", `import json, os, re, zlib
def work():
    json.loads(json.dumps([{"a": 1.5, "b": [1, 2, {"x": "yy"}]}] * 2))
    re.sub("a+b", "x", "aaab" * 3)
    return sorted(zlib.decompress(zlib.compress(b"abc" * 20)))
work()
os.getppid()
work()`)
	add("C++, an exception, -O2", "g++", "g++ -O2 -o $OUT work.cc", 60000, native)
	golang("Go, stripped", "gowork", "0 go build -ldflags=-s", 60000, goOnward)
	golang("Go, signals and faults", "gosignals", "0 go build", 60000, goOnward)
	golang("Go, race detector", "gowork", "1 go build -race", 60000, goOnward)
	golang("Go called by C, preempted again and again", "gocallbacks", "1 go build", 40000, goPreempted)
	for _, run := range []struct {
		name  string
		modes []string
	}{
		{"node, PCs, interpreted", []string{"--jitless"}},
		{"node, PCs, optimised code", []string{"--perf-basic-prof", "--no-sparkplug"}},
		{"node, PCs, baseline code", []string{"--perf-basic-prof", "--always-sparkplug"}},
	} {
		args := slices.Concat([]string{"/usr/bin/node", "--logfile=+", "--no-logfile-per-isolate"}, run.modes, []string{"node.js"})
		cases = append(cases, Case{Table: tableMarked, Name: run.name, Needs: "/usr/bin/node", Marked: true, PCs: true,
			Run: args, Configs: []string{"all", "debug+frame"}, Steps: 100000})
	}
	return cases
}

// skip is the mean time between the windows of a case.
const skip = 8 * time.Millisecond

// libgcc is another version of libgcc: the directory of its libraries, and what makes a
// program use the shared one.
type libgcc struct{ version, dir, env string }

// otherLibgcc returns those for this machine, of directories native-VERSION in what
// SWBPF_LIBGCC names.
func otherLibgcc() (others []libgcc) {
	root, ok := os.LookupEnv("SWBPF_LIBGCC")
	dirs, err := filepath.Glob(filepath.Join(root, "native-*"))
	if !ok || err != nil {
		return nil
	}
	for _, dir := range dirs {
		_, version, _ := strings.Cut(filepath.Base(dir), "-")
		others = append(others, libgcc{version, dir, "LD_LIBRARY_PATH=" + dir})
	}
	return others
}

// toldCases are programs that make code while they run and tell of it by GDB's
// JIT interface, or tell libgcc.
func toldCases() []Case {
	var cases []Case
	add := func(c Case) {
		c.Table, c.Configs = tableTold, []string{"all", "debug"}
		cases = append(cases, c)
	}
	objects := func(c Case, flags ...string) {
		build := ""
		c.Run = append([]string{"$OUT"}, c.Run...)
		for i, f := range flags {
			object := fmt.Sprintf("$OUT.%d.o", i)
			build += "gcc -w -c -fPIC -fvisibility=hidden -fno-builtin -fexceptions -fno-stack-protector " + f + " -o " + object + " jitpart.c && "
			c.Run = append(c.Run, object)
		}
		c.Needs, c.Build, c.Marked = "g++", build+"g++ -O2 -o $OUT gdbjit.cc "+c.Build, true
		add(c)
	}
	objects(Case{Name: "objects of gcc -O2 and -O0, loaded and unloaded", Short: true}, "-O2", "-O0")
	objects(Case{Name: "the same, -Os, -O3, frame pointers, a section for each function"}, "-Os", "-O3 -ffunction-sections", "-O2 -fno-omit-frame-pointer", "-O1")
	untold := func(name, mode string, short bool, env ...string) {
		objects(Case{Name: name, Short: short, Run: []string{mode}, Env: env}, "-O2", "-O0")
	}
	libraries := otherLibgcc()
	untold("objects of which libgcc alone is told", "untold", len(libraries) == 0)
	untold("two of them at once", "table", len(libraries) == 0)
	const linked = "-static-pie -s"
	linkedIn := func(name, flags string, short bool) {
		objects(Case{Name: name, Short: short, Build: flags, Run: []string{"untold"}}, "-O2", "-O0")
	}
	linkedIn("one at a time, libgcc linked in, without symbols", linked, true)
	for _, l := range libraries {
		untold("objects of which libgcc alone is told, GCC "+l.version, "untold", true, l.env)
		untold("two of them at once, GCC "+l.version, "table", true, l.env)
		linkedIn("one at a time, libgcc linked in, without symbols, GCC "+l.version, linked+" -L"+l.dir, false)
	}
	modules := "$OUT"
	build := ""
	for i, f := range []string{"-O2", "-O0 -Xclang -disable-O0-optnone", "-O2 -fno-omit-frame-pointer -fno-asynchronous-unwind-tables"} {
		module := fmt.Sprintf("$OUT.%d.ll", i)
		build += "clang-19 -w -S -emit-llvm -fexceptions -fno-builtin " + f + " -o " + module + " jitpart.c && "
		modules += " " + module
	}
	build += "clang++-19 -O1 $(llvm-config-19 --cxxflags) -fexceptions -w -o $OUT llvmjit.cc $(llvm-config-19 --ldflags --libs)"
	linkers := []struct{ name, arg, env string }{{"LLVM's ORC, RuntimeDyld", "rtdyld", ""}, {"LLVM's ORC, JITLink", "jitlink", ""},
		{"LLVM's ORC, which tells libgcc alone", "untold", ""}}
	for _, l := range libraries {
		linkers = append(linkers, struct{ name, arg, env string }{"the same, GCC " + l.version, "untold", l.env})
	}
	for _, linker := range linkers {
		run := strings.Fields(modules)
		add(Case{Name: linker.name, Needs: "clang++-19 /usr/include/llvm-19/llvm/ExecutionEngine/Orc/LLJIT.h", Build: build,
			Run: slices.Insert(run, 1, linker.arg), Env: strings.Fields(linker.env), Marked: true, Steps: 400000})
	}
	add(Case{Name: "one object for all code that is generated", Needs: "gcc", Build: "gcc -c -o $OUT.o buffer.s && gcc -O1 -o $OUT buffer.c",
		Run: []string{"$OUT", "$OUT.o"}, Marked: true, Short: true})
	add(Case{Name: "qemu-x86_64, system calls", Needs: "/usr/bin/qemu-x86_64", Windows: 60, WindowSteps: 1500,
		Run: []string{"/usr/bin/qemu-x86_64", "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=100000000"}})
	add(Case{Name: "qemu-x86_64", Needs: "/usr/bin/qemu-x86_64 /usr/bin/sqlite3",
		Run:     []string{"/usr/bin/qemu-x86_64", "/usr/bin/sqlite3", ":memory:", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<400000) SELECT count(*), sum(x*x%7), max(hex(x)) FROM c"},
		Windows: 60, WindowSteps: 1500})
	return cases
}
