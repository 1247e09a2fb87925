package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dotnetprogram "github.com/swbpf/swbpf/internal/dotnet"
	"github.com/swbpf/swbpf/internal/testenv"
)

// dotnet returns a program of .NET with its own virtual machine, which reads and writes files in the format
// SARIF. SWBPF_DOTNET names it.
func dotnet(t *testing.T) string {
	t.Helper()
	program := os.Getenv("SWBPF_DOTNET")
	if program == "" {
		t.Skip("no program of .NET: SWBPF_DOTNET names none")
	}
	t.Setenv("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1") // it needs no libicu then
	return program
}

// Methods of .NET have their names, be they compiled ahead or while the program runs, and all stacks are complete. That
// is of a program that goes on: what one runs for the first time before it ends can be asked no more.
func TestRecordDotnet(t *testing.T) {
	program := dotnet(t)
	dir := t.TempDir()
	var results []string
	for i := range 60_000 {
		results = append(results, fmt.Sprintf(`{"ruleId":"R%d","message":{"text":"thing %d"},"locations":[{"physicalLocation":{"artifactLocation":{"uri":"f%d.c"},"region":{"startLine":%d}}}]}`, i%50, i, i%300, i%1000+1))
	}
	file := filepath.Join(dir, "in.sarif")
	text := `{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"t"}},"results":[` + strings.Join(results, ",") + `]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	swbpf(t) // is built before
	cmd := exec.Command(program, "rewrite", file, "--output", filepath.Join(dir, "out.sarif"))
	testenv.Start(t, cmd)
	r := runRecord(t, "-F", "1997", "--no-kernel", "-p", strconv.Itoa(cmd.Process.Pid), "-d", "2")
	if r.exit != 0 {
		t.Fatalf("exit status %d\n%s", r.exit, r.stderr)
	}
	wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
	const main = "Microsoft.CodeAnalysis.Sarif.Multitool.Program.Main_[j]"
	var inMain, nameless uint64
	seen := map[string]uint64{}
	for stack, count := range foldedStacks(t, r.folded) {
		frames := strings.Split(stack, ";")
		i := slices.Index(frames, main)
		if i < 0 {
			continue
		}
		inMain += count
		for n, f := range frames[i:] {
			seen[f] += count
			if n < len(frames[i:])-1 && strings.HasPrefix(f, "memfd:") { // what calls is no stub
				nameless += count
			}
		}
		if j := slices.Index(frames, "Newtonsoft.Json.JsonSerializer.SerializeInternal_[j]"); j >= 0 && frames[j-1] != "Newtonsoft.Json.JsonSerializer.Serialize_[j]" {
			t.Errorf("SerializeInternal is called by %s: %s", frames[j-1], stack)
		}
	}
	wantShare(t, "in main", inMain, r.stats.UserSamples, 50)
	if nameless > 0 {
		t.Errorf("%d samples have code without a name\n%.3000s", nameless, r.folded)
	}
	for _, want := range []string{
		"Microsoft.CodeAnalysis.Sarif.Multitool.RewriteCommand.Run_[j]",
		"Newtonsoft.Json.Serialization.JsonSerializerInternalReader.PopulateObject_[j]",
		"System.Collections.Generic.Dictionary`2.FindValue_[j]", // of the libraries, which were compiled ahead
	} {
		if seen[want] == 0 {
			t.Errorf("%s is in no sample", want)
		}
	}
}

// What a program of .NET waits in shows with the methods that have called.
func TestWalkDotnet(t *testing.T) {
	program := dotnet(t)
	fifo := filepath.Join(t.TempDir(), "in.sarif")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "query", fifo, "-e", "ruleId == 'R'")
	testenv.Start(t, cmd)
	calls := []string{"Microsoft.CodeAnalysis.Sarif.Multitool.QueryCommand.Run+", "Microsoft.CodeAnalysis.Sarif.Multitool.Program.Main+"}
	var out string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		out, _, _ = runSwbpf(t, "", "walk", fmt.Sprint(cmd.Process.Pid))
		_, threads, _ := strings.Cut(out, "\n\nthread ")
		thread, _, _ := strings.Cut(threads, "\n\nthread ")
		rest, found := thread, strings.Contains(thread, "openat(") && strings.Contains(thread, ": complete")
		for _, call := range calls {
			_, after, ok := strings.Cut(rest, call)
			rest, found = after, found && ok
		}
		if found && strings.Contains(thread, "System.IO.") {
			return
		}
	}
	t.Errorf("%s do not call each other\n%s", calls, out)
}

