package dataflow

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
)

// cfiRow is a row of call frame information as readelf prints it: strings
// such as "rsp+16", "exp", "c-24", "u", by column.
type cfiRow struct {
	vaddr uint64
	cols  map[string]string
}

// cfiFunc is one FDE.
type cfiFunc struct {
	lo, hi uint64
	rows   []cfiRow
	signal bool

	resolver bool // the linkage table jumps there
}

// keepsRA reports whether a row has the return address at that distance from
// the CFA.
func (fn *cfiFunc) keepsRA(off int32) bool {
	for _, row := range fn.rows {
		if row.cols["ra"] == fmt.Sprintf("c%+d", off) {
			return true
		}
	}
	return false
}

// isResolver reports whether the linkage table of an AArch64 program jumps to a
// function: it finds its own entry by X16. The table pushes two words before
// that, X16 and the return address, which the CFI of glibc leaves out.
func (c *Code) isResolver(fn *cfiFunc) bool {
	const x16 = 16
	if c.arch != procstate.ARM64 {
		return false
	}
	var in isa.Inst
	code := c.read(fn.lo, fn.hi)
	for i := 0; i+4 <= len(code) && c.dec(code[i:], fn.lo+uint64(i), &in) && !in.Ends(); i += 4 {
		for _, op := range in.Ops[:in.NumOps] {
			switch {
			case op.Kind == isa.Load && op.Src == x16:
				return true
			case op.Kind != isa.Store && op.Dst == x16:
				return false
			}
		}
	}
	return false
}

// readCFI has readelf interpret the call frame information of a file.
func readCFI(t testing.TB, path string) []cfiFunc {
	t.Helper()
	cmd := exec.Command("readelf", "-W", "--debug-dump=frames-interp", path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var funcs []cfiFunc
	var names []string
	inFDE, signal, cie := false, false, ""
	signals, initial := map[string]bool{}, map[string]map[string]string{}
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		f := strings.Fields(line)
		switch {
		case len(f) > 3 && f[3] == "CIE":
			inFDE, cie = false, f[0]
			signals[cie] = strings.Contains(line, "zRS") || strings.Contains(line, "zPLRS")
		case len(f) > 5 && f[3] == "FDE":
			inFDE = true
			cie = strings.TrimPrefix(f[4], "cie=")
			signal = signals[cie]
			lo, hi, _ := strings.Cut(strings.TrimPrefix(f[5], "pc="), "..")
			l, _ := strconv.ParseUint(lo, 16, 64)
			h, _ := strconv.ParseUint(hi, 16, 64)
			funcs = append(funcs, cfiFunc{lo: l, hi: h, signal: signal})
			if cols := initial[cie]; cols != nil { // until, or unless, it has rows of its own
				funcs[len(funcs)-1].rows = []cfiRow{{l, cols}}
			}
		case len(f) > 1 && f[0] == "LOC":
			names = f[1:]
		case len(f) == len(names)+1:
			v, err := strconv.ParseUint(f[0], 16, 64)
			if err != nil {
				continue
			}
			row := cfiRow{v, map[string]string{}}
			for i, n := range names {
				row.cols[n] = f[i+1]
			}
			if !inFDE {
				initial[cie] = row.cols
				continue
			}
			fn := &funcs[len(funcs)-1]
			fn.rows = append(fn.rows, row)
		}
	}
	_ = cmd.Wait() // readelf warns of what it finds odd by its exit status
	return funcs
}

