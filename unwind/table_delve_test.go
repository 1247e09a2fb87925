package unwind

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-delve/delve/pkg/dwarf/frame"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// delveRule makes a RegRule of delve's. Not compared are what its version
// 1.27.2 is known to have wrong: val_offset is not scaled, and restore gives
// undefined, which here is the same as unspecified.
func delveRule(d frame.DWRule) (RegRule, bool) {
	switch d.Rule {
	case frame.RuleUndefined:
		return RegRule{}, true
	case frame.RuleSameVal:
		return RegRule{Kind: SameValue}, true
	case frame.RuleOffset:
		return RegRule{Kind: AtOffset, Offset: d.Offset}, true
	case frame.RuleRegister:
		return RegRule{Kind: InReg, Reg: procstate.Reg(d.Reg)}, true
	case frame.RuleCFA:
		return RegRule{Kind: InReg, Reg: procstate.Reg(d.Reg), Offset: d.Offset}, true
	}
	return RegRule{}, false
}

// compareDelve compares every row of a section with delve's parser.
func compareDelve(t *testing.T, path, section string, minRows int) {
	t.Helper()
	img := openTestImage(t, path)
	tab := NewTable(img)
	sec, ok := img.Section(section)
	if !ok {
		t.Fatalf("%s has no %s", path, section)
	}
	data, err := img.SectionBytes(sec, 0)
	if err != nil {
		t.Fatal(err)
	}
	ehFrame := sec.Vaddr // 0 for .debug_frame
	fdes, err := frame.Parse(data, binary.LittleEndian, 0, img.Arch().AddressWidth, ehFrame)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, fde := range fdes {
		for at := fde.Begin(); at < fde.End(); {
			row, _, end, err := tab.Row(at)
			if err != nil {
				t.Fatalf("%#x: %v", at, err)
			}
			ctx, err := fde.EstablishFrame(at)
			if err != nil {
				t.Fatalf("%#x: delve: %v", at, err)
			}
			same := func(what string, got RegRule, d frame.DWRule) {
				if got.Kind == Undefined {
					got.Kind = Unspecified
				}
				if want, ok := delveRule(d); ok && got != want {
					t.Errorf("%#x: %s is %+v, delve has %+v", at, what, got, want)
				}
			}
			same("CFA", row.CFA, ctx.CFA)
			for i := range img.Arch().NumRegs {
				same(img.Arch().RegName(procstate.Reg(i)), row.Regs[i], ctx.Regs[uint64(i)])
			}
			if uint64(row.RA) != ctx.RetAddrReg {
				t.Errorf("%#x: RA in %d, delve has %d", at, row.RA, ctx.RetAddrReg)
			}
			rows++
			at = end
			if t.Failed() {
				return
			}
		}
	}
	if rows < minRows {
		t.Errorf("%s: compared %d rows, expected at least %d", path, rows, minRows)
	}
}

func TestDelve(t *testing.T) {
	t.Parallel()
	compareDelve(t, libraryPath(t, "libstdc++.so.6"), ".eh_frame", 20000)
	out := filepath.Join(t.TempDir(), "gohello")
	cmd := exec.Command("go", "build", "-o", out, "./testdata/src/gohello")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	testenv.Run(t, cmd)
	compareDelve(t, out, ".debug_frame", 10000)
}
