package unwind

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestReturnAddressSigning compares with llvm-dwarfdump at which addresses of
// AArch64 code the return address is signed; readelf does not tell.
func TestReturnAddressSigning(t *testing.T) {
	t.Parallel()
	testenv.Needs(t, "llvm-dwarfdump-19")
	for _, protection := range []string{"standard", "pac-ret+leaf", "pac-ret+b-key"} {
		path := build(t, "aarch64-linux-gnu-gcc", "-O2", "-mbranch-protection="+protection, "testdata/src/frames.c")
		tab := NewTable(openTestImage(t, path))
		out, err := exec.Command("llvm-dwarfdump-19", "--eh-frame", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		signed, rows := 0, 0
		for line := range strings.Lines(string(out)) {
			// "  0x724: CFA=WSP+16: W30=[CFA-8], reg34=1"
			at, rules, ok := strings.Cut(strings.TrimSpace(line), ": CFA=")
			if !ok {
				continue
			}
			rows++
			want := strings.Contains(rules, "reg34=1") || strings.Contains(rules, "RA_SIGN_STATE=1")
			row, _, _, err := tab.Row(hex(t, strings.TrimPrefix(at, "0x")))
			if err != nil || row.RASigned != want {
				t.Errorf("%s: %s: signed is %v (%v), want %v", protection, at, row.RASigned, err, want)
			}
			if want {
				signed++
			}
		}
		if signed < 10 || rows-signed < 10 {
			t.Errorf("%s: %d of %d rows are signed", protection, signed, rows)
		}
	}
}
