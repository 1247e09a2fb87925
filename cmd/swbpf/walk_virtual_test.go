package main

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// startVirtual starts VirtualStacks.java with a Java that has virtual threads, and waits until they wait.
func startVirtual(t *testing.T, java testenv.Program, flags ...string) (pid string) {
	t.Helper()
	classes := testenv.CompileJava(t, java, walkSource("VirtualStacks.java"))
	command := java.Command(append(flags, "-cp", classes, "VirtualStacks", "500")...)
	cmd := exec.Command(command[0], command[1:]...)
	_, stdout := testenv.Start(t, cmd)
	out := bufio.NewReader(stdout)
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Skipf("no virtual threads here: %v", err)
		}
		if line == "done\n" {
			return strconv.Itoa(cmd.Process.Pid)
		}
	}
}

func TestWalkVirtual(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("Java is known on amd64 alone")
	}
	found := false
	testenv.SomeJava(t, func(t *testing.T, java testenv.Program) {
		pid := startVirtual(t, java, "-Xint")
		found = true
		out, stderr, code := runWalk(t, pid)
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		for _, want := range []string{
			`^process \d+  \S+java  \(amd64, \d+ threads, 60 virtual threads, stopped for `,
			`\nthread \d+ "ForkJoinPool-\S*" running, virtual thread \d+ "kind-8": complete\n  #0 .* VirtualStacks\.spins +VirtualStacks\.java:\d+`,
			`\nvirtual thread \d+ "kind-2" \[parked for java\.util\.concurrent\.locks\.ReentrantLock\$NonfairSync, which thread \d+ has\]: complete\n(  #.*\n)*  #\d+ .* VirtualStacks\.first +VirtualStacks\.java:\d+  \[interpreted\]\n(  #.*\n)*  #\d+ .* jdk\.internal\.vm\.Continuation\.enter .*\n(\n|$)`,
			`\nvirtual thread \d+ "kind-1" \[timed parked\]: complete\n(  #.*\n)*  #\d+ .* VirtualStacks\.sleep +VirtualStacks\.java:\d+`,
		} {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("no %s", want)
			}
		}
		if t.Failed() {
			t.Log(out)
		}
		testWalkVirtualJSON(t, pid)
		out, _, code = runWalk(t, "--virtual-threads=no", pid)
		if code != exitOK || strings.Contains(out, "irtual thread ") || !strings.Contains(out, "VirtualStacks.first") {
			t.Errorf("--virtual-threads=no: exit %d\n%s", code, out)
		}
		if _, stderr, code := runWalk(t, "--virtual-threads=some", pid); code != exitCannot || !strings.Contains(stderr, "yes or no") {
			t.Errorf("--virtual-threads=some: exit %d, %s", code, stderr)
		}
	})
	if !found {
		t.Skip("no Java with virtual threads")
	}
}

func testWalkVirtualJSON(t *testing.T, pid string) {
	out, stderr, code := runWalk(t, "--json", "--no-group", pid)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var p jsonProcess
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	mounted, owners, want := 0, 0, 0
	for _, th := range p.Threads {
		if th.Virtual != 0 {
			mounted++
			if th.VirtualName != "kind-8" {
				t.Errorf("%q runs", th.VirtualName)
			}
		}
	}
	for _, v := range p.VirtualThreads {
		if len(v.IDs) != 1 || len(v.Names) != 1 || !v.Complete || v.State == "" || !slices.ContainsFunc(v.Frames, func(f jsonFrame) bool { return f.Function == "VirtualStacks.once" }) {
			t.Errorf("%+v", v)
		}
		if v.Names[0] == "kind-2" || v.State == "blocked" {
			want++
		}
		if v.OwnerTID != 0 {
			owners++
			if v.Owner == 0 || v.Names[0] != "kind-2" && v.State != "blocked" {
				t.Errorf("%s is owned by %d, %d", v.Names[0], v.Owner, v.OwnerTID)
			}
		}
	}
	if len(p.VirtualThreads) != 59 || mounted != 1 || owners != want || want < 6 || p.VirtualUnread != 0 || p.VirtualCut {
		t.Errorf("%d virtual threads, %d on threads, %d wait for a lock; %d not read", len(p.VirtualThreads), mounted, owners, p.VirtualUnread)
	}
}
