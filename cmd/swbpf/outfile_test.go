package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func writeOut(t *testing.T, path, text string) {
	t.Helper()
	o, err := newOutFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer o.discard()
	if _, err := io.WriteString(o, text); err != nil {
		t.Fatal(err)
	}
	if err := o.commit(); err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%s: %q, %v; want %q", filepath.Base(path), b, err, want)
	}
}

// A file has no name before it is complete, replaces an old one then, and
// symbolic links stay what they are.
func TestOutFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p")
	o, err := newOutFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(o, "new"); err != nil {
		t.Fatal(err)
	}
	if o.named { // the file system has no files without names
		t.Logf("in %s files have names", dir)
	} else if got := entries(t, dir); got != "" {
		t.Errorf("while it is written there is %s", got)
	}
	if err := o.commit(); err != nil {
		t.Fatal(err)
	}
	wantText(t, path, "new")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o644&^umask() {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	writeOut(t, path, "newer")
	wantText(t, path, "newer")

	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writeOut(t, path, "secret")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("one that others may not read becomes %v, %v", st.Mode(), err)
	}

	os.Symlink("p", filepath.Join(dir, "link"))
	os.Symlink("link", filepath.Join(dir, "link2"))
	os.Symlink("absent", filepath.Join(dir, "dangling"))
	writeOut(t, filepath.Join(dir, "link2"), "by link")
	writeOut(t, filepath.Join(dir, "dangling"), "by dangling link")
	wantText(t, path, "by link")
	wantText(t, filepath.Join(dir, "absent"), "by dangling link")

	o, err = newOutFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o.Write([]byte("never"))
	o.discard()
	wantText(t, path, "by link")
	if got := entries(t, dir); got != "absent dangling link link2 p" {
		t.Errorf("left: %s", got)
	}
}

// Where files cannot be without names they are made late, and have another name
// until they are complete.
func TestOutFileNamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &outFile{path: path, plain: true}
	if _, err := io.WriteString(o, "new"); err != nil {
		t.Fatal(err)
	}
	wantText(t, path, "old")
	if err := o.commit(); err != nil {
		t.Fatal(err)
	}
	wantText(t, path, "new")
	o = &outFile{path: path, plain: true}
	o.Write([]byte("never"))
	o.discard()
	if got := entries(t, dir); got != "p" {
		t.Errorf("left: %s", got)
	}
}

// Devices and pipes are written to, never replaced.
func TestOutFileDevice(t *testing.T) {
	writeOut(t, os.DevNull, "nothing")
	if st, err := os.Stat(os.DevNull); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Fatalf("%s is no device any more: %v, %v", os.DevNull, st, err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan string)
	go func() {
		b, _ := os.ReadFile(fifo)
		got <- string(b)
	}()
	writeOut(t, fifo, "through")
	if s := <-got; s != "through" {
		t.Errorf("%q came through the pipe", s)
	}
	o, err := newOutFile(fifo) // does not wait for a reader
	if err != nil || o.file != nil {
		t.Fatalf("%+v, %v", o, err)
	}
	o.discard()
}

// A name may be as long as names can be.
func TestOutFileLongName(t *testing.T) {
	dir := t.TempDir()
	name := strings.Repeat("n", 255)
	for _, text := range []string{"old", "new"} {
		writeOut(t, filepath.Join(dir, name), text)
		wantText(t, filepath.Join(dir, name), text)
	}
	o := &outFile{path: filepath.Join(dir, name), plain: true}
	defer o.discard()
	if _, err := io.WriteString(o, "newer"); err != nil {
		t.Error(err)
	}
}

// What cannot be given a name is copied to a file that has one.
func TestOutFileCopied(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p")
	o, err := newOutFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer o.discard()
	if _, err := io.WriteString(o, "new"); err != nil {
		t.Fatal(err)
	}
	if !o.named {
		if err := o.copy(); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := o.file.Stat(); err != nil || st.Mode().Perm() != 0o644&^umask() {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := o.commit(); err != nil {
		t.Fatal(err)
	}
	wantText(t, path, "new")
	if got := entries(t, dir); got != "p" {
		t.Errorf("left: %s", got)
	}
}

// One file is known by all its names, whether it is there or not.
func TestOutFileIs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return dir + "/" + name }
	for _, name := range []string{"there", "other"} {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.Link(at("there"), at("hard")), os.Symlink("there", at("soft")), os.Symlink("absent", at("dangling")),
		os.Mkdir(at("sub"), 0o700), os.Symlink(".", at("here")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"there", "./there", true}, {"there", "sub/../there", true}, {"there", "hard", true}, {"there", "soft", true},
		{"there", "here/there", true}, {"soft", "hard", true}, {"there", "other", false}, {"there", "absent", false},
		{"absent", "./absent", true}, {"absent", "dangling", true}, {"absent", "here/absent", true},
		{"absent", "absent2", false}, {"absent", "sub/absent", false}, {"dangling", "there", false},
	} {
		a, err := newOutFile(at(test.a))
		if err != nil {
			t.Fatal(err)
		}
		b, err := newOutFile(at(test.b))
		if err != nil {
			t.Fatal(err)
		}
		if a.is(b) != test.same || b.is(a) != test.same {
			t.Errorf("%s is %s: %v, %v; want %v", test.a, test.b, a.is(b), b.is(a), test.same)
		}
		a.discard()
		b.discard()
	}
	outs, err := openOutputs([]string{at("x.html"), at("./x.html")}, "")
	if err == nil || !strings.Contains(err.Error(), "are one file") {
		t.Errorf("two names of a file: %v", err)
	}
	discardOutputs(outs)
}

// What cannot be written is refused at once.
func TestOutFileRefuses(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	os.Symlink("loop", loop)
	for path, want := range map[string]string{
		dir: "is a directory", filepath.Join(dir, "no", "p"): "no such file", loop: "too many levels", "/proc/p": "cannot be written",
	} {
		if _, err := newOutFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A file system without room is told before anything is recorded.
func TestOutFileFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "p")
	writeOut(t, path, "old")
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 100<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := newOutFile(path); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want %v", err, unix.ENOSPC)
	}
	wantText(t, path, "old")
	if got := entries(t, dir); got != "filler p" {
		t.Errorf("left: %s", got)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bfree == 0 {
		t.Errorf("%d blocks are free: %v", st.Bfree, err)
	}
}

// A recorder that is killed leaves nothing beside its output.
func TestRecordKilled(t *testing.T) {
	needRecord(t)
	dir := t.TempDir()
	cmd := exec.Command(swbpf(t), "record", "-o", "p.pb.gz", "--stats", "s.json", "--", "sh", "-c", "echo on; exec sleep 1000")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Errorf("the command did not run: %v: %s", err, stderr.String())
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Process.Wait()
	if got := entries(t, dir); got != "" {
		t.Errorf("left: %s", got)
	}
}