// Frames of .NET have the lines that .NET itself tells of: of code in each tier and compiled ahead, with the PDB beside the
// assembly or within it. What handles exceptions is a frame of its own, which .NET leaves out.
func TestWalkDotnetLines(t *testing.T) {
	program := dotnet(t)
	for _, test := range []struct {
		name, turns string
		env         []string
		isEmbedded  bool
	}{
		{"tiers", "1", nil, false}, {"told of inlined calls", "1", []string{"DOTNET_RichDebugInfo=1"}, false}, {"optimised", "1", []string{"DOTNET_TieredCompilation=0"}, true},
		{"optimised later", "30000", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			contents := dotnetprogram.DLL
			if test.isEmbedded {
				contents = dotnetprogram.Embedded
			} else {
				writeFile(t, filepath.Join(dir, "Lines.pdb"), dotnetprogram.PDB)
			}
			writeFile(t, filepath.Join(dir, "Lines.dll"), contents)
			walkDotnet(t, exec.Command(program, "--version"), test.turns, append(test.env, "DOTNET_STARTUP_HOOKS="+filepath.Join(dir, "Lines.dll")))
		})
	}
	t.Run("thrown", func(t *testing.T) { // of the program itself, which C#'s own compiler has made
		dir := t.TempDir()
		malformed := filepath.Join(dir, "in.sarif")
		writeFile(t, malformed, []byte(`{"version":"2.1.0","runs":[{"tool":{"driver":{"name":1,"rules":[{"id":[]}]}}}]}`))
		writeFile(t, filepath.Join(dir, "Lines.dll"), dotnetprogram.Embedded)
		for _, file := range []string{malformed, "/nonexistent"} {
			for _, tiered := range []string{"0", "1"} {
				told := walkDotnet(t, exec.Command(program, "query", file, "-e", "ruleId == 'R'"), "", []string{
					"DOTNET_STARTUP_HOOKS=" + filepath.Join(dir, "Lines.dll"), "LINES_THROWN=1", "DOTNET_TieredCompilation=" + tiered,
				})
				n := 0
				for _, lines := range told {
					n += lines
				}
				if n < 4 {
					t.Errorf("%d lines were compared: %v", n, told)
				}
			}
		}
	})
	t.Run("ahead", func(t *testing.T) { // the library of .NET, of which IL is told
		text, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		const library = "System.Private.CoreLib.dll"
		dir := t.TempDir()
		corelib, err := dotnetprogram.File(text, library)
		if err == nil {
			err = dotnetprogram.WriteOffsets(corelib, dir)
		}
		if err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, filepath.Base(program))
		writeFile(t, program, text)
		writeFile(t, filepath.Join(dir, "Lines.dll"), dotnetprogram.Embedded)
		told := walkDotnet(t, exec.Command(program, "--version"), "1", []string{"DOTNET_STARTUP_HOOKS=" + filepath.Join(dir, "Lines.dll"), "DOTNET_TieredCompilation=0", "LINES_LIBRARY=1"})
		if told[dotnetprogram.OffsetsFile] < 10 {
			t.Errorf("lines of %s were compared %d times", library, told[dotnetprogram.OffsetsFile])
		}
	})
}

