package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refuseVariable has the test binary run a program from which something is kept: it
// is "hidepid", or an errno and the system calls that are to fail so.
const refuseVariable = "SWBPF_TEST_REFUSE"

// hidden says that the processes of others are not seen.
const hidden = "hidepid"

const nobody = 65534

var refusable = map[string]uint32{
	"bpf": unix.SYS_BPF, "perf_event_open": unix.SYS_PERF_EVENT_OPEN, "ptrace": unix.SYS_PTRACE,
	"process_vm_readv": unix.SYS_PROCESS_VM_READV, "linkat": unix.SYS_LINKAT,
}

// runRefused becomes the program. It returns only with an error.
func runRefused(what string, argv []string) error {
	os.Unsetenv(refuseVariable)
	runtime.LockOSThread()
	if what == hidden {
		if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		program, err := os.Open(argv[0]) // in a directory of root's
		if err != nil {
			return err
		}
		// Group 0 sees all.
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
			return err
		}
		return syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), argv, os.Environ())
	}
	names := strings.Fields(what)
	errno, err := strconv.Atoi(names[0])
	if err != nil {
		return err
	}
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // seccomp_data.nr
	for _, name := range names[1:] {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: refusable[name]},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return syscall.Exec(argv[0], argv, os.Environ())
}

// runWithout runs the command where something is refused.
func runWithout(t *testing.T, dir, refused string, attr *syscall.SysProcAttr, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	cmd := exec.Command(self, append([]string{swbpf(t)}, args...)...)
	if refused == "" {
		cmd = exec.Command(swbpf(t), args...)
	}
	cmd.Env = append(os.Environ(), refuseVariable+"="+refused)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, &out, &errOut, attr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() == 99 {
		t.Fatal(errOut.String())
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// errnos are those with which container runtimes refuse system calls.
var errnos = []unix.Errno{unix.EPERM, unix.ENOSYS}

// Without process_vm_readv stacks are as complete.
func TestWalkWithoutVMReadv(t *testing.T) {
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "5", "7", "quiet")
	for _, errno := range errnos {
		for _, flag := range []string{"--no-group", "--locals"} {
			out, stderr, status := runWithout(t, "", fmt.Sprintf("%d process_vm_readv", errno), nil, "walk", flag, strconv.Itoa(target.Process.Pid))
			if n := strings.Count(out, ": complete\n"); status != exitOK || n != 6 && flag == "--no-group" || n == 0 || strings.Contains(out, "incomplete") {
				t.Errorf("%v, %s: status %d, %d stacks complete: %s\n%s", errno, flag, status, n, stderr, out)
			}
		}
	}
}

// What is refused is named, and so is what refuses it.
func TestRefusedSystemCalls(t *testing.T) {
	needRecord(t)
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	pid := strconv.Itoa(target.Process.Pid)
	for _, c := range []struct {
		call, args string
		status     int
		want       []string
	}{
		{"bpf", "record -d 1", exitCannot, []string{"system call bpf", "seccomp profile"}},
		{"perf_event_open", "record -d 1", exitCannot, []string{"system call perf_event_open", "seccomp profile"}},
		{"perf_event_open", "record --wall -d 1", exitCannot, []string{"system call perf_event_open", "seccomp profile"}},
		{"ptrace", "record -- true", exitCannot, []string{"start true", "ptrace", "seccomp profile", "-p"}},
		{"ptrace", "walk " + pid, exitNotPermitted, []string{"may not be traced", "seccomp filter"}},
		{"ptrace", "walk --args " + pid, exitNotPermitted, []string{"may not be traced", "seccomp filter"}},
	} {
		for _, errno := range errnos {
			dir := t.TempDir()
			_, stderr, status := runWithout(t, dir, fmt.Sprintf("%d %s", errno, c.call), nil, strings.Fields(c.args)...)
			if status != c.status || strings.Contains(stderr, "paranoid") {
				t.Errorf("%s without %s (%v): status %d: %s", c.args, c.call, errno, status, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%s without %s (%v): no %q in: %s", c.args, c.call, errno, want, stderr)
				}
			}
			if got := entries(t, dir); got != "" {
				t.Errorf("%s: left %s", c.args, got)
			}
		}
	}
}

// Where a file without name cannot be given one, the profile is written all the
// same.
func TestWriteWithoutLinkat(t *testing.T) {
	dir := t.TempDir()
	in := filepath.Join(dir, "in.folded")
	if err := os.WriteFile(in, []byte("program;main;work 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces the first
		_, stderr, status := runWithout(t, dir, fmt.Sprintf("%d linkat", unix.EPERM), nil, "view", in, "-o", "out.folded")
		if status != exitOK {
			t.Errorf("status %d: %s", status, stderr)
		}
		wantText(t, filepath.Join(dir, "out.folded"), "program;main;work 3\n")
	}
	if got := entries(t, dir); got != "in.folded out.folded" {
		t.Errorf("left: %s", got)
	}
}

// The capabilities of a user namespace are none of the machine's.
func TestUserNamespace(t *testing.T) {
	needRecord(t)
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	root := []syscall.SysProcIDMap{{Size: 1}}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
	for args, code := range map[string]int{
		"record -o - --format folded -d 1":         exitCannot,
		"walk " + strconv.Itoa(target.Process.Pid): exitNotPermitted,
		"doctor": exitCannot,
	} {
		out, stderr, status := runWithout(t, "/", "", attr, strings.Fields(args)...)
		if status != code || !strings.Contains(out+stderr, "user namespace") {
			t.Errorf("%s: status %d: %s%s", args, status, out, stderr)
		}
	}
}

// A process that /proc hides is not said to be none.
func TestHiddenProcesses(t *testing.T) {
	needRecord(t)
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	attr := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	_, stderr, status := runWithout(t, "/", hidden, attr, "walk", strconv.Itoa(target.Process.Pid))
	if status != exitNotPermitted || !strings.Contains(stderr, "hidepid") {
		t.Errorf("status %d: %s", status, stderr)
	}
	_, stderr, status = runWithout(t, "/", hidden, attr, "walk", "4194305")
	if status != exitNoProcess {
		t.Errorf("status %d: %s", status, stderr)
	}
	out, _, _ := runWithout(t, "/", hidden, attr, "doctor")
	if !strings.Contains(out, "the others hidden") {
		t.Errorf("doctor: %s", out)
	}
}

// A thread that is named twice is walked once.
func TestWalkThreadTwice(t *testing.T) {
	target := startWalkTarget(t, "threads.c", []string{"-O1", "-g"}, "1", "1", "quiet")
	pid := strconv.Itoa(target.Process.Pid)
	for _, flag := range []string{"--symbols=yes", "--locals"} {
		out, stderr, status := runWalk(t, pid, flag, "--tid", pid, "--tid", pid+","+pid)
		if n := strings.Count(out, "\nthread "+pid); status != exitOK || stderr != "" || n != 1 {
			t.Errorf("%s: status %d, %d stacks: %s\n%s", flag, status, n, stderr, out)
		}
	}
}
