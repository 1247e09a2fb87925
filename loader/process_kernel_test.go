package loader

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// Programs that live a few milliseconds, each from an exec of a fork, some
// from a chain of three execs.
func TestShortLivedProcesses(t *testing.T) {
	f := follow(t)
	for name, script := range map[string]string{
		"loop":  `i=0; while [ $i -lt 60 ]; do sh -c 'echo pid $$; exec cat /proc/self/maps'; i=$((i+1)); done`,
		"chain": `i=0; while [ $i -lt 20 ]; do sh -c 'exec env A=1 sh -c "exec nice -n 0 sh -c \"echo pid \\\$\\\$; exec cat /proc/self/maps\""'; i=$((i+1)); done`,
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command("sh", "-c", script).Output()
			if err != nil {
				t.Fatal(err)
			}
			dumps := make(map[int32][]procstate.MapsEntry)
			for _, part := range strings.Split(string(out), "pid ")[1:] {
				pid, entries := parseDump(t, []byte("pid "+part))
				dumps[pid] = entries
			}
			if len(dumps) < 20 {
				t.Fatalf("%d processes ran", len(dumps))
			}
			f.t = t
			if n := f.playDumps(dumps); n != len(dumps) {
				t.Errorf("%d of %d processes were seen to end", n, len(dumps))
			}
		})
	}
}

// Each way for a program to come to life and to lose its file.
func TestProgramsOfEveryOrigin(t *testing.T) {
	victim := buildVictim(t)
	other := buildVictim(t, "-Wl,--build-id=0x1122334455667788")
	dir := t.TempDir()
	copyTo := func(name string) string {
		path := filepath.Join(dir, name)
		testenv.Run(t, exec.Command("cp", victim, path))
		return path
	}
	mountScript := fmt.Sprintf(`mount -t tmpfs none /mnt && cp %s /mnt/only-here && exec /mnt/only-here wait`, victim)
	tests := []struct {
		name string
		cmd  []string
	}{
		{"thread that execs", []string{victim, "threadexec"}},
		{"initial thread ends first", []string{victim, "outlive"}},
		{"memfd", []string{victim, "memfd"}},
		{"name with spaces and a line end", []string{copyTo(" a b\nc "), "dump"}},
		{"mount namespace", []string{"unshare", "-m", "sh", "-c", mountScript}},
		{"burst of mappings", []string{victim, "burst", "10000"}},
		{"burst of forks", []string{victim, "forks", "500"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := follow(t)
			w := start(t, test.cmd[0], test.cmd[1:]...)
			f.procs.Collect() // of some the file is only to be had while they live
			w.stop()
			if f.playDumps(map[int32][]procstate.MapsEntry{w.pid: w.entries}) == 0 {
				t.Error("its end was not seen")
			}
		})
	}

	t.Run("deleted before bootstrap", func(t *testing.T) {
		path := copyTo("deleted")
		w := start(t, path, "unlink", path)
		f := follow(t)
		entries, err := procstate.ReadMaps(fmt.Sprintf("/proc/%d/maps", w.pid), true)
		if err != nil || !strings.HasSuffix(entries[0].Path, " (deleted)") {
			t.Fatalf("not deleted: %+v, %v", entries, err)
		}
		compareMappings(t, f.procs.Process(w.pid), entries)
	})

	t.Run("replaced by a namesake", func(t *testing.T) {
		path := copyTo("replaced")
		older := start(t, path, "wait")
		for range 2 { // the second time the inode number is likely used again
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			testenv.Run(t, exec.Command("cp", other, path))
		}
		f := follow(t)
		newer := start(t, path, "wait")
		f.play(nil)
		for _, test := range []struct {
			pid  int32
			from string
		}{{older.pid, victim}, {newer.pid, other}} {
			im := f.procs.Process(test.pid).Space.Mappings()[0].Image
			if im == nil {
				t.Fatalf("no image: %v", f.procs.Process(test.pid).Space.Mappings()[0].ImageErr)
			}
			if want := readBuildID(t, test.from); im.BuildID() != want {
				t.Errorf("build ID %s, want %s", im.BuildID(), want)
			}
		}
	})

	t.Run("32 bits", func(t *testing.T) {
		testenv.Needs32Bit(t)
		victim32 := buildVictim(t, "-m32", "-idirafter", "/usr/include/x86_64-linux-gnu")
		f := follow(t)
		w := start(t, victim32, "wait")
		f.play(nil)
		p := f.procs.Process(w.pid)
		compareMappings(t, p, w.entries)
		if p.Arch != procstate.I386 {
			t.Errorf("architecture %s", p.Arch.Name)
		}
		// A process that has ended is served from memory.
		w.stop()
		pid, entries := run(t, victim32, "dump")
		if f.playDumps(map[int32][]procstate.MapsEntry{pid: entries}) == 0 {
			t.Error("its end was not seen")
		}
		for _, m := range p.Space.Mappings() {
			if m.Path == "[vdso]" && m.Image.Arch() != procstate.I386 {
				t.Errorf("vdso of architecture %s", m.Image.Arch().Name)
			}
		}
	})
}