// From .NET 10 on lines are stored otherwise. SWBPF_DOTNET10 names a program in one file, azmcp, whose own part is replaced.
func TestWalkDotnet10Lines(t *testing.T) {
	program := os.Getenv("SWBPF_DOTNET10")
	if program == "" {
		t.Skip("no program of .NET 10: SWBPF_DOTNET10 names none")
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if text, err = dotnetprogram.Replaced(text, filepath.Base(program)+".dll", dotnetprogram.DLL); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, filepath.Base(program))
	writeFile(t, program, text)
	writeFile(t, filepath.Join(dir, "Lines.pdb"), dotnetprogram.PDB)
	for _, test := range testenv.Some([]struct {
		name, turns string
		env         []string
	}{
		{"tiers", "1", nil}, {"told of inlined calls", "1", []string{"DOTNET_RichDebugInfo=1"}}, {"optimised", "1", []string{"DOTNET_TieredCompilation=0"}}, {"optimised later", "30000", nil},
	}) {
		t.Run(test.name, func(t *testing.T) { walkDotnet(t, exec.Command(program), test.turns, test.env) })
	}
}

// walkDotnet runs a program that runs that of package dotnet, so many turns, or with none is stopped by it where it throws, and
// compares the lines of each thread. It returns how many were compared of each file.
func walkDotnet(t *testing.T, cmd *exec.Cmd, turns string, env []string) (told map[string]int) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "traces")
	cmd.Env = append(append(os.Environ(), "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1", "LINES_OUT="+out, "LINES_TURNS="+turns), env...)
	testenv.Start(t, cmd)
	var text []byte
	isThrown := turns == ""
	isReady := func() bool {
		return strings.HasSuffix(string(text), "ready\n") || isThrown && strings.HasSuffix(string(text), "\n\n")
	}
	for deadline := time.Now().Add(time.Minute); !isReady(); time.Sleep(50 * time.Millisecond) {
		if text, _ = os.ReadFile(out); time.Now().After(deadline) {
			t.Fatalf("not ready: %s", text)
		}
	}
	walk := func() (threads []jsonThread) {
		walked, stderr, status := runSwbpf(t, "", "walk", "--json", fmt.Sprint(cmd.Process.Pid))
		var process struct{ Threads []jsonThread }
		if err := json.Unmarshal([]byte(walked), &process); err != nil || status != 0 {
			t.Fatalf("%v, status %d: %s", err, status, stderr)
		}
		return process.Threads
	}
	source := strings.Split(dotnetprogram.Source, "\n")
	told = map[string]int{}
	traces := dotnetprogram.Traces(string(text))
	for _, thread := range walk() {
		if int(thread.TID) == cmd.Process.Pid {
			thread.Name = "main"
		}
		calls, isOne := traces[thread.Name]
		if !isOne {
			continue
		}
		var found []dotnetprogram.Call
		for _, f := range thread.Frames {
			found = append(found, dotnetprogram.Call{Function: f.Function, File: f.File, Line: f.Line})
		}
		lines, err := dotnetprogram.Compare(thread.Name, calls, found)
		if err != nil {
			t.Errorf("%s: %v", thread.Name, err)
		}
		for file, n := range lines {
			told[file] += n
		}
	}
	if isThrown {
		return told
	}
	const threads = 12
	if len(traces) < threads || told[dotnetprogram.SourceFile] < 3*threads {
		t.Errorf("of %d threads lines of %v were compared", len(traces), told)
	}
	seen := map[int]bool{} // lines of what goes on
	for deadline := time.Now().Add(time.Minute); len(seen) < 2; {
		leaf := walk()[0].Frames[0]
		if time.Now().After(deadline) {
			t.Errorf("the main thread was in lines %v, and is in %s", seen, leaf.Function)
			break
		}
		if leaf.Function != "Lines.Busy" {
			continue
		}
		if seen[leaf.Line] = true; leaf.Line == 0 || !strings.Contains(source[leaf.Line-1], "// busy") {
			t.Errorf("the main thread is in %s:%d", leaf.File, leaf.Line)
		}
	}
	return told
}

// writeFile writes a file that may be run.
func writeFile(t *testing.T, name string, contents []byte) {
	t.Helper()
	if err := os.WriteFile(name, contents, 0o700); err != nil {
		t.Fatal(err)
	}
}
