package swbpf_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/dotnet"
	"github.com/swbpf/swbpf/internal/emulated"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// The tests here have runtimes for AArch64 run the programs that tests for this machine compare with what
// the runtimes tell themselves. The emulated process stands while it is walked, and is read as it is.

// runEmulated starts a file, whose libraries are in root, and lets it run.
func runEmulated(t *testing.T, root, path string, args ...string) (p *emulated.Program, out io.Reader) {
	t.Helper()
	return runEmulatedIn(t, root, nil, append([]string{path}, args...)...)
}

// runEmulatedIn is runEmulated with variables in the environment that the emulator itself does not see.
func runEmulatedIn(t *testing.T, root string, env []string, command ...string) (p *emulated.Program, out io.Reader) {
	t.Helper()
	testenv.Needs(t, "qemu-aarch64")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	p, err = emulated.Start(command, []string{"QEMU_LD_PREFIX=" + root, "QEMU_SET_ENV=" + strings.Join(append(slices.Clone(env), "LC_ALL=C"), ",")}, "", w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	p.Run()
	return p, r
}

// stopEmulated stops the program, and makes a Walker of it as it is then.
func stopEmulated(t *testing.T, p *emulated.Program, path string) *unwind.Walker {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	t.Cleanup(func() { images.Close() })
	state, err := p.State(images, path)
	if err != nil {
		t.Fatal(err)
	}
	return swbpf.With(state, nil, nil)
}

// startEmulated is startWaiting for a program for AArch64, which has stopped when this returns.
func startEmulated[Calls any](t *testing.T, threads int, program testenv.Program, args ...string) (*unwind.Walker, map[procstate.ThreadID]Calls) {
	t.Helper()
	path := filepath.Join(program.Root, program.Path)
	p, out := runEmulated(t, program.Root, path, args...)
	calls := awaitCalls[Calls](t, p.PID, threads, out)
	return stopEmulated(t, p, path), calls
}

// walkEmulated walks the threads that have told what to expect.
func walkEmulated[Calls any](t *testing.T, w *unwind.Walker, want map[procstate.ThreadID]Calls, check func(*unwind.Walker, procstate.ThreadID, []unwind.Frame)) {
	t.Helper()
	for tid := range want {
		frames, err := w.WalkStack(nil, tid)
		if err != nil {
			t.Errorf("thread %d: %v", tid, err)
		}
		check(w, tid, frames)
	}
}

func TestPythonAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, python testenv.Program) {
		w, want := startEmulated[[]string](t, threadsOfPython, python, filepath.Join("testdata", "walk", "waits.py"))
		walkEmulated(t, w, want, checkPython(t, want))
	}, "usr/bin/python3.*")
}

func TestPerlAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, perl testenv.Program) {
		script := filepath.Join(t.TempDir(), "waits.pl") // beside which a case writes
		testenv.Run(t, exec.Command("cp", filepath.Join("testdata", "walk", "waits.pl"), script))
		cases := casesOfPerl(t, "env", "LC_ALL=C", "qemu-aarch64", "-L", perl.Root, filepath.Join(perl.Root, perl.Path), script)
		if !testenv.Long() {
			cases = []string{"nested", "require", "tie"}
		}
		for _, name := range cases {
			t.Run(name, func(t *testing.T) {
				w, want := startEmulated[[]string](t, 1, perl, script, name)
				walkEmulated(t, w, want, checkPerl(t, name, want))
			})
		}
	}, "usr/bin/perl")
}

func TestLuaAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, lua testenv.Program) {
		w, want := startEmulated[[]string](t, 1, lua, waitingLua(t, testenv.Program{}, "waits.lua")...)
		walkEmulated(t, w, want, checkLua(t, want))
	}, "usr/bin/lua5.*")
}