func readBuildID(t *testing.T, path string) string {
	t.Helper()
	testenv.Needs(t, "readelf")
	out, err := exec.Command("readelf", "-n", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, id, ok := strings.Cut(string(out), "Build ID: ")
	if !ok {
		t.Fatalf("readelf found no build ID in %s", path)
	}
	return strings.Fields(id)[0]
}

// libraries of the distribution for the storm of dlopen.
func libraries(t *testing.T) []string {
	t.Helper()
	var libs []string
	for _, pattern := range []string{"/usr/lib/*/libm.so.6", "/usr/lib/*/libz.so.1", "/usr/lib/*/libstdc++.so.6",
		"/usr/lib/*/liblzma.so.5", "/usr/lib/*/libcrypt.so.1", "/usr/lib/*/libresolv.so.2"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		libs = append(libs, found[:min(len(found), 1)]...)
	}
	if len(libs) < 3 {
		t.Fatalf("only %d libraries to load", len(libs))
	}
	return libs
}

// The table after a storm of dlopen, dlclose, mmap and mprotect is compared
// with the kernel's: all that is executable must be known; what is known
// beyond that must be where nothing executable is.
func TestMappingStorm(t *testing.T) {
	victim := buildVictim(t)
	f := follow(t)
	w := start(t, victim, append([]string{"storm"}, libraries(t)...)...)
	f.play(nil)
	p := f.procs.Process(w.pid)
	compareMappings(t, p, w.entries)
	if len(w.entries) < 30 {
		t.Errorf("the storm left only %d mappings", len(w.entries))
	}

	// Who comes later finds the same in /proc.
	late := follow(t)
	compareMappings(t, late.procs.Process(w.pid), w.entries)
}

// Text that was copied to anonymous memory in place is still known for what
// it is, both from events and from /proc.
func TestTextOnHugePages(t *testing.T) {
	victim := buildVictim(t)
	early := follow(t)
	w := start(t, victim, "hugetext")
	early.play(nil)
	late := follow(t)
	for name, f := range map[string]*follower{"events": early, "proc": late} {
		var found bool
		for _, e := range w.entries {
			if e.Path == "[vsyscall]" {
				continue
			}
			m := f.procs.Process(w.pid).Space.MappingAt(e.Start)
			if m == nil {
				t.Fatalf("%s: nothing at %#x", name, e.Start)
			}
			if e.Path != "" {
				continue
			}
			found = true
			program := f.procs.Process(w.pid).Space.Mappings()[0]
			if m.Image == nil || m.Image != program.Image || m.Bias != program.Bias {
				t.Errorf("%s: %+v is not recognised as text of %+v", name, *m, *program)
			}
		}
		if !found {
			t.Error("no text was copied")
		}
	}
}

// The kernel does not report moved code; it is found when it is looked for.
func TestRefresh(t *testing.T) {
	victim := buildVictim(t)
	f := follow(t)
	w := start(t, victim, "move")
	f.play(nil)
	p := f.procs.Process(w.pid)
	unknown := 0
	for _, e := range w.entries {
		if e.Path == victim && p.Space.MappingAt(e.Start) == nil {
			unknown++
		}
	}
	if unknown != 1 {
		t.Fatalf("%d mappings of the program are not known", unknown)
	}
	if !f.procs.Refresh(p) || f.procs.Refresh(p) {
		t.Error("Refresh found nothing, or something twice")
	}
	compareMappings(t, p, w.entries)
}

// An exec in another PID namespace is seen under our numbers.
func TestProcessInPIDNamespace(t *testing.T) {
	victim, name := uniqueVictim(t)
	f := follow(t)
	inner, entries := run(t, "unshare", "--pid", "--fork", "--mount-proc", victim, "dump")
	if inner != 1 {
		t.Fatalf("the victim was process %d of its namespace", inner)
	}
	seen := 0
	f.play(func(p *Process) {
		if p.Comm == name {
			compareMappings(t, p, entries)
			seen++
		}
	})
	if seen != 1 {
		t.Errorf("%d processes seen", seen)
	}
}

// Inside a PID namespace, processes have the namespace's numbers, and those
// outside are left out.
func TestSidebandInsidePIDNamespace(t *testing.T) {
	if os.Getenv("SWBPF_TEST_INSIDE") == "" {
		f := follow(t) // tells whether we may
		f.cancel()
		cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", os.Args[0],
			"-test.run=^TestSidebandInsidePIDNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), "SWBPF_TEST_INSIDE="+buildVictim(t))
		out := make(chan []byte)
		go func() {
			b, _ := cmd.CombinedOutput()
			out <- b
		}()
		for {
			select {
			case b := <-out:
				if !strings.Contains(string(b), "--- PASS") {
					t.Errorf("inside: %s", b)
				}
				return
			default:
				exec.Command("true").Run() // outside
			}
		}
	}
	f := follow(t)
	pid, entries := run(t, os.Getenv("SWBPF_TEST_INSIDE"), "dump")
	if pid > 100 {
		t.Fatalf("process %d is not in a new namespace", pid)
	}
	if f.playDumps(map[int32][]procstate.MapsEntry{pid: entries}) != 1 {
		t.Error("the victim was not seen")
	}
	if len(f.procs.procs) > 10 {
		t.Errorf("%d processes in a namespace of few", len(f.procs.procs))
	}
}

// With process IDs given, only those and what they fork are followed.
func TestFollowSomeProcesses(t *testing.T) {
	victim := buildVictim(t)
	shell := exec.Command("sh", "-c", "read go; "+victim+" dump; exec sh -c '"+victim+" dump'")
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	shell.Stdout = &out
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	f := follow(t, int32(shell.Process.Pid))
	stranger, _ := run(t, victim, "dump")
	fmt.Fprintln(stdin, "go")
	if err := shell.Wait(); err != nil {
		t.Fatal(err)
	}
	dumps := make(map[int32][]procstate.MapsEntry)
	for _, part := range strings.Split(out.String(), "pid ")[1:] {
		pid, entries := parseDump(t, []byte("pid "+part))
		dumps[pid] = entries
	}
	if n := f.playDumps(dumps); n != 2 {
		t.Errorf("%d of 2 children seen", n)
	}
	if f.procs.Process(stranger) != nil {
		t.Error("another's process is followed")
	}
}

// Processes that come and go leave nothing behind.
func TestExpire(t *testing.T) {
	victim, name := uniqueVictim(t)
	f := follow(t)
	victims := func() (n int) {
		for _, p := range f.procs.procs {
			if p.Comm == name {
				n++
			}
		}
		return n
	}
	pid, _ := run(t, victim, "forks", "300")
	f.play(nil)
	if n := victims(); n != 301 {
		t.Fatalf("%d processes, want 301", n)
	}
	if f.procs.Process(pid) == nil {
		t.Error("a process is gone before its time")
	}
	f.procs.Expire(f.procs.now + 1)
	if n := victims(); n != 0 {
		t.Errorf("%d processes remain", n)
	}
	if f.procs.Process(pid) != nil {
		t.Error("a process that exited is still there")
	}
}

// A ring that is too small loses records; the loss is counted, and made good
// from /proc.
func TestLostRecords(t *testing.T) {
	victim := buildVictim(t)
	sb, err := OpenSideband(SidebandConfig{RingBytes: 4096, WakeBytes: 1 << 20})
	if err != nil {
		if os.Geteuid() != 0 {
			testenv.Lacks(t, "%v", err)
		}
		t.Fatal(err)
	}
	defer sb.Close()
	images := procstate.NewImages(0)
	defer images.Close()
	p := NewProcesses(ProcessesConfig{Sideband: sb, Images: images})
	// All on one CPU: each has a ring of its own.
	cpu := strconv.Itoa(allowedCPU(t))
	run(t, "taskset", "-c", cpu, victim, "burst", "300")
	w := start(t, "taskset", "-c", cpu, victim, "wait")
	p.Collect()
	// The record of the loss is written once there is room again.
	if err := exec.Command("taskset", "-c", cpu, "true").Run(); err != nil {
		t.Fatal(err)
	}
	upTo := p.Collect()
	p.Advance(upTo + 2*collectSlack)
	if s := sb.Stats(); s.Lost < 200 || s.Malformed != 0 {
		t.Errorf("%+v", s)
	}
	if p.resync == 0 {
		t.Error("the table was not read anew")
	}
	compareMappings(t, p.Process(w.pid), w.entries)
}

// sidebandRestricted reports whether the events of all processes are for those
// with privileges alone, as they are by default.
func sidebandRestricted(t *testing.T) bool {
	t.Helper()
	level, ok := readInt("/proc/sys/kernel/perf_event_paranoid")
	if !ok {
		t.Fatal("this kernel has no perf events")
	}
	return level > 0
}

func TestSidebandPermission(t *testing.T) {
	if os.Getenv("SWBPF_TEST_INSIDE") != "" {
		sb, err := OpenSideband(SidebandConfig{})
		var missing *MissingError
		if errors.As(err, &missing) != sidebandRestricted(t) {
			t.Errorf("error %v", err)
		}
		if err == nil {
			sb.Close()
		}
		return
	}
	if os.Geteuid() != 0 {
		testenv.Lacks(t, "needs root, to lay it down")
	}
	bin := filepath.Join(t.TempDir(), "test")
	testenv.Run(t, exec.Command("cp", os.Args[0], bin))
	cmd := exec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", bin, "-test.run=^TestSidebandPermission$", "-test.v")
	cmd.Env = append(os.Environ(), "SWBPF_TEST_INSIDE=1")
	if b, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(b), "--- PASS") {
		t.Errorf("without capabilities: %v\n%s", err, b)
	}
}
