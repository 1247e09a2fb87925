// Namer FILE prints the frames at the addresses on standard input as addr2line
// -a -f -i -C does, with package symbols: what the time and memory of other
// programs that name addresses are compared with.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/symbols"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: namer FILE < addresses")
		os.Exit(2)
	}
	if err := nameFile(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "namer:", err)
		os.Exit(1)
	}
}

func nameFile(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	im, err := procstate.NewImage(f, st.Size(), file)
	if err != nil {
		return err
	}
	s := symbols.New(symbols.Options{})
	defer s.Close()
	out := bufio.NewWriter(os.Stdout)
	var lines []symbols.Line
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		addr, err := strconv.ParseUint(in.Text(), 0, 64)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%#x\n", addr)
		if lines = s.Lines(lines[:0], im, addr); len(lines) == 0 {
			out.WriteString("??\n??:0\n")
		}
		for _, l := range lines {
			fmt.Fprintf(out, "%s\n%s:%d\n", l.Function, l.File, l.Line)
		}
	}
	return out.Flush()
}