func TestJavaScriptAArch64(t *testing.T) {
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "waits.js"))
	if err != nil {
		t.Fatal(err)
	}
	root, nodes := nodesForAArch64(t)
	for _, node := range testenv.Some(nodes) {
		ways := map[string][]string{"mixed": nil}
		if testenv.Long() {
			ways = waysOfNode("qemu-aarch64", "-L", root, node)
		}
		for name, flags := range ways {
			t.Run(strings.Trim(filepath.Join(node, name), "/"), func(t *testing.T) {
				p, out := runEmulated(t, root, node, append(flags, script, "5000")...)
				p.MakesCode = true
				want := awaitCalls[[]jsCall](t, p.PID, 2, out)
				w := stopEmulated(t, p, node)
				walkEmulated(t, w, want, func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
					checkJavaScript(t, name, &swbpf.ThreadStack{Thread: procstate.Thread{TID: tid}, Walker: w, Frames: frames}, want[tid])
				})
			})
		}
	}
}

func TestWebAssemblyAArch64(t *testing.T) {
	script, err := filepath.Abs(filepath.Join("testdata", "walk", "wasm.js"))
	if err != nil {
		t.Fatal(err)
	}
	root, nodes := nodesForAArch64(t)
	for _, node := range testenv.Some(nodes) {
		t.Run(strings.Trim(node, "/"), func(t *testing.T) {
			// Where code is written last on a page, as the other compiler does late, the emulator does not tell that it is code.
			p, out := runEmulated(t, root, node, "--liftoff-only", script, "200000")
			p.MakesCode = true
			want := awaitCalls[[]string](t, p.PID, 1, out)
			walkEmulated(t, stopEmulated(t, p, node), want, checkWebAssembly(t, want))
		})
	}
}

// nodesForAArch64 returns Nodes, and where the libraries are that they need.
func nodesForAArch64(t *testing.T) (root string, nodes []string) {
	t.Helper()
	root, _, _ = strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	nodes = filepath.SplitList(os.Getenv("SWBPF_AARCH64_NODES"))
	if root == "" || len(nodes) == 0 {
		t.Skip("no Node for AArch64: SWBPF_AARCH64_NODES names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	return root, nodes
}

func TestRubyAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, ruby testenv.Program) {
		w, want := startEmulated[[]string](t, threadsOfRuby, ruby, "--disable-gems", filepath.Join("testdata", "walk", "waits.rb"))
		walkEmulated(t, w, want, checkRuby(t, want))
	}, "usr/bin/ruby[0-9].[0-9]")
}

// What PHP compiles is in memory that the emulator's maps do not tell of.
func TestPHPAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, php testenv.Program) {
		script := testenv.Program{}.Script(t, filepath.Join("testdata", "walk", "waits.php")) // beside which it writes
		interpreted := []string{"-n", "-d", "opcache.enable_cli=0"}
		cases := map[string][]string{
			"interpreted": interpreted, "interpreted in a fiber": interpreted,
			"optimised": {"-n", "-d", "zend_extension=opcache", "-d", "opcache.enable_cli=1", "-d", "opcache.file_update_protection=0", "-d", "opcache.jit=off"},
		}
		if strings.Contains(php.Path, "php7") {
			cases = map[string][]string{"interpreted": {"-n", "-d", "extension=json"}}
		}
		for name, flags := range cases {
			t.Run(name, func(t *testing.T) {
				args := append(slices.Clone(flags), script)
				if strings.HasSuffix(name, "fiber") {
					args = append(args, "fiber")
				}
				w, want := startEmulated[[]string](t, 1, php, args...)
				walkEmulated(t, w, want, func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
					checkPHP(t, want[tid])(w, frames)
				})
			})
		}
	}, "usr/bin/php[78].[0-9]")
}

// Java tells of its threads what threadDump has it tell.
func TestJavaAArch64(t *testing.T) {
	testenv.NeedsJava(t) // to compile the program
	testenv.EachAArch64(t, func(t *testing.T, java testenv.Program) {
		for name, flags := range waysOfJava {
			if name != "mixed" && !testenv.Long() {
				continue
			}
			t.Run(name, func(t *testing.T) {
				classes := testenv.CompileJava(t, testenv.Program{Path: "java"}, filepath.Join("testdata", "walk", "Waits.java"))
				path := filepath.Join(java.Root, java.Path)
				p, out := runEmulated(t, java.Root, path, append(slices.Clone(flags), "-cp", classes, "Waits")...)
				p.MakesCode = true
				tg := &target{pid: p.PID, out: bufio.NewReader(out)}
				if line := tg.line(t); line != "ready" {
					t.Fatalf("Java says %q", line)
				}
				want := awaitDump(t, tg)
				w := stopEmulated(t, p, path)
				walkEmulated(t, w, want, func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
					if got := javaCalls(&swbpf.ThreadStack{Walker: w, Frames: frames}); !slices.Equal(got, want[tid]) {
						t.Errorf("thread %d: calls\n%s, by its dump\n%s", tid, strings.Join(got, "\n"), strings.Join(want[tid], "\n"))
					}
				})
			})
		}
	}, "usr/lib/jvm/java-*/bin/java")
}

