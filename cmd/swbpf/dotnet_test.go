package main

import (
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
