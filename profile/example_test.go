package profile_test

import (
	"fmt"
	"log"
	"os"
	"strings"

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

	p := b.Finish(profile.Meta{Tool: "example"}, names{0x10: "main", 0x20: "work"})
	if err := p.WriteFolded(os.Stdout); err != nil {
		log.Fatal(err)
	}
	// Output:
	// app;[truncated: stack-cut];work 2
	// app;main 1
	// app;main;work 3
}

// A profile that another tool wrote, and what its functions cost.
func ExampleRead() {
	p, err := profile.Read(strings.NewReader("app;main;parse 6\napp;main;parse;alloc 3\napp;main 1\n"), profile.ReadOptions{Name: "stacks.folded"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Format, p.Samples)
	for _, f := range p.Top(2) {
		fmt.Println(f.Function, profile.Share(f.Self, p.Samples), profile.Share(f.Total, p.Samples))
	}
	// Output:
	// folded stacks 10
	// parse 60.0 % 90.0 %
	// alloc 30.0 % 30.0 %
}

// What changed from one recording to another by more than chance.
func ExampleCompare() {
	read := func(text string) *profile.Profile {
		p, err := profile.Read(strings.NewReader(text), profile.ReadOptions{})
		if err != nil {
			log.Fatal(err)
		}
		return p
	}
	before := read("app;main;parse 600\napp;main;print 400\napp;main;close 10\n")
	after := read("app;main;parse 300\napp;main;print 410\napp;main;close 12\n")
	d, err := profile.Compare(before, after, false)
	if err != nil {
		log.Fatal(err)
	}
	for i := range d.Functions {
		if f := &d.Functions[i]; f.Self.Significant {
			fmt.Println(f.Function, d.Value(f.Self.Before), d.Value(f.Self.After)) // percent
		}
	}
	// Output:
	// parse 59.41 41.55
	// print 39.60 56.79
}
