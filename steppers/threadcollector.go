package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/bash"
	"github.com/swbpf/swbpf/steppers/beam"
	"github.com/swbpf/swbpf/steppers/chez"
	"github.com/swbpf/swbpf/steppers/gnur"
	"github.com/swbpf/swbpf/steppers/lua"
	"github.com/swbpf/swbpf/steppers/luajit"
	"github.com/swbpf/swbpf/steppers/perl"
	"github.com/swbpf/swbpf/steppers/php"
	"github.com/swbpf/swbpf/steppers/postgres"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/steppers/ruby"
	"github.com/swbpf/swbpf/steppers/spidermonkey"
	"github.com/swbpf/swbpf/steppers/wazero"
)

// ThreadCollectors makes Collectors of single threads of many processes: of what runtimes other than Go and Java keep of their
// frames. The zero value is ready for use, by one goroutine at a time.
type ThreadCollectors struct {
	files map[*procstate.Image]uint32 // which of ofThreads know it, a bit each
}

// ofThreads make the Collectors, nil where the runtime is not among the libraries.
var ofThreads = [...]func(procstate.LibraryState) procstate.Collector{
	python.ThreadCollector, ruby.Collector, php.Collector, perl.Collector, beam.Collector, chez.Collector, lua.Collector,
	luajit.Collector, gnur.Collector, bash.Collector, postgres.Collector, spidermonkey.Collector, wazero.Collector,
}

// maxCollectorFiles bounds of how many files it is remembered.
const maxCollectorFiles = 1 << 14

// Of returns a Collector to be called once, for a thread of a process with these libraries; nil where none of the runtimes
// is among them. Of other threads it takes as little as the runtime lets it tell apart.
func (c *ThreadCollectors) Of(libs procstate.LibraryState) procstate.Collector {
	known := uint32(0)
	for _, lib := range procstate.LibrariesOf(libs) {
		if lib.Image != nil {
			known |= c.of(lib)
		}
	}
	var of []procstate.Collector
	for i, collector := range ofThreads {
		if known>>i&1 != 0 {
			of = append(of, collector(libs))
		}
	}
	return procstate.JoinCollectors(of...)
}

// of returns which of ofThreads know a library.
func (c *ThreadCollectors) of(lib procstate.Library) (known uint32) {
	if known, ok := c.files[lib.Image]; ok {
		return known
	}
	for i, collector := range ofThreads {
		if collector(aloneLibrary{lib}) != nil {
			known |= 1 << i
		}
	}
	if c.files == nil || len(c.files) >= maxCollectorFiles {
		c.files = map[*procstate.Image]uint32{}
	}
	c.files[lib.Image] = known
	return known
}

// aloneLibrary is a library without others.
type aloneLibrary [1]procstate.Library

func (l aloneLibrary) MappingAt(uint64) *procstate.Mapping { return nil }
func (l aloneLibrary) Libraries() []procstate.Library      { return l[:] }
func (l aloneLibrary) Update() error                       { return nil }
func (l aloneLibrary) TrapAddress() uint64                 { return 0 }
