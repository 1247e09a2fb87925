package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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
