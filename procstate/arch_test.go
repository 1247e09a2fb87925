package procstate

import (
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The assembler knows each register's DWARF number: it is read back from the
// frame information that it makes.
func TestRegisterNumbers(t *testing.T) {
	tests := []struct {
		arch      *Arch
		assembler []string
		prefix    string
		unknown   Reg // in our numbering only
	}{
		{AMD64, []string{"as", "--64"}, "%", NoReg},
		{I386, []string{"as", "--32"}, "%", NoReg},
		{ARM64, []string{"aarch64-linux-gnu-as"}, "", 32},
	}
	for _, test := range tests {
		t.Run(test.arch.Name, func(t *testing.T) {
			var src strings.Builder
			src.WriteString("f:\n.cfi_startproc\n")
			var regs []Reg
			for r := range Reg(test.arch.NumRegs) {
				if r == test.unknown {
					continue
				}
				fmt.Fprintf(&src, "nop\n.cfi_undefined %s%s\n", test.prefix, test.arch.RegName(r))
				regs = append(regs, r)
			}
			src.WriteString("nop\n.cfi_endproc\n")
			dir := t.TempDir()
			in, out := filepath.Join(dir, "x.s"), filepath.Join(dir, "x.o")
			if err := os.WriteFile(in, []byte(src.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			testenv.Needs(t, test.assembler[0], "readelf")
			args := append(test.assembler[1:], "-o", out, in)
			testenv.Run(t, exec.Command(test.assembler[0], args...))
			dump, err := exec.Command("readelf", "--debug-dump=frames", out).Output()
			if err != nil {
				t.Fatal(err)
			}
			found := regexp.MustCompile(`DW_CFA_undefined: r(\d+)`).FindAllStringSubmatch(string(dump), -1)
			if len(found) != len(regs) {
				t.Fatalf("%d registers in\n%s", len(found), dump)
			}
			for i, r := range regs {
				if n, _ := strconv.Atoi(found[i][1]); Reg(n) != r {
					t.Errorf("%s is %d, the assembler has %d", test.arch.RegName(r), r, n)
				}
			}
		})
	}
}

func TestArch(t *testing.T) {
	for _, a := range []*Arch{AMD64, ARM64, I386} {
		if a.NumRegs > MaxRegs || ArchByMachine(a.Machine) != a {
			t.Errorf("%s: %+v", a.Name, a)
		}
		for r := range Reg(a.NumRegs) {
			if name := a.RegName(r); name == "" || a.RegByName(name) != r {
				t.Errorf("%s: register %d is %q, which is %d", a.Name, r, name, a.RegByName(name))
			}
		}
		if a.RegName(Reg(a.NumRegs)) != "" || a.RegName(NoReg) != "" || a.RegByName("") != NoReg || a.RegByName("none") != NoReg {
			t.Errorf("%s: registers that it does not have", a.Name)
		}
		for _, r := range []Reg{a.PC, a.SP, a.FP, a.RA} {
			if int(r) >= a.NumRegs {
				t.Errorf("%s: register %d", a.Name, r)
			}
		}
		if a.CalleeSaved>>a.NumRegs != 0 || a.CalleeSaved&(1<<a.SP) == 0 || a.CalleeSaved&(1<<a.FP) == 0 || a.CalleeSaved&(1<<a.PC) != 0 {
			t.Errorf("%s: callee-saved %#x", a.Name, a.CalleeSaved)
		}
		if bits.OnesCount64(a.PCAlign) != 1 {
			t.Errorf("%s: alignment %d", a.Name, a.PCAlign)
		}
	}
	if ArchByMachine(0) != nil {
		t.Error("a machine of no kind")
	}
}

func TestRegs(t *testing.T) {
	var r Regs
	for reg := range Reg(MaxRegs) {
		if _, ok := r.Value(reg); ok {
			t.Errorf("register %d is known from the start", reg)
		}
		r.Set(reg, uint64(reg)+100)
	}
	r.Set(MaxRegs, 1) // ignored, like NoReg
	r.Set(NoReg, 1)
	if r.Known() != 1<<MaxRegs-1 || r.Raw(NoReg) != 0 || r.Raw(MaxRegs) != 0 {
		t.Errorf("known %#x", r.Known())
	}
	last := r
	r.Forget(3)
	r.Forget(NoReg)
	if _, ok := r.Value(3); ok || r.Raw(3) != 0 || r.Raw(4) != 104 || r.Known() != last.Known()&^8 {
		t.Errorf("after Forget: %+v", r)
	}
	r.Retain(1<<4 | 1<<32 | 1<<3)
	if r.Known() != 1<<4|1<<32 || r.Raw(32) != 132 || r.Raw(5) != 0 {
		t.Errorf("after Retain: %+v", r)
	}
	if last.Raw(3) != 103 {
		t.Error("a copy changed with the original")
	}
	want := Regs{known: 1<<4 | 1<<32}
	want.val[4], want.val[32] = 104, 132
	if r != want {
		t.Error("equal registers do not compare equal")
	}
}