func TestLuaJITAArch64(t *testing.T) {
	testenv.EachAArch64(t, func(t *testing.T, luajit testenv.Program) {
		for _, args := range waysOfLuaJIT(t, "qemu-aarch64", "-L", luajit.Root, filepath.Join(luajit.Root, luajit.Path)) {
			t.Run(args[0], func(t *testing.T) {
				w, want := startEmulated[[]string](t, 1, luajit, args...)
				walkEmulated(t, w, want, checkLuaJIT(t, want))
			})
		}
		t.Run("trace", func(t *testing.T) {
			script := traceOfLuaJIT(t)
			w, want := startEmulated[[]string](t, 1, luajit, script)
			walkEmulated(t, w, want, checkLuaJITTrace(t, script))
		})
	}, "usr/bin/luajit")
}

// TestErlangAArch64 walks the scheduler of Erlang's process that spins, at each of its instructions for some time, from
// several places on. The runtime system of OTP 25 does not run under qemu-user 7.2.
func TestErlangAArch64(t *testing.T) {
	if !testenv.Long() {
		t.Skip("takes a minute: SWBPF_LONG is not set")
	}
	testenv.EachAArch64(t, func(t *testing.T, program testenv.Program) {
		erl := testenv.Erlang{Program: program}
		source := testenv.Program{}.Script(t, filepath.Join("testdata", "walk", "stuck.erl"))
		dir := filepath.Dir(source)
		compiler, environment := erl.Emulated(t, "-eval", fmt.Sprintf(`{ok, _} = compile:file("%s", [{outdir, "%s"}]), halt().`, source, dir))
		compiles := exec.Command("qemu-aarch64", append([]string{"-L", erl.Root}, compiler...)...)
		compiles.Env = append(os.Environ(), environment...)
		testenv.Run(t, compiles)
		command, environment := erl.Emulated(t, "+S", "1:1", "-pa", dir, "-eval", "stuck:main().")
		p, out := runEmulatedIn(t, erl.Root, environment, command...)
		p.MakesCode = true
		want := erlangTells(t, out)
		count := map[erlangDoes]int{}
		for range 4 {
			stepErlang(t, p, command[0], want, count)
			p.Run()
		}
		if count[erlangRuns] < 20 || count[erlangCalls] < 1000 {
			t.Errorf("%v", count)
		}
		t.Logf("%d stacks in code of Erlang, and %d in C", count[erlangRuns], count[erlangCalls])
	}, "usr/lib/erlang/erts-1[4-9].*/bin/erlexec")
}

// stepErlang stops the program, and checks the stack of the thread with the process that spins at its next instructions.
func stepErlang(t *testing.T, p *emulated.Program, path string, want []string, count map[erlangDoes]int) {
	t.Helper()
	images := procstate.NewImages(0)
	defer images.Close()
	var state *emulated.State
	var w *unwind.Walker
	scheduler, wrong := procstate.ThreadID(0), 0
	eventually(t, "the scheduler is met", func() bool {
		time.Sleep(20 * time.Millisecond)
		err := p.Stop()
		if err == nil {
			state, err = p.State(images, path)
		}
		if err != nil {
			t.Fatal(err)
		}
		w = swbpf.With(state, nil, nil)
		threads, _ := state.Threads()
		for _, tid := range threads {
			frames, _ := w.WalkStack(nil, tid) // it goes on meanwhile
			if is, _ := checkErlang(w, frames, nil, want); is != erlangIdles {
				scheduler = tid
			}
		}
		if scheduler == 0 {
			p.Run()
		}
		return scheduler != 0
	})
	for range 2000 {
		if err := state.StepThread(scheduler); err != nil {
			t.Fatal(err)
		}
		frames, err := w.WalkStack(nil, scheduler)
		is, problem := checkErlang(w, frames, err, want)
		if count[is]++; problem != "" {
			if wrong++; wrong < 3 {
				t.Errorf("at %#x: %s", frames[0].PC(), problem)
			}
		}
	}
}

