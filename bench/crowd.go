package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// crowd is a running bench/testdata/crowd.c.
type crowd struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

func startCrowd(program string, args ...string) (*crowd, error) {
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	// Its own group, so that all of it can be ended.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &crowd{cmd, stdin}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		c.end()
		return nil, fmt.Errorf("crowd %s: %w", strings.Join(args, " "), err)
	}
	return c, nil
}

func (c *crowd) pid() int { return c.cmd.Process.Pid }

func (c *crowd) end() {
	c.stdin.Close()
	syscall.Kill(-c.pid(), syscall.SIGKILL)
	c.cmd.Wait()
}

// libraries makes n files of the same library in a directory, which it
// returns.
func (b *builder) libraries(n int) string {
	dir := filepath.Join(b.dir, "libs")
	lib := b.c("lib", "-shared", "-fPIC")
	if b.err != nil {
		return dir
	}
	image, err := os.ReadFile(lib)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	for i := 0; i < n && err == nil; i++ {
		err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("lib%d.so", i)), image, 0o755)
	}
	b.err = err
	return dir
}
