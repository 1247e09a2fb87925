package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/symbols"
)

// namer is a program that names addresses: it prints the logical frames at
// each address of its standard input, innermost first.
type namer struct {
	name    string
	command []string // the file follows
	parse   func(out []byte) ([][]symbols.Line, error)
	chain   bool // whether inlined callers are printed
	limit   int  // of addresses, for a slow one; 0: none
}

var (
	llvmSymbolizer = &namer{"llvm-symbolizer", []string{"llvm-symbolizer-19", "-f", "-i", "--no-demangle", "--output-style=JSON", "-e"}, parseLLVM, true, 0}
	euAddr2line    = &namer{"eu-addr2line", []string{"eu-addr2line", "-a", "-f", "-i", "-e"}, parseAddr2line, true, 5000}
	gnuAddr2line   = &namer{"addr2line", []string{"addr2line", "-a", "-f", "-i", "-e"}, parseAddr2line, true, 0}
	gdbNamer       = &namer{"gdb", []string{"gdb", "-nx", "-batch", "-x", "bench/testdata/names_gdb.py"}, parseAddr2line, true, 0}
	goAddr2line    = &namer{"go tool addr2line", []string{"go", "tool", "addr2line"}, parseGoAddr2line, false, 0}
)

// asked is how many of n addresses the program is asked for.
func (p *namer) asked(n int) int {
	if p.limit > 0 {
		return min(p.limit, n)
	}
	return n
}

// namedFile is a file whose addresses are named.
type namedFile struct {
	name string
	path func(*builder) string
	peer []*namer
}

func installed(path string) func(*builder) string { return func(*builder) string { return path } }

// built builds a C++ program with this compiler and flags.
func built(compiler ...string) func(*builder) string {
	name := "names-" + strings.Join(compiler, "")
	return func(b *builder) string {
		return b.run(name, append(compiler, "-std=c++17", "-o", "OUT", "bench/testdata/names.cc")...)
	}
}

var (
	nativeNamers = []*namer{llvmSymbolizer, euAddr2line, gnuAddr2line, gdbNamer}
	goNamers     = []*namer{goAddr2line, llvmSymbolizer}
)

var namedFiles = []namedFile{
	{"libc.so.6", installed("/lib/x86_64-linux-gnu/libc.so.6"), nativeNamers},
	{"libm.so.6", installed("/lib/x86_64-linux-gnu/libm.so.6"), nativeNamers},
	{"ld.so", installed("/lib64/ld-linux-x86-64.so.2"), nativeNamers},
	{"python3.11-dbg", installed("/usr/bin/python3.11-dbg"), nativeNamers},
	{"ld.gold (C++, dwz)", installed("/usr/bin/ld.gold"), nativeNamers},
	{"objdump (dwz)", installed("/usr/bin/objdump"), nativeNamers},
	{"libbfd (dwz)", installed("/lib/x86_64-linux-gnu/libbfd-2.40-system.so"), nativeNamers},
	{"gprofng (C++, dwz)", installed("/lib/x86_64-linux-gnu/libgprofng.so.0"), nativeNamers},
	{"libstdc++ (no debug information)", installed("/lib/x86_64-linux-gnu/libstdc++.so.6"), nativeNamers},
	{"g++ -O2", built("g++", "-g", "-O2"), nativeNamers},
	{"g++ -O2 -flto", built("g++", "-g", "-O2", "-flto=1"), nativeNamers},
	{"g++ -O2 -gsplit-dwarf", built("g++", "-g", "-O2", "-gsplit-dwarf"), nativeNamers},
	{"g++ -O0 -gdwarf-4", built("g++", "-g", "-O0", "-gdwarf-4"), nativeNamers},
	{"g++ -O2 -gdwarf-3", built("g++", "-O2", "-gdwarf-3", "-gstrict-dwarf"), nativeNamers},
	{"g++ -O1 -gdwarf-2", built("g++", "-O1", "-gdwarf-2", "-gstrict-dwarf"), nativeNamers},
	{"clang++ -O2, .debug_names", built("clang++-19", "-g", "-O2", "-gpubnames"), nativeNamers},
	{"clang++ -O2 -gsplit-dwarf", built("clang++-19", "-g", "-O2", "-gsplit-dwarf"), nativeNamers},
	{"clang++ -O3, zstd", built("clang++-19", "-g", "-O3", "-gz=zstd"), nativeNamers},
	{"rustc -O", func(b *builder) string {
		return b.run("names-rust", "rustc", "-g", "-O", "-o", "OUT", "bench/testdata/names.rs")
	}, nativeNamers},
	{"Go (go vet)", func(b *builder) string { return b.run("names-go", "go", "build", "-o", "OUT", "cmd/vet") }, goNamers},
	{"Go, stripped", func(b *builder) string {
		return b.run("names-gostrip", "go", "build", "-ldflags=-s -w", "-o", "OUT", "cmd/vet")
	}, []*namer{goAddr2line}},
}