// R has no names of a shell around it here, which makes its environment, nor what chooses among libraries of algebra.
func TestRAArch64(t *testing.T) {
	if !testenv.Long() {
		t.Skip("R under an emulator takes long: SWBPF_LONG is not set")
	}
	const libraries = "LD_LIBRARY_PATH=/usr/lib/R/lib:/usr/lib/aarch64-linux-gnu/blas:/usr/lib/aarch64-linux-gnu/lapack"
	testenv.EachAArch64(t, func(t *testing.T, r testenv.Program) {
		for _, jit := range []string{"0", "3"} {
			t.Run("R_ENABLE_JIT="+jit, func(t *testing.T) {
				path := filepath.Join(r.Root, r.Path)
				p, out := runEmulatedIn(t, r.Root, []string{"R_HOME=/usr/lib/R", libraries, "R_ENABLE_JIT=" + jit},
					path, "--vanilla", "--no-echo", "--file="+filepath.Join("testdata", "walk", "waits.R"))
				want := awaitCalls[[]string](t, p.PID, 1, out)
				walkEmulated(t, stopEmulated(t, p, path), want, checkR(t, want))
			})
		}
	}, "usr/lib/R/bin/exec/R")
}

// awaitSaid waits until a program that testdata has for a virtual machine of JavaScript has written its stack to a file.
func awaitSaid(t *testing.T, file string) (said string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(said, "\nend"); time.Sleep(20 * time.Millisecond) {
		b, _ := os.ReadFile(file)
		if said = string(b); time.Now().After(deadline) {
			t.Fatalf("it says nothing: %s", said)
		}
	}
	return said
}

// calledBy are the functions that runtimes tell of frames, by name, and their lines where these are known.
func calledBy(w *unwind.Walker, frames []unwind.Frame) (names []string, lines []int) {
	for i := range frames {
		for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
			for _, l := range w.Codes().Lines(code) {
				names, lines = append(names, l.Name), append(lines, l.Line)
			}
		}
	}
	return names, lines
}

// What the program says is interpreted in its first turn, compiled with calls that were inlined in a later one, and in a loop
// that was entered before it was compiled.
func TestBunAArch64(t *testing.T) {
	root, _, _ := strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	buns := filepath.SplitList(os.Getenv("SWBPF_AARCH64_BUN"))
	if root == "" || len(buns) == 0 {
		t.Skip("no Bun for AArch64: SWBPF_AARCH64_BUN names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	for _, bun := range testenv.Some(buns) {
		for _, turn := range []string{"1", "300", "4000", "-1"} {
			t.Run(strings.Trim(filepath.Join(bun, turn), "/"), func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "said")
				p, _ := runEmulated(t, root, bun, filepath.Join("testdata", "walk", "callsinbun.js"), turn, file)
				p.MakesCode = true
				var want []string
				for line := range strings.Lines(awaitSaid(t, file)) {
					if name, ok := strings.CutPrefix(strings.TrimSpace(line), "at "); ok && !strings.HasPrefix(name, "async ") { // which are on no stack
						name, _, _ = strings.Cut(name, " (")
						want = append(want, strings.TrimPrefix(name, "new "))
					}
				}
				w := stopEmulated(t, p, bun)
				frames, err := w.WalkStack(nil, procstate.DefaultThread)
				got, _ := calledBy(w, frames)
				at := slices.Index(got, "leaf")
				if err != nil || len(want) < 4 || at < 0 || len(got) < at+len(want) || !slices.Equal(got[at:at+len(want)], want) {
					t.Errorf("%v: %q, it says %q", err, got, want)
				}
			})
		}
	}
}

