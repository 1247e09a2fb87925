package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// workload is something to record.
type workload struct {
	name string
	// command to record, or, when nil, what start returns the PID of: 0 for the
	// whole machine.
	command []string
	start   func() (pid int, stop func(), err error)

	// For the comparison with others: a command whose amount of work does not
	// depend on time, the name of the program of interest, and what is known
	// of its stacks.
	fixed []string
	comm  string
	judge judge
}

const targets = "cmd/swbpf/testdata/targets/"

func workloads(b *builder) []workload {
	depth30 := b.run("depth30", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", targets+"depth30.cc")
	depth200 := b.run("depth200", "g++", "-O2", "-fomit-frame-pointer", "-o", "OUT", targets+"depth200.cc")
	gogc := b.run("gogc", "go", "build", "-o", "OUT", "./"+targets+"gogc")
	churn, brief := b.c("churn"), b.c("brief")
	text := filepath.Join(b.dir, "text")
	if err := writeText(text, 6<<20); err != nil && b.err == nil {
		b.err = err
	}
	heavy := []string{"g++", "-O2", "-c", targets + "heavy.cc", "-o", "/dev/null"}
	spin := []string{"python3", "-c", "s = 0\nfor i in range(40000000): s += i * i"}
	xz := []string{"xz", "-k", "-c", "-9", text}
	return []workload{
		{name: "C++ depth 30", command: []string{depth30, "5"},
			fixed: []string{depth30, "100", "50000"}, comm: "depth30", judge: judge{"chain::level", 30}},
		{name: "C++ depth 200, 96 KB of stack", command: []string{depth200, "5"},
			fixed: []string{depth200, "100", "8000"}, comm: "depth200", judge: judge{"deep", 200}},
		{name: "Go with GC", command: []string{gogc, "8"},
			fixed: []string{gogc, "100", "1500"}, comm: "gogc"},
		{name: "cc1plus", command: heavy, fixed: heavy, comm: "cc1plus"},
		{name: "redis under load", start: redis(b.dir)},
		{name: "python3", command: spin},
		{name: "xz", command: xz},
		{name: "Java", command: []string{"java", "bench/testdata/Calls.java", "5"}},
		{name: "Node", command: []string{"node", "bench/testdata/calls.js", "5"}},
		{name: "all of these side by side", start: func() (int, func(), error) {
			_, stop, err := redis(b.dir)()
			if err != nil {
				return 0, nil, err
			}
			end, err := startCommands(1, []string{depth30, "60"}, []string{gogc, "60"}, forever(heavy), forever(spin), forever(xz))
			return 0, func() { end(); stop() }, err
		}},
		{name: "processes of 40 ms", command: []string{"sh", targets + "shortlived.sh", "120"},
			fixed: []string{"sh", targets + "shortlived.sh", "60"}, comm: "sh"},
		{name: "170 processes a second", start: func() (int, func(), error) {
			stop, err := startCommands(1, []string{churn, "170", "60", "/bin/true"})
			return 0, stop, err
		}},
		{name: "10,000 threads a second", command: []string{brief, "5"}},
		{name: "chains of three execs, 100 ms", command: []string{"sh", "-c", "i=0; while [ $i -lt 40 ]; do i=$((i+1)); sh " + targets + "execchain.sh; done"}},
	}
}

// forever is a command that runs another over and over.
func forever(command []string) []string {
	return append([]string{"sh", "-c", `while "$@" >/dev/null; do :; done`, "sh"}, command...)
}

// writeText writes n bytes that keep a compressor busy.
func writeText(path string, n int) error {
	b := make([]byte, 0, n+64)
	for x := uint32(1); len(b) < n; {
		x = x*1664525 + 1013904223
		b = fmt.Appendf(b, "%d line %x\n", x>>20, x>>12)
	}
	return os.WriteFile(path, b, 0o600)
}

// redis starts a server on a socket, and a load on it.
func redis(dir string) func() (int, func(), error) {
	return func() (int, func(), error) {
		socket := filepath.Join(dir, "redis.sock")
		server := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir)
		if err := server.Start(); err != nil {
			return 0, nil, err
		}
		var load *exec.Cmd
		stop := func() {
			for _, c := range []*exec.Cmd{load, server} {
				if c != nil {
					c.Process.Kill()
					c.Wait()
				}
			}
		}
		for range 500 {
			if c, err := net.Dial("unix", socket); err == nil {
				c.Close()
				load = exec.Command("redis-benchmark", "-s", socket, "-l", "-q", "-t", "set,get,lpush,zadd")
				if err := load.Start(); err != nil {
					load = nil
					stop()
					return 0, nil, err
				}
				return server.Process.Pid, stop, nil
			}
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		return 0, nil, fmt.Errorf("redis does not listen on %s", socket)
	}
}
