package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
)

// runDoctor runs doctor as a user with capabilities.
func runDoctor(t *testing.T, uid uint32, caps ...uintptr) (*diagnosis, int) {
	t.Helper()
	cmd := exec.Command(forOthers(t), "doctor", "--json")
	cmd.Dir = filepath.Dir(cmd.Path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, AmbientCaps: caps}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var d diagnosis
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &d, cmd.ProcessState.ExitCode()
}

// TestDoctorStatus checks that the exit status tells whether recording works,
// for users of different rights.
func TestDoctorStatus(t *testing.T) {
	t.Parallel()
	needRecord(t)
	for _, tc := range []struct {
		name string
		uid  uint32
		caps []uintptr
		want int
	}{
		{"root", 0, nil, exitOK},
		{"nobody", 65534, nil, exitCannot},
		{"two capabilities", 65534, []uintptr{unix.CAP_BPF, unix.CAP_PERFMON}, exitOK},
		{"one capability", 65534, []uintptr{unix.CAP_BPF}, exitCannot},
	} {
		d, status := runDoctor(t, tc.uid, tc.caps...)
		if status != tc.want || d.Recording.Works != (tc.want == exitOK) {
			t.Errorf("%s: status %d, recording %+v", tc.name, status, d.Recording)
		}
		if d.Recording.Works == (d.Recording.Samples == 0) || d.Recording.Works != (d.Recording.Error == "") {
			t.Errorf("%s: recording %+v", tc.name, d.Recording)
		}
		if len(d.Groups) != 4 || d.UID != int(tc.uid) {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
}

// TestDoctorText checks the layout: no line is wider than a terminal unless a
// word is, and every finding has its line.
func TestDoctorText(t *testing.T) {
	d := &diagnosis{
		Version: "v1", Arch: "amd64", CPUs: 2,
		Groups: []diagnosisGroup{{"system", []loader.Finding{
			{Name: "kernel", Found: "6.1.0"},
			{Name: "long", Level: loader.Missing, Found: strings.Repeat("word ", 40), Without: strings.Repeat("so ", 60), Remedy: "get it"},
		}}},
		Recording: diagnosisOutcome{Error: "no"},
	}
	var b bytes.Buffer
	if err := d.writeText(&b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > doctorWidth+1 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	for _, want := range []string{"  ok       kernel               6.1.0\n", "  missing  long                 word", "without it: so so", "remedy: get it", "does not work: no\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestDoctorMapFiles compares what doctor says of files that are mapped with whether the
// same user can open those of a process of root.
func TestDoctorMapFiles(t *testing.T) {
	t.Parallel()
	needRecord(t)
	mine, err := filepath.Glob(fmt.Sprintf("/proc/%d/map_files/*", os.Getpid()))
	if err != nil || len(mine) == 0 {
		t.Fatal(err, mine)
	}
	found := map[bool]int{}
	some := [][]uintptr{ // each without one
		{unix.CAP_CHECKPOINT_RESTORE, unix.CAP_SYS_PTRACE},
		{unix.CAP_CHECKPOINT_RESTORE, unix.CAP_DAC_READ_SEARCH},
		{unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH},
		{unix.CAP_CHECKPOINT_RESTORE, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH},
	}
	if testenv.Long() {
		some = append(some, nil, []uintptr{unix.CAP_CHECKPOINT_RESTORE})
	}
	for _, caps := range some {
		caps = append(caps, unix.CAP_BPF, unix.CAP_PERFMON)
		read := exec.Command("head", "-c", "1", mine[0])
		read.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
		can := read.Run() == nil
		d, _ := runDoctor(t, 65534, caps...)
		for _, g := range d.Groups {
			for _, f := range g.Findings {
				if f.Name != "/proc/PID/map_files" {
					continue
				}
				found[can]++
				if can != (f.Level == loader.OK) {
					t.Errorf("capabilities %v: %+v, but it can be opened: %v", caps, f, can)
				}
			}
		}
	}
	if found[true] == 0 || found[false] == 0 {
		t.Errorf("it could be opened so often: %v", found)
	}
}