// Functions of Bun have the lines that the program says they have.
func TestBunLinesAArch64(t *testing.T) {
	root, _, _ := strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	buns := filepath.SplitList(os.Getenv("SWBPF_AARCH64_BUN"))
	if root == "" || len(buns) == 0 {
		t.Skip("no Bun for AArch64: SWBPF_AARCH64_BUN names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	for _, bun := range testenv.Some(buns) {
		for _, turn := range []string{"1", "300", "4000"} {
			t.Run(strings.Trim(filepath.Join(bun, turn), "/"), func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "said")
				p, _ := runEmulated(t, root, bun, filepath.Join("testdata", "walk", "linesinbun.ts"), turn, file)
				p.MakesCode = true
				said := awaitSaid(t, file)
				w := stopEmulated(t, p, bun)
				frames, err := w.WalkStack(nil, procstate.DefaultThread)
				names, lines := calledBy(w, frames)
				const functions = 20 // of the program
				n, at := 0, 0
				for line := range strings.Lines(said) {
					name, where, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "at "), " (/")
					if !ok || strings.HasPrefix(name, "async ") { // which are on no stack
						continue
					}
					name = strings.TrimPrefix(name, "new ")
					i := slices.Index(names[at:], name)
					if i < 0 || !strings.Contains(where, fmt.Sprintf("linesinbun.ts:%d:", lines[at+i])) {
						t.Fatalf("%s (%s is not there\n%s\n%q\n%d", name, where, said, names, lines)
					}
					n, at = n+1, at+i+1
				}
				if err != nil || n != functions {
					t.Errorf("%d functions, not %d: %v", n, functions, err)
				}
			})
		}
	}
}

