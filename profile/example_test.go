package profile_test

import (
	"log"
	"os"

	"github.com/swbpf/swbpf/profile"
)

// names is a Symbolizer of one module.
type names map[uint64]string

func (n names) Symbolize(dst []profile.Line, loc profile.Loc) []profile.Line {
	if name, ok := n[loc.Addr]; ok {
		dst = append(dst, profile.Line{Function: name})
	}
	return dst
}

// Stacks are counted as addresses, and named when the profile is built.
func ExampleBuilder() {
	b := profile.NewBuilder()
	app := b.Module(profile.Module{Path: "/usr/bin/app", Kind: profile.Native})
	thread := profile.Thread{PID: 1, TID: 1, Comm: profile.Comm("app")}
	stack := []profile.Loc{{Module: app, Addr: 0x20}, {Module: app, Addr: 0x10}} // leaf first
	b.Add(thread, stack, "", 3, 0)
	b.Add(thread, stack[1:], "", 1, 0)
	b.Add(thread, stack[:1], "stack-cut", 2, 0)

	p := b.Build(profile.Meta{Tool: "example"}, names{0x10: "main", 0x20: "work"})
	if err := p.WriteFolded(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// app;[truncated: stack-cut];work 2
	// app;main 1
	// app;main;work 3
}