// names compares the names of random addresses with those that other programs
// give, and the time that it takes.
func names(r *report, b *builder, c *config) error {
	n := 100_000
	if c.short {
		n = 5000
	}
	r.machine(c.command("-names"))
	if c.only == "" || c.only == "speed" {
		// First: the peak memory of a program counts that of this one at its start.
		if err := nameSpeed(r, b, c); err != nil || c.only == "speed" {
			return err
		}
	}
	r.printf("%d random addresses of each file. An answer is the whole chain: function, inlined callers, and file and line of each. eu-addr2line, which is slow, is asked for the first %d; addresses that no program names alike are in the column \"as none\".\n\n", n, euAddr2line.asked(n))
	r.header("file", "named", "inlined", "as llvm-symbolizer", "as eu-addr2line", "as addr2line", "as gdb", "as go tool addr2line", "as the file says", "as none")
	for i := range namedFiles {
		f := &namedFiles[i]
		if !strings.Contains(f.name, c.only) {
			continue
		}
		p := f.path(b)
		if b.err != nil {
			return b.err
		}
		if _, err := os.Stat(p); err != nil {
			r.printf("\n%s is not here.\n\n", p)
			continue
		}
		if err := compareNames(r, c, f, p, n); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// comparison is of the names of addresses of one file.
type comparison struct {
	file     *namedFile
	path     string
	examples int // to print of each kind of difference

	addrs []uint64
	own   [][]symbols.Line
	facts *evidence

	same       map[*namer]int
	failed     map[*namer]error
	namesSeen  []bool // by some peer, of each address
	placesSeen []bool
}

// compareNames prints the row of a file.
func compareNames(r *report, c *config, f *namedFile, path string, n int) error {
	addrs, err := randomCode(path, n)
	if err != nil {
		return err
	}
	own, err := nameAll(path, addrs)
	if err != nil {
		return err
	}
	facts, err := readEvidence(path, addrs)
	if err != nil {
		return err
	}
	cmp := &comparison{
		file: f, path: path, examples: c.examples, addrs: addrs, own: own, facts: facts,
		same: map[*namer]int{}, failed: map[*namer]error{},
		namesSeen: make([]bool, n), placesSeen: make([]bool, n),
	}
	for _, p := range f.peer {
		cmp.ask(p)
	}
	r.row(cmp.row()...)
	return nil
}

// ask compares the names with those that a peer gives.
func (c *comparison) ask(p *namer) {
	asked := c.addrs[:p.asked(len(c.addrs))]
	theirs, err := p.ask(c.path, asked)
	if err != nil {
		c.failed[p] = err
		return
	}
	kinds := map[string]int{}
	for i := range asked {
		kind := difference(c.own[i], theirs[i], p.chain, c.facts.values)
		if kind == "" {
			c.same[p]++
		} else if kinds[kind]++; kinds[kind] <= c.examples {
			fmt.Fprintf(os.Stderr, "%s %#x: %s: %s\n  here  %s\n  there %s\n", c.path, asked[i], p.name, kind, chainText(c.own[i]), chainText(theirs[i]))
		}
		if len(c.own[i]) == len(theirs[i]) || kind == "" {
			names, places := parts(c.own[i], theirs[i], p.chain, c.facts.values)
			c.namesSeen[i] = c.namesSeen[i] || names
			c.placesSeen[i] = c.placesSeen[i] || places
		}
	}
}

// judge counts the names that the file itself can tell of, and those that are right.
func (c *comparison) judge() (judged, right int) {
	for i := range c.addrs {
		same, ok := c.facts.says(i, c.own[i])
		if !ok {
			continue
		}
		if judged++; same {
			right++
		} else if judged-right <= c.examples {
			fmt.Fprintf(os.Stderr, "%s %#x: the file says otherwise: %s\n", c.path, c.addrs[i], chainText(c.own[i]))
		}
	}
	return judged, right
}

// row is the file's row of the table.
func (c *comparison) row() []string {
	n := len(c.addrs)
	named, inlined, alone := 0, 0, 0
	for i, o := range c.own {
		if len(o) > 0 {
			named++
		}
		if len(o) > 1 {
			inlined++
		}
		if !c.namesSeen[i] || !c.placesSeen[i] {
			alone++
		}
	}
	share := func(k, of int) string { return fmt.Sprintf("%.2f %%", 100*float64(k)/float64(of)) }
	cells := []string{c.file.name, share(named, n), share(inlined, n)}
	for _, p := range []*namer{llvmSymbolizer, euAddr2line, gnuAddr2line, gdbNamer, goAddr2line} {
		switch {
		case !slices.Contains(c.file.peer, p):
			cells = append(cells, "-")
		case c.failed[p] != nil:
			cells = append(cells, "fails")
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", c.file.name, c.failed[p])
		default:
			cells = append(cells, share(c.same[p], p.asked(n)))
		}
	}
	says := "-"
	if judged, right := c.judge(); judged > 0 {
		says = share(right, judged)
	}
	return append(cells, says, share(alone, n))
}
