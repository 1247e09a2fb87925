// Command selfprobed walks its own stack through C functions, which may be
// under uretprobes: before the first of them is called, and in the innermost.
// With the argument "ask" it asks the kernel what they have replaced. It prints
// a line for each walk, how that ended and the functions.
package main

// long outer(void);
import "C"

import (
	"fmt"
	"os"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

var walker *unwind.Walker

//export goWalk
func goWalk() C.long {
	frames, err := walker.WalkStack(nil, procstate.DefaultThread)
	fmt.Print(err, ":")
	for i := range frames {
		sym, _ := walker.Name(&frames[i])
		fmt.Print(" ", sym.Name)
	}
	fmt.Println()
	return 0
}

func main() {
	var err error
	if walker, err = swbpf.NewWalker(); err != nil {
		panic(err)
	}
	if len(os.Args) > 1 {
		r, err := loader.OpenProbeReader(os.Getpid())
		if err != nil {
			panic(err)
		}
		walker.ProcessState().(*procstate.ProcSelf).SetProbes(func() map[procstate.ThreadID]procstate.UserProbes {
			probes, err := r.Read()
			if err != nil {
				panic(err)
			}
			return probes
		})
	}
	goWalk()
	C.outer()
}
