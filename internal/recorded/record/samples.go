package main

import (
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/swbpf/swbpf/internal/recorded"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/unwind"
)

// recordSamples samples a Go program. What checks the walks later, the calls
// and the names of functions, is recorded too.
func recordSamples(pid int) error {
	time.Sleep(*delay)
	event, err := loader.ParseEvent("cpu-clock")
	if err != nil {
		return err
	}
	s, err := loader.Open(loader.Config{Event: event, Frequency: int(time.Second / *every), PIDs: []int{pid}})
	if err != nil {
		return err
	}
	defer s.Close()
	images := procstate.NewImages(0)
	defer images.Close()
	procs := loader.NewProcesses(loader.ProcessesConfig{Images: images, PIDs: []int32{int32(pid)}})
	if err := procs.Bootstrap(); err != nil {
		return err
	}
	proc := procs.Process(int32(pid))
	if proc == nil {
		return fmt.Errorf("process %d is not known", pid)
	}
	mappings := proc.Space.Mappings()
	i := slices.IndexFunc(mappings, func(m *procstate.Mapping) bool { return m.Path == proc.Exe && m.Image != nil })
	if i < 0 {
		return fmt.Errorf("no mapping of %s", proc.Exe)
	}
	rt, err := procstate.GoRuntimeOf(mappings[i].Image)
	if err != nil {
		return err
	}
	if err := s.SetGoProcess(pid, loader.GoOffsetsOf(rt, mappings[i].Bias)); err != nil {
		return err
	}
	rec, err := recorded.NewRecorder(mappings[i].Image.Arch(), mappings)
	if err != nil {
		return err
	}
	snap := procstate.NewSnapshot(mappings[i].Image.Arch(), 1, "", rec.Space)
	walker := unwind.NewWalker(snap, steppers.Default(unwind.NewTables()), nil)
	if err := s.Start(); err != nil {
		return err
	}
	incomplete := 0
	for len(rec.File.Stacks) < *count {
		time.Sleep(10 * time.Millisecond)
		err := s.ReadSamples(^uint64(0), func(p *loader.Sample) error {
			if !p.HasUser() || len(p.Regions) == 1 || len(rec.File.Stacks) == *count {
				return nil
			}
			regions := make([]procstate.Region, len(p.Regions))
			for i, r := range p.Regions {
				regions[i] = procstate.Region{Addr: r.Addr, Data: slices.Clone(r.Data)}
			}
			snap.Reset(1, &p.Regs, regions)
			frames, err := walker.WalkStack(nil, 1)
			if err != nil {
				incomplete++
				return nil
			}
			for i := range frames {
				readCall(rec.Space.MappingAt(frames[i].LookupPC()), frames[i].PC())
			}
			rec.Add(&p.Regs, regions)
			return nil
		})
		if err != nil {
			return err
		}
	}
	log.Printf("%d stacks, %d more were not complete", len(rec.File.Stacks), incomplete)
	return rec.File.Save(*out)
}

// readCall reads what there is before a return address, and the entry of its
// function in the table of a Go program.
func readCall(m *procstate.Mapping, pc uint64) {
	var code [16]byte
	if m == nil || m.Image == nil {
		return
	}
	_ = m.Image.ReadVaddr(code[:], pc-m.Bias-uint64(len(code)))
	if t, err := procstate.Pclntab(m.Image); err == nil {
		if f, ok := t.Func(pc - 1 - m.Bias); ok {
			f.Name()
		}
	}
}
