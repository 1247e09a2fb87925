package symbols_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"reflect"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

func double(n int) int { return 2 * n }

// The function and the source line at an address of this very process.
func ExampleLookup_Lines() {
	self, err := procstate.NewProcSelf()
	if err != nil {
		log.Fatal(err)
	}
	if err := self.Libraries().Update(); err != nil {
		log.Fatal(err)
	}
	names := symbols.New(symbols.Options{})
	defer names.Close()
	lookup := names.Process(self)
	defer lookup.Close()
	addr := uint64(reflect.ValueOf(double).Pointer())
	for _, line := range lookup.Lines(nil, addr) {
		fmt.Printf("%s at %s:%d\n", line.Function, filepath.Base(line.File), line.Line)
	}
	// Output:
	// github.com/swbpf/swbpf/symbols_test.double at example_test.go:14
}

// Addresses of a file, that need not be mapped anywhere, by a Symbolizer that
// reads the debug files in a directory of its own.
func ExampleSymbolizer_Lines() {
	f, err := os.Open("/usr/bin/true")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		log.Fatal(err)
	}
	image, err := procstate.NewImage(f, info.Size(), f.Name())
	if err != nil {
		log.Fatal(err)
	}
	names := symbols.New(symbols.Options{DebugDirs: []string{"/srv/debug"}, Demangle: symbols.DemangleFull})
	defer names.Close()
	for _, vaddr := range image.FuncStarts() {
		for _, line := range names.Lines(nil, image, vaddr) { // inlined calls first
			fmt.Printf("%#x %s %s:%d\n", vaddr, line.Function, line.File, line.Line)
		}
	}
	for _, err := range names.Errors() {
		log.Print(err)
	}
}

func ExampleDemangle() {
	const name = "_ZN3foo3barISt6vectorIiSaIiEEEEvRKT_"
	fmt.Println(symbols.Demangle(name, symbols.DemangleSimple))
	fmt.Println(symbols.Demangle(name, symbols.DemangleFull))
	// Output:
	// foo::bar
	// void foo::bar<std::vector<int, std::allocator<int> > >(std::vector<int, std::allocator<int> > const&)
}
