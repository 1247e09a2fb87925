package unwind

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// The truth of these tests is readelf --debug-dump=frames-interp, which has an
// interpreter of its own: every row of every FDE of real files is compared,
// with all its columns.

// interpRow is a row as readelf prints it: rules by column name.
type interpRow struct {
	loc   uint64
	cells []string
}

// interpFDE is the table of an FDE.
type interpFDE struct {
	debug      bool // of .debug_frame
	start, end uint64
	columns    []string // after LOC: CFA, registers, ra
	rows       []interpRow
}

// registerCell is the rule DW_CFA_register in a row: "r9 (r9)", and "r1 (rdx)".
var registerCell = regexp.MustCompile(`\br\d+ \((\w+)\)`)

// readInterp calls f for each FDE of readelf's output.
func readInterp(t *testing.T, r io.Reader, f func(*interpFDE)) {
	t.Helper()
	var cur *interpFDE
	debug := false
	flush := func() {
		if cur != nil {
			f(cur)
		}
		cur = nil
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		fields := strings.Fields(registerCell.ReplaceAllString(line, "$1"))
		switch {
		case strings.HasPrefix(line, "Contents of the "):
			flush()
			debug = strings.Contains(line, "debug_frame")
		case len(fields) == 0 || strings.Contains(line, " CIE ") || strings.Contains(line, "ZERO terminator"):
			flush()
		case strings.Contains(line, " FDE "):
			flush()
			_, pc, ok := strings.Cut(line, " pc=")
			lo, hi, ok2 := strings.Cut(pc, "..")
			if !ok || !ok2 {
				t.Fatalf("readelf: %q", line)
			}
			cur = &interpFDE{debug: debug, start: hex(t, lo), end: hex(t, strings.Fields(hi)[0])}
		case fields[0] == "LOC":
			if cur != nil {
				cur.columns = fields[1:]
			}
		case cur != nil && cur.columns != nil && len(fields) == 1+len(cur.columns):
			cur.rows = append(cur.rows, interpRow{hex(t, fields[0]), fields[1:]})
		case cur != nil:
			t.Fatalf("readelf: %q", line)
		}
	}
	flush()
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
}

func hex(t *testing.T, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatalf("readelf: %v", err)
	}
	return v
}

// cell renders a rule as readelf does. Its "u" is both of undefined and
// unspecified.
func cell(a *procstate.Arch, r RegRule) string {
	switch r.Kind {
	case SameValue:
		return "s"
	case AtOffset:
		return fmt.Sprintf("c%+d", r.Offset)
	case ValOffset:
		return fmt.Sprintf("v%+d", r.Offset)
	case InReg:
		return a.RegName(r.Reg)
	case AtExpression:
		return "exp"
	case ValExpression:
		return "vexp"
	}
	return "u"
}

func cfaCell(a *procstate.Arch, r RegRule) string {
	if r.Kind == ValExpression {
		return "exp"
	}
	return fmt.Sprintf("%s%+d", a.RegName(r.Reg), r.Offset)
}

// compareInterp compares the rows of an FDE with readelf's, and the compiled
// rules with the rows, which are read through file. It returns the number of rows.
func compareInterp(t *testing.T, tab *Table, file *window, want *interpFDE) int {
	t.Helper()
	a := tab.img.Arch()
	var src *source
	for _, s := range tab.sources {
		if s.debug == want.debug {
			src = s
		}
	}
	var f fde
	tab.file = file
	if why := src.find(want.start, &f); why != ReasonNone {
		t.Errorf("%#x: %v", want.start, why)
		return 0
	}
	if f.start != want.start || f.end != want.end {
		t.Errorf("FDE [%#x, %#x), readelf has [%#x, %#x)", f.start, f.end, want.start, want.end)
		return 0
	}
	var p program
	p.start(a, &f)
	n := 0
	next := 0 // the first of want.rows that is past the row
	for more := true; more && p.loc < f.end; n++ {
		var end uint64
		var why Reason
		end, more, why = p.next()
		if why != ReasonNone {
			t.Errorf("%#x: %v", p.loc, why)
			return n
		}
		if !more {
			end = f.end
		}
		at := next - 1
		for next < len(want.rows) && want.rows[next].loc <= p.loc {
			at = next
			next++
		}
		if at >= 0 {
			compareRow(t, &p.row, a, want, &want.rows[at])
		} else if len(f.instructions) > 0 && p.row != f.cie.initial {
			t.Errorf("%#x: readelf has no row", p.loc)
		}
		if next < len(want.rows) && want.rows[next].loc < end {
			t.Errorf("%#x: no row begins here", want.rows[next].loc)
			next++
		}
		compareRule(t, tab, &p, end, p.loc == f.start)
		p.loc = end
	}
	return n
}

