package procstate_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// The call frame information of object files is of the functions that their
// symbols name, as debug/elf reads them.
func TestRegisteredFrames(t *testing.T) {
	for _, name := range []string{"jitlink.o", "rtdyld.o"} {
		path := filepath.Join("testdata", "jit", name)
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		im, err := procstate.LinkJITObject(raw)
		if err != nil {
			t.Fatal(err)
		}
		symbols, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		table, functions := unwind.NewTable(im), 0
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) != elf.STT_FUNC {
				continue
			}
			addr := f.Sections[s.Section].Addr + s.Value
			start, end, ok := table.FunctionAt(addr + s.Size - 1)
			if !ok {
				continue // LLVM leaves out functions that cannot throw
			}
			functions++
			if start != addr || end != addr+s.Size || !table.Rule(addr).CFAIs(procstate.AMD64.SP, 8) {
				t.Errorf("%s: %s is at [%#x, %#x), want [%#x, %#x)", name, s.Name, start, end, addr, addr+s.Size)
			}
		}
		if functions < 4 {
			t.Errorf("%s: %d functions", name, functions)
		}
	}
}