// Deno's threads wait in calls of JavaScript, as TestDeno has them do.
func TestDenoAArch64(t *testing.T) {
	root, _, _ := strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	denos := filepath.SplitList(os.Getenv("SWBPF_AARCH64_DENO"))
	if root == "" || len(denos) == 0 {
		t.Skip("no Deno for AArch64: SWBPF_AARCH64_DENO names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	t.Setenv("DENO_NO_UPDATE_CHECK", "1")
	script := scriptOfDeno(t)
	for _, deno := range testenv.Some(denos) {
		for name, flags := range waysOfDeno {
			if name != "mixed" && !testenv.Long() {
				continue
			}
			t.Run(strings.Trim(filepath.Join(deno, name), "/"), func(t *testing.T) {
				p, out := runEmulated(t, root, deno, "run", "-A", "--v8-flags="+flags, script, "5000")
				p.MakesCode = true
				want := awaitCalls[[]jsCall](t, p.PID, 2, out)
				w := stopEmulated(t, p, deno)
				walkEmulated(t, w, want, func(w *unwind.Walker, tid procstate.ThreadID, frames []unwind.Frame) {
					checkJavaScript(t, name, &swbpf.ThreadStack{Thread: procstate.Thread{TID: tid}, Walker: w, Frames: frames}, want[tid])
				})
			})
		}
	}
}

// A program of .NET is walked while it starts, by its main thread, and compared with what .NET writes for perf: which method it
// has compiled to where. SWBPF_AARCH64_DOTNET names it; its arguments are those of azmcp.
func TestDotnetAArch64(t *testing.T) {
	root, _, _ := strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	program := os.Getenv("SWBPF_AARCH64_DOTNET")
	if root == "" || program == "" {
		t.Skip("no program of .NET for AArch64: SWBPF_AARCH64_DOTNET names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	dir := t.TempDir()
	for name, value := range map[string]string{
		"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1", "DOTNET_PerfMapEnabled": "3", "DOTNET_PerfMapJitDumpPath": dir, "HOME": dir,
	} {
		t.Setenv(name, value)
	}
	p, out := runEmulated(t, root, program, "server", "start")
	p.MakesCode = true
	go io.Copy(io.Discard, out)
	const fewest = 10 // frames of methods
	walks := 5
	if testenv.Long() {
		walks = 40
	}
	for walked, deadline := 0, time.Now().Add(2*time.Minute); walked < walks; p.Run() {
		if time.Now().After(deadline) {
			t.Fatalf("methods call each other in %d of %d walks", walked, walks)
		}
		time.Sleep(300 * time.Millisecond)
		w := stopEmulated(t, p, program)
		frames, err := w.WalkStack(nil, procstate.ThreadID(p.PID))
		b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("perf-%d.map", p.PID)))
		told, methods := perfMap(string(b)), 0
		for i := range frames {
			want, got := told.at(frames[i].LookupPC()), ""
			if lines := w.Codes().Lines(frames[i].Code); len(lines) > 0 {
				got = lines[0].Name
				methods++
			}
			if got != want {
				t.Errorf("%#x is in %q, not %q", frames[i].PC(), want, got)
			}
		}
		if methods < fewest {
			continue
		}
		if walked++; err != nil {
			t.Errorf("%d frames, of which %d of methods: %v", len(frames), methods, err)
		}
	}
}

// The same program of .NET 10, whose own part is replaced by one that has its threads stop, has the lines that .NET tells of.
func TestDotnetLinesAArch64(t *testing.T) {
	root, _, _ := strings.Cut(os.Getenv("SWBPF_AARCH64_ROOTS"), string(filepath.ListSeparator))
	program := os.Getenv("SWBPF_AARCH64_DOTNET")
	if root == "" || program == "" {
		t.Skip("no program of .NET for AArch64: SWBPF_AARCH64_DOTNET names none, or SWBPF_AARCH64_ROOTS no libraries")
	}
	contents, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if contents, err = dotnet.Replaced(contents, filepath.Base(program)+".dll", dotnet.DLL); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, filepath.Base(program))
	for name, contents := range map[string][]byte{program: contents, filepath.Join(dir, "Lines.pdb"): dotnet.PDB} {
		if err := os.WriteFile(name, contents, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, tiered := range []string{"0", "1"} {
		told := filepath.Join(dir, "told"+tiered)
		p, out := runEmulatedIn(t, root, []string{
			"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1", "HOME=" + dir, "LINES_OUT=" + told, "DOTNET_TieredCompilation=" + tiered,
		}, program)
		p.MakesCode = true
		go io.Copy(io.Discard, out)
		var text []byte
		for deadline := time.Now().Add(2 * time.Minute); !strings.HasSuffix(string(text), "ready\n"); time.Sleep(100 * time.Millisecond) {
			if text, _ = os.ReadFile(told); time.Now().After(deadline) {
				t.Fatalf("not ready: %s", text)
			}
		}
		w := stopEmulated(t, p, program)
		threads, err := w.ProcessState().Threads()
		if err != nil {
			t.Fatal(err)
		}
		lines, traces := 0, dotnet.Traces(string(text))
		for _, tid := range threads {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", p.PID, tid))
			name := strings.TrimSpace(string(comm))
			calls, isOne := traces[name]
			if !isOne {
				continue
			}
			frames, _ := w.WalkStack(nil, tid)
			var found []dotnet.Call
			for i := range frames {
				if l := w.Codes().Lines(frames[i].Code); len(l) > 0 {
					found = append(found, dotnet.Call{Function: l[0].Name, File: l[0].File, Line: l[0].Line})
				}
			}
			compared, err := dotnet.Compare(name, calls, found)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, n := range compared {
				lines += n
			}
		}
		if lines < 36 {
			t.Errorf("%d lines of %d threads were compared", lines, len(traces))
		}
		p.Kill()
	}
}

// perfMap is what is in a file that tells perf where which code is.
type perfMap string

// at returns the method at an address as it is called in .NET's own traces, "" where there is none.
func (m perfMap) at(pc uint64) (name string) {
	for line := range strings.SplitSeq(string(m), "\n") { // the last one is there now
		var begin, size uint64
		if n, _ := fmt.Sscanf(line, "%v %x", &begin, &size); n != 2 || pc-begin >= size {
			continue
		}
		typ, method, isMethod := strings.Cut(line, "::")
		if name = ""; !isMethod {
			continue
		}
		typ = typ[strings.LastIndex(typ, "] ")+1:]           // behind the module
		typ, _, _ = strings.Cut(strings.TrimSpace(typ), "[") // what it is made of
		method, _, _ = strings.Cut(method, "(")
		method, _, _ = strings.Cut(method, "[")
		name = strings.TrimPrefix(strings.NewReplacer("/", ".", "+", ".").Replace(typ)+"."+method, "dynamicClass.") // which is no type
	}
	return name
}

// The program is interpreted in C++ in its first turn, by the baseline interpreter in the tenth, compiled in others. Of what is
// optimised then calls that were inlined lack, and lines.
func TestGJSAArch64(t *testing.T) {
	if !testenv.Long() {
		t.Skip("gjs under an emulator takes long: SWBPF_LONG is not set")
	}
	testenv.EachAArch64(t, func(t *testing.T, gjs testenv.Program) {
		for _, turn := range []string{"1", "10", "60", "1000"} {
			t.Run(turn, func(t *testing.T) {
				file, path := filepath.Join(t.TempDir(), "said"), filepath.Join(gjs.Root, gjs.Path)
				p, _ := runEmulated(t, gjs.Root, path, filepath.Join("testdata", "walk", "callsingjs.js"), turn, file)
				p.MakesCode = true
				var want []string // name and line
				for line := range strings.Lines(awaitSaid(t, file)) {
					name, at, ok := strings.Cut(line, "@")
					if f := strings.Split(strings.TrimSpace(at), ":"); ok && len(f) == 3 {
						want = append(want, name+":"+f[1])
					}
				}
				w := stopEmulated(t, p, path)
				frames, err := w.WalkStack(nil, procstate.DefaultThread)
				var got []string
				for i := range frames {
					for code := frames[i].Code; code != 0; code = w.Codes().Outer(code) {
						for _, l := range w.Codes().Lines(code) {
							if name := l.Name; strings.HasSuffix(l.File, "/callsingjs.js") {
								if strings.HasPrefix(name, "<module ") {
									name = ""
								}
								got = append(got, fmt.Sprintf("%s:%d", name, l.Line))
							}
						}
					}
				}
				if err != nil || len(want) < 5 || len(got) == 0 || turn != "1000" && !slices.Equal(got, want) {
					t.Errorf("%v: %q, it says %q", err, got, want)
				}
				for rest := want; len(got) > 0; got = got[1:] {
					name, line, _ := strings.Cut(got[0], ":")
					i := slices.IndexFunc(rest, func(w string) bool { return w == got[0] || line == "0" && strings.HasPrefix(w, name+":") })
					if i < 0 {
						t.Errorf("%s is not where the program says: %q", got[0], want)
						break
					}
					rest = rest[i+1:]
				}
			})
		}
	}, "usr/bin/gjs-console")
}

// A Chromium that is one process has its page and worker in it. It has to load them within minutes.
func TestChromiumAArch64(t *testing.T) {
	if !testenv.Long() {
		t.Skip("Chromium under an emulator takes long: SWBPF_LONG is not set")
	}
	found := false
	for _, root := range filepath.SplitList(os.Getenv("SWBPF_AARCH64_ROOTS")) {
		paths, _ := filepath.Glob(filepath.Join(root, "usr/lib/chromium/chromium-headless-shell"))
		for _, path := range paths {
			found = true
			for name, flags := range waysOfChromium {
				t.Run(strings.Trim(filepath.Join(root, name), "/"), func(t *testing.T) {
					page := serveWaits(t)
					args := append([]string{path, "--single-process", "--no-zygote", "--disable-crash-reporter"}, flagsOfChromium(t, flags)...)
					p, out := runEmulatedIn(t, root, []string{"HOME=" + t.TempDir()}, append(args, page.URL+"/#2000")...)
					p.MakesCode = true
					go io.Copy(io.Discard, out)
					want := page.await(t, 4*time.Minute)
					w := stopEmulated(t, p, path)
					threads, err := w.Threads()
					if err != nil {
						t.Fatal(err)
					}
					var stacks []swbpf.ThreadStack
					for _, tid := range threads {
						frames, err := w.WalkStack(nil, tid)
						stacks = append(stacks, swbpf.ThreadStack{Thread: procstate.Thread{TID: tid}, Walker: w, Frames: frames, Err: err})
					}
					page.check(t, name, stacks, want)
				})
			}
		}
	}
	if !found {
		t.Skip("no Chromium for AArch64: SWBPF_AARCH64_ROOTS has none")
	}
}