func compareRow(t *testing.T, row *Row, a *procstate.Arch, want *interpFDE, w *interpRow) {
	t.Helper()
	seen := make(map[int]bool)
	for i, col := range want.columns {
		var got string
		reg := a.RegByName(col)
		switch {
		case col == "CFA":
			got = cfaCell(a, row.CFA)
		case col == "ra":
			got = cell(a, row.Regs[row.RA])
			seen[int(row.RA)] = true
		case reg != procstate.NoReg:
			got = cell(a, row.Regs[reg])
			seen[int(reg)] = true
		default:
			continue // a column that is not tracked
		}
		if got != w.cells[i] {
			t.Errorf("%#x: %s is %s, readelf has %s", w.loc, col, got, w.cells[i])
		}
	}
	for i, r := range row.Regs {
		if !seen[i] && r.Kind != Unspecified {
			t.Errorf("%#x: column %d is %s, readelf has none", w.loc, i, cell(a, r))
		}
	}
}

// compareRule checks what is compiled for the present row of p: the row, with a
// CFA that leaves out what the linkage table pushes mended. first tells that
// the row is the first of an FDE.
func compareRule(t *testing.T, tab *Table, p *program, end uint64, first bool) {
	t.Helper()
	a := tab.img.Arch()
	if end == p.loc || len(p.bytesOf(p.row.CFA)) == 11 {
		return // linkage tables have a test of their own
	}
	r := tab.Rule(p.loc)
	if r.why != ReasonNone {
		t.Errorf("%#x: rule: %v", p.loc, r.why)
		return
	}
	if last := tab.Rule(end - 1); last != r {
		t.Errorf("%#x: another rule at the end of the row, %#x", p.loc, end-1)
	}
	want := p.ownRow()
	if first {
		want.CFA.Offset += p.pushedBefore(end)
	}
	want.raiseCFA(want.pushed(a))
	if r.row != nil {
		if *r.row != want {
			t.Errorf("%#x: rule of another row", p.loc)
		}
		return
	}
	if got := expand(r, p, &want); got != want {
		t.Errorf("%#x: rule says\n%s\nthe row is\n%s", p.loc, describe(a, &got), describe(a, &want))
	}
}

// describe renders a row for messages.
func describe(a *procstate.Arch, row *Row) string {
	s := "CFA " + cfaCell(a, row.CFA)
	for i, r := range row.Regs {
		if r.Kind != Unspecified {
			s += fmt.Sprintf(", %d %s", i, cell(a, r))
		}
	}
	return s + fmt.Sprintf(", RA in %d, %+v code %x", row.RA, struct{ signal, signed bool }{row.Signal, row.RASigned}, row.code)
}

// sleb encodes a signed LEB128 number.
func sleb(v int64) (s string) {
	for {
		b := byte(v & 0x7f)
		v >>= 7
		if v == 0 && b < 0x40 || v == -1 && b >= 0x40 {
			return s + string([]byte{b})
		}
		s += string([]byte{b | 0x80})
	}
}

