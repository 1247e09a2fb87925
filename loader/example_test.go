package loader_test

import (
	"fmt"
	"log"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
)

// A profiler: for ten seconds, the stacks of all processes of the machine.
func Example() {
	sideband, err := loader.OpenSideband(loader.SidebandConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer sideband.Close()
	processes := loader.NewProcesses(loader.ProcessesConfig{Sideband: sideband, Images: procstate.SharedImages()})
	session, err := loader.Open(loader.Config{Frequency: loader.DefaultFrequency})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	if err := processes.Bootstrap(); err != nil {
		log.Fatal(err)
	}
	if err := session.Start(); err != nil {
		log.Fatal(err)
	}

	group := steppers.ForSampling(unwind.NewTables())
	names := symbols.New(symbols.Options{})
	defer names.Close()
	var pcs []unwind.PC
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		err := session.ReadSamples(processes.Collect(), func(s *loader.Sample) error {
			processes.Advance(s.Time)
			p := processes.Process(s.PID)
			if p == nil || !s.HasUser() {
				return nil
			}
			state := procstate.NewSnapshot(s.Arch, int(s.PID), p.Exe, p.Space)
			state.Reset(procstate.ThreadID(s.TID), &s.Regs, s.Regions)
			state.SetUserProbes(s.Probes)
			var err error
			pcs, err = unwind.NewWalker(state, group, nil).WalkPCs(pcs[:0], &s.Regs)
			fmt.Println(s.CommString(), unwind.ReasonOf(err))
			lookup := names.Lookup(p.Space, int(s.PID))
			for _, pc := range pcs {
				sym, _ := lookup.SymbolAt(pc.Addr)
				fmt.Printf("\t%#x %s\n", pc.Addr, sym.Name)
			}
			lookup.Close()
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	stats, err := session.Stats()
	fmt.Println(stats.Samples, "samples,", stats.Lost(), "lost", err)
}
