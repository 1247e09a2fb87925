// Command record makes a file of recorded stacks: it runs a program, stops it
// now and then, and copies the stacks of its threads.
//
//	go run ./internal/recorded/record -comm cc1plus -n 300 -o cc1plus.zst g++ -O2 -c heavy.cc -o /dev/null
//
// With -samples it records a Go program instead, as samples hold its stacks:
// those of them that hold more than one.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/swbpf/swbpf/internal/recorded"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

var (
	comm  = flag.String("comm", "", "record the descendant of this name (default the command itself)")
	count = flag.Int("n", 300, "stacks")
	every = flag.Duration("every", 20*time.Millisecond, "mean time between two")
	delay = flag.Duration("delay", 200*time.Millisecond, "time before the first")
	out   = flag.String("o", "stacks.zst", "output")

	samples = flag.Bool("samples", false, "take samples, of a Go program")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	cmd := exec.Command(flag.Arg(0), flag.Args()[1:]...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	take := record
	if *samples {
		take = recordSamples
	}
	err := take(cmd.Process.Pid)
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		log.Fatal(err)
	}
}

func record(pid int) error {
	time.Sleep(*delay)
	if *comm != "" {
		var err error
		if pid, err = descendant(pid, *comm); err != nil {
			return err
		}
	}
	p, err := procstate.Attach(pid)
	if err != nil {
		return err
	}
	defer p.Detach()
	var rec *recorded.Recorder
	var walker *unwind.Walker
	var snap *procstate.Snapshot
	seen := map[[2]uint64]bool{}
	incomplete := 0
	for len(seen) < *count {
		time.Sleep(time.Duration(rand.Int64N(int64(2 * *every))))
		c, err := p.Capture(procstate.CaptureOptions{})
		if err != nil {
			if rec != nil && errors.Is(err, procstate.ErrTerminated) {
				break
			}
			return err
		}
		if rec == nil {
			space, ok := c.Libraries().(*procstate.AddressSpace)
			if !ok {
				return errors.New("the capture has no address space")
			}
			if rec, err = recorded.NewRecorder(c.Arch(), space.Mappings()); err != nil {
				return err
			}
			snap = procstate.NewSnapshot(c.Arch(), 1, "", rec.Space)
			walker = unwind.NewWalker(snap, steppers.Default(unwind.NewTables()), nil)
		}
		for _, t := range c.CapturedThreads() {
			if t.Err != nil || t.Blocked || t.State == procstate.StateSleeping {
				continue
			}
			var regs procstate.Regs
			if err := c.Registers(t.TID, &regs); err != nil {
				return err
			}
			pc, sp := regs.Raw(c.Arch().PC), regs.Raw(c.Arch().SP)
			low := sp - c.Arch().RedZone
			buf := make([]byte, 1<<20)
			n, _ := c.ReadMemory(low, buf)
			if n == 0 || seen[[2]uint64{pc, sp}] {
				continue
			}
			regions := []procstate.Region{{Addr: low, Data: buf[:n]}}
			snap.Reset(1, &regs, regions)
			pcs, err := walker.WalkPCs(nil, &regs)
			if err != nil {
				incomplete++
				continue
			}
			end := walker.LastSP() + 16
			if n := end - low; n < uint64(len(buf)) {
				regions[0].Data = append([]byte(nil), buf[:n]...)
			}
			// Once more, for all that the other way to walk reads.
			snap.Reset(1, &regs, regions)
			if frames, err := walker.WalkStack(nil, 1); err != nil || len(frames) != len(pcs) {
				return fmt.Errorf("WalkStack found %d frames, WalkPCs %d: %w", len(frames), len(pcs), err)
			}
			seen[[2]uint64{pc, sp}] = true
			rec.Add(&regs, regions)
		}
	}
	log.Printf("%d stacks, %d more were not complete", len(rec.File.Stacks), incomplete)
	return rec.File.Save(*out)
}

// descendant waits for a descendant of a process to have a name.
func descendant(pid int, name string) (int, error) {
	for range 100 {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		parent := map[int]int{}
		var named []int
		for _, path := range stats {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			i, j := strings.IndexByte(string(b), '('), strings.LastIndexByte(string(b), ')')
			id, _ := strconv.Atoi(strings.TrimSpace(string(b[:i])))
			fields := strings.Fields(string(b[j+1:]))
			parent[id], _ = strconv.Atoi(fields[1])
			if string(b[i+1:j]) == name {
				named = append(named, id)
			}
		}
		for _, id := range named {
			for at := id; at > 1; at = parent[at] {
				if at == pid {
					return id, nil
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, fmt.Errorf("no descendant of %d is called %s", pid, name)
}