// expand makes the row that a compact rule stands for. What has several
// spellings is spelled as in like.
func expand(r *Rule, p *program, like *Row) Row {
	a := p.arch
	row := Row{RA: like.RA, Signal: r.flags&ruleSignal != 0, RASigned: r.flags&ruleRASigned != 0, code: like.code}
	row.CFA = RegRule{Kind: InReg, Reg: r.cfaReg, Offset: int64(r.cfaOff)}
	if r.flags&ruleDeref != 0 {
		code := string([]byte{opBreg0 + byte(r.cfaReg)}) + sleb(int64(r.cfaOff)) + string([]byte{opDeref})
		if r.cfaAdd != 0 {
			code += string(binary.AppendUvarint([]byte{opPlusUconst}, uint64(r.cfaAdd)))
		}
		if like.Expression(like.CFA) == code {
			row.CFA = like.CFA
		}
	}
	ra := &row.Regs[row.RA]
	switch {
	case r.flags&ruleRAUndefined != 0:
		ra.Kind = Undefined
	case r.flags&ruleRAInReg != 0:
		if k := like.Regs[r.raReg].Kind; k == SameValue || k == Unspecified {
			ra.Kind = k
		}
	default:
		*ra = RegRule{Kind: AtOffset, Offset: int64(r.raOff)}
	}
	for i := range a.NumRegs {
		k := like.Regs[i].Kind
		if i == int(a.SP) && k == ValOffset || r.carry>>i&1 != 0 && k == SameValue || a.CalleeSaved>>i&1 == 0 && k == Undefined && i != int(row.RA) {
			row.Regs[i].Kind = k
		}
	}
	for i, reg := range r.reg[:r.n] {
		row.Regs[reg] = RegRule{Kind: AtOffset, Offset: int64(r.off[i])}
		code := string([]byte{opBreg0 + byte(r.cfaReg)}) + sleb(int64(r.off[i]))
		if r.flags&ruleSavedByReg != 0 && like.Regs[reg].Kind == AtExpression && like.Expression(like.Regs[reg]) == code {
			row.Regs[reg] = like.Regs[reg]
		}
	}
	return row
}

func openTestImage(t testing.TB, path string) *procstate.Image {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	images := procstate.NewImages(0)
	t.Cleanup(func() { images.Close() })
	img, err := images.Open(&procstate.FileRef{Path: path, Dev: st.Dev, Inode: st.Ino})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// compareFile compares all FDEs of a file and requires at least minRows.
func compareFile(t *testing.T, path string, minRows int) {
	t.Helper()
	img := openTestImage(t, path)
	tab := NewTable(img)
	file := new(window)
	tab.mu.Lock()
	tab.file = file
	for tab.openNext() {
	}
	tab.mu.Unlock()
	testenv.Needs(t, "readelf")
	cmd := exec.Command("readelf", "--wide", "--debug-dump=frames-interp", path)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	fdes, rows := 0, 0
	seen := make(map[uint64]bool)
	readInterp(t, out, func(f *interpFDE) {
		if f.start == f.end || t.Failed() {
			return
		}
		if f.debug && (f.start == 0 || seen[f.start]) {
			return // of a function the linker removed, or of one .eh_frame has
		}
		seen[f.start] = true
		fdes++
		rows += compareInterp(t, tab, file, f)
	})
	if rows < minRows {
		t.Errorf("%s: compared %d rows of %d FDEs, expected at least %d", path, rows, fdes, minRows)
	}
	k := &tab.kept
	kept, pieces := k.counts()
	whole := 0
	for _, r := range k.rules {
		if r.row != nil {
			whole++
		}
	}
	t.Logf("%s: %d FDEs, %d rows, %d rules (%d whole), %d bytes for %d kept rows in %d pieces", filepath.Base(path),
		fdes, rows, len(k.rules), whole, tab.size(), kept, pieces)
}

// libraryPath finds a library of the distribution.
func libraryPath(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		if m, _ := filepath.Glob(filepath.Join(dir, name)); len(m) > 0 {
			slices.Sort(m)
			return m[0]
		}
	}
	testenv.Lacks(t, "this machine has no %s", name)
	return ""
}

func TestReadelfLibraries(t *testing.T) {
	for _, c := range []struct {
		name string
		rows int
	}{
		{"libc.so.6", 20000},
		{"ld-linux-x86-64.so.2", 2000},
		{"libm.so.6", 2000},
		{"libstdc++.so.6", 10000},
		{"libgcc_s.so.1", 500},
		{"libcrypto.so.[0-9]", 20000},
	} {
		t.Run(c.name, func(t *testing.T) { t.Parallel(); compareFile(t, libraryPath(t, c.name), c.rows) })
	}
}
