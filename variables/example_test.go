package variables_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/symbols"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// The variables of all frames of a process's first thread, which stands still
// meanwhile.
func Example() {
	p, err := procstate.Attach(4711)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Detach()
	if err := p.Pause(procstate.DefaultThread); err != nil {
		log.Fatal(err)
	}
	names := symbols.New(symbols.Options{})
	defer names.Close()
	w := unwind.NewWalker(p, steppers.Default(unwind.NewTables()), names.Process(p))
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil {
		log.Print(err)
	}
	r := variables.New(w, names)
	for i := range frames {
		fns, err := r.Functions(&frames[i])
		if errors.Is(err, symbols.ErrNoDebugInfo) {
			continue
		}
		for _, fn := range fns { // calls inlined there, innermost first
			for _, v := range fn.Variables {
				value, err := r.Value(frames, i, v)
				if err != nil {
					fmt.Println(fn.Name, v.Type(), v.Name, variables.Unknown(err))
					continue
				}
				fmt.Println(fn.Name, v.Type(), v.Name, "=", value.Format(variables.Format{Depth: 2}))
			}
		}
	}
}
