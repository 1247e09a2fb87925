package procstate_test

import (
	"fmt"
	"log"
	"os"

	"github.com/swbpf/swbpf/procstate"
)

// The registers of a process's threads, all of which stand still meanwhile.
func ExampleProcDebug_Pause() {
	p, err := procstate.Attach(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Detach()
	if err := p.Pause(procstate.DefaultThread); err != nil { // all threads
		log.Fatal(err)
	}
	tids, err := p.Threads()
	if err != nil {
		log.Fatal(err)
	}
	arch := p.Arch()
	for _, tid := range tids {
		var regs procstate.Regs
		if err := p.Registers(tid, &regs); err != nil {
			log.Print(err)
			continue
		}
		for r := procstate.Reg(0); int(r) < arch.NumRegs; r++ {
			if v, known := regs.Value(r); known {
				fmt.Printf("%d %s = %#x\n", tid, arch.RegName(r), v)
			}
		}
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		log.Fatal(err)
	}
}

// A program is told its directory and environment, and traced from its first
// instruction on.
func ExampleLaunch() {
	p, err := procstate.Launch("ls", []string{"ls", "-l"}, &procstate.LaunchOptions{Dir: "/", Env: []string{"LC_ALL=C"}})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Resume(procstate.DefaultThread); err != nil {
		log.Fatal(err)
	}
	<-p.Done()
	if status, ok := p.ExitStatus(); ok {
		fmt.Println("exit status", status.ExitStatus())
	}
}

// What a core file tells of how the process ended.
func ExampleOpenCore() {
	core, err := procstate.OpenCore("core", "")
	if err != nil {
		log.Fatal(err)
	}
	defer core.Close()
	tids, err := core.Threads()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, process %d, ended by signal %d in thread %d of %d\n",
		core.ExecutablePath(), core.PID(), core.Signal, tids[0], len(tids))
	for _, lib := range core.Libraries().Libraries() {
		fmt.Printf("%#x %s", lib.Bias, lib.Path)
		if lib.Image != nil { // the file is still there
			fmt.Print(" ", lib.Image.BuildID())
		}
		fmt.Println()
	}
}

// The file that code of this very process is in, and where in that file.
func ExampleImages_LoadAddressSpace() {
	images := procstate.NewImages(0)
	defer images.Close()
	space, err := images.LoadAddressSpace(int32(os.Getpid()))
	if err != nil {
		log.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	for _, lib := range space.Libraries() {
		if lib.Path != exe {
			continue
		}
		addr := lib.Image.Entry() + lib.Bias
		m := space.MappingAt(addr)
		fmt.Println(m.Path == exe, m.Contains(addr), addr-m.Bias == lib.Image.Entry())
	}
	// Output:
	// true true true
}