// hiding gives a file with the named sections renamed and its program header
// for unwind tables turned off: stripped of what it tells of functions.
func hiding(t testing.TB, path string, names ...string) *procstate.Image {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b = []byte(strings.ReplaceAll(string(b), "\x00"+n+"\x00", "\x00"+strings.Repeat("-", len(n))+"\x00"))
	}
	phoff, phnum, size := int(b[32])|int(b[33])<<8, int(b[56]), 56
	if b[4] == 1 { // 32 bits
		phoff, phnum, size = int(b[28])|int(b[29])<<8, int(b[44]), 32
	}
	for i := range phnum {
		p := b[phoff+size*i:]
		if string(p[:4]) == "\x50\xe5\x74\x64" {
			copy(p, "\x00\x00\x00\x00")
		}
	}
	im, err := procstate.NewImageBytes(b, path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// tally counts how rules compare with call frame information.
type tally struct {
	insts, exact, none, wrong, savedMissing, savedWrong int
	shown                                               int
}

func (y *tally) String() string {
	pct := func(n int) string { return fmt.Sprintf("%.3f %%", 100*float64(n)/float64(max(y.insts, 1))) }
	return fmt.Sprintf("%d instructions: exact %s, none %s, wrong %s; saved registers missing %s, wrong %s",
		y.insts, pct(y.exact), pct(y.none), pct(y.wrong), pct(y.savedMissing), pct(y.savedWrong))
}

// compareWithCFI compares the rule of every instruction of a file that has
// call frame information of a kind that can be compared.
func compareWithCFI(t testing.TB, path string, im *procstate.Image, show int) *tally {
	c, err := New(im)
	if err != nil {
		t.Fatal(err)
	}
	return compareRulesWithCFI(t, path, c, show, func(_ *cfiFunc, vaddr uint64) (*Rule, bool) { return c.RuleAt(vaddr) })
}

// compareRulesWithCFI is compareWithCFI for what ruleAt returns. c is of the same file.
func compareRulesWithCFI(t testing.TB, path string, c *Code, show int, ruleAt func(*cfiFunc, uint64) (*Rule, bool)) *tally {
	regNames := map[procstate.Reg]string{}
	for r := range procstate.Reg(c.arch.NumRegs) {
		regNames[r] = c.arch.RegName(r)
	}
	y := &tally{}
	var in isa.Inst
	for _, fn := range readCFI(t, path) {
		if fn.signal {
			continue
		}
		fn.resolver = c.isResolver(&fn)
		code := c.read(fn.lo, fn.hi)
		if len(fn.rows) == 1 && movesStack(c, code, fn.lo) {
			continue
		}
		ri := 0
		for at := fn.lo; at < fn.hi; {
			for ri+1 < len(fn.rows) && fn.rows[ri+1].vaddr <= at {
				ri++
			}
			if !c.dec(code[at-fn.lo:], at, &in) {
				break
			}
			padding := isPadding(code[at-fn.lo:at-fn.lo+uint64(in.Len)], &in)
			if ri < len(fn.rows) && (fn.rows[ri].cols["ra"] != "u" || c.arch == procstate.ARM64) && !padding {
				cfa := fn.rows[ri].cols["CFA"]
				y.insts++
				r, ok := ruleAt(&fn, at)
				what := ""
				switch {
				case !ok:
					y.none++
					what = "none"
				case cfa == "exp" || r.Deref:
					y.exact++ // cannot be told from here
				default:
					if y.equal(c, r, &fn, fn.rows[ri].cols, regNames) {
						y.exact++
					} else {
						y.wrong++
						what = fmt.Sprintf("wrong: %s%+d ra %+v", regNames[r.Reg], r.Off, r.RA)
					}
				}
				if what != "" && y.shown < show {
					y.shown++
					t.Logf("%#x (function %#x-%#x): CFI %v: %s", at, fn.lo, fn.hi, fn.rows[ri].cols, what)
				}
			}
			at += uint64(in.Len)
		}
	}
	return y
}

// movesStack reports whether code changes SP other than by calls. Hand-written
// functions of libc do that whose call frame information has a single row.
func movesStack(c *Code, code []byte, at uint64) bool {
	var in isa.Inst
	for len(code) > 0 && c.dec(code, at, &in) {
		for _, op := range in.Ops[:in.NumOps] {
			if op.Dst == c.arch.SP && op.Kind == isa.Set {
				return true
			}
		}
		code, at = code[in.Len:], at+uint64(in.Len)
	}
	return false
}

// equal compares a rule with a row. Where they name different registers for
// the CFA, the analysis is asked for the difference of the two.
func (y *tally) equal(c *Code, r *Rule, fn *cfiFunc, cols map[string]string, names map[procstate.Reg]string) bool {
	reg, off, _ := strings.Cut(cols["CFA"], "+")
	n, _ := strconv.Atoi(off)
	if fn.resolver {
		popped := r.Off == 0 && r.RA.Kind == Same
		return reg != names[r.Reg] || popped || r.Off == int32(n+16) && r.RA == (Place{Kind: AtCFA, Off: -8})
	}
	if reg == names[r.Reg] && int32(n) != r.Off {
		return false
	}
	if reg != names[r.Reg] {
		return true // compared by the oracle, not here
	}
	switch ra := cols["ra"]; {
	case strings.HasPrefix(ra, "c"):
		if n, _ := strconv.Atoi(ra[1:]); r.RA.Kind != AtCFA || r.RA.Off != int32(n) {
			return false
		}
	case c.arch.LR != procstate.NoReg && (ra == "" || ra == "u"): // in its register
		// It may be in both: CFI tells some instructions later that it was stored.
		if r.RA.Kind == AtCFA && !fn.keepsRA(r.RA.Off) {
			return false
		}
	}
	for i, sr := range SavedRegs(c.arch) {
		want, ok := cols[names[sr]]
		p := r.Saved[i]
		switch {
		case !ok || want == "u" || want == "s":
			continue // CFI leaves out what it takes to be unchanged
		case strings.HasPrefix(want, "c"):
			n, _ := strconv.Atoi(want[1:])
			if p.Kind == Unknown {
				y.savedMissing++
			} else if p.Kind == AtCFA && p.Off != int32(n) {
				y.savedWrong++
			}
		}
	}
	return true
}

// The rules of whole libraries, with unwind tables and symbols hidden, agree
// with the call frame information that they were compiled with. What CFI has
// wrong, and code that only tables of exceptions lead to, is in the margins.
func TestAgainstCFI(t *testing.T) {
	testenv.Needs(t, "readelf")
	type library struct {
		path         string
		exact, wrong float64 // percent: at least, at most
	}
	libraries := []library{
		{"/lib/x86_64-linux-gnu/libc.so.6", 99.95, 0.01},
		{"/lib/x86_64-linux-gnu/libm.so.6", 99.8, 0.01},
		{"/lib/x86_64-linux-gnu/libz.so.1", 99.9, 0.01},
		{"/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", 99.9, 0.01},
		{"/lib/x86_64-linux-gnu/libstdc++.so.6", 99.8, 0.05},
		{"/lib/x86_64-linux-gnu/libcrypto.so.3", 99.8, 0.01},
		{"/usr/aarch64-linux-gnu/lib/libc.so.6", 99.9, 0.01},
		{"/usr/aarch64-linux-gnu/lib/libm.so.6", 99.9, 0.01},
		{"/usr/aarch64-linux-gnu/lib/libgcc_s.so.1", 99.9, 0.01},
		{"/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1", 99.8, 0.01},
		{"/lib32/libc.so.6", 98.6, 1.36}, // the CFI of its string functions is wrong
		{"/lib32/libm.so.6", 99.99, 0.01},
		{"/lib32/libgcc_s.so.1", 99.9, 0.04},
		{"/lib32/ld-linux.so.2", 99.3, 0.08},
	}
	if testenv.Long() {
		libraries = append(libraries, library{"/usr/aarch64-linux-gnu/lib/libstdc++.so.6", 99.3, 0.01}, library{"/lib32/libstdc++.so.6", 96.5, 0.05})
	}
	for _, c := range libraries {
		t.Run(c.path, func(t *testing.T) {
			if _, err := os.Stat(c.path); err != nil {
				testenv.Lacks(t, "%v", err)
			}
			y := compareWithCFI(t, c.path, hiding(t, c.path, ".symtab", ".dynsym", ".eh_frame", ".eh_frame_hdr", ".debug_frame"), 0)
			if n := float64(y.insts) / 100; y.insts < 1000 || float64(y.exact)/n < c.exact || float64(y.wrong)/n > c.wrong {
				t.Error(y)
			}
			t.Log(y)
		})
	}
}
