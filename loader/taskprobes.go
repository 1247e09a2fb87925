package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// ProbeReader reads what uretprobes have replaced on the stacks of a process.
// Only the kernel knows.
type ProbeReader struct{ iter *link.Iter }

// OpenProbeReader loads a reader for a process. It needs what Open needs, and
// Linux 5.8.
func OpenProbeReader(pid int) (*ProbeReader, error) {
	r, err := openProbeReader(pid)
	if err != nil {
		return nil, fmt.Errorf("uretprobes of process %d: %w", pid, err)
	}
	return r, nil
}

func openProbeReader(pid int) (*ProbeReader, error) {
	spec, err := gen.LoadProbes()
	if err != nil {
		return nil, err
	}
	ns, err := pidNamespace()
	if err != nil {
		return nil, err
	}
	err = errors.Join(spec.Variables[gen.ProbesVarWantedTgid].Set(uint32(pid)), spec.Variables[gen.ProbesVarPidNamespace].Set(ns))
	if err != nil {
		return nil, err
	}
	for name := range spec.Maps { // those of the sampler
		if name[0] != '.' {
			delete(spec.Maps, name)
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	defer coll.Close()
	iter, err := link.AttachIter(link.IterOptions{Program: coll.Programs[gen.ProbesProgOnProbedTask]})
	if err != nil {
		return nil, err
	}
	return &ProbeReader{iter}, nil
}

// Read reads the state of all threads that have met a uprobe. It is right for
// threads that stand still.
func (r *ProbeReader) Read() (map[procstate.ThreadID]procstate.UserProbes, error) {
	if r.iter == nil {
		return nil, errNotOpen
	}
	in, err := r.iter.Open()
	if err != nil {
		return nil, fmt.Errorf("uretprobes: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("uretprobes: %w", err)
	}
	probes := map[procstate.ThreadID]procstate.UserProbes{}
	var p gen.ProbesTaskProbe
	for b := bytes.NewReader(text); binary.Read(b, binary.NativeEndian, &p) == nil; {
		tid := procstate.ThreadID(p.Tid)
		u := probes[tid]
		if p.IsReturn == 0 {
			u.Trampoline = p.Addr
		} else {
			u.Returns = append(u.Returns, procstate.ReplacedReturn{Stack: p.Stack, RA: p.Addr})
		}
		probes[tid] = u
	}
	return probes, nil
}

// Close takes the reader out of the kernel.
func (r *ProbeReader) Close() error {
	if r.iter == nil {
		return nil
	}
	return r.iter.Close()
}
