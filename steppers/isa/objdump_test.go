package isa

import (
	"bufio"
	"debug/elf"
	"encoding/hex"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// disassembled is one line of a disassembler's listing.
type disassembled struct {
	addr uint64
	code []byte
	text string // mnemonic and operands, comments cut
}

// listing runs a disassembler over the executable sections of a file. When
// there is no such file or tool it skips, unless this is CI.
func listing(t *testing.T, tool, pattern string, each func(disassembled), options ...string) {
	t.Helper()
	files, _ := filepath.Glob(pattern)
	path, err := exec.LookPath(tool)
	if err != nil || len(files) == 0 {
		testenv.Lacks(t, "%s or %s is missing", tool, pattern)
	}
	cmd := exec.Command(path, append(options, "-d", "-w", "--show-raw-insn", files[0])...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		f := strings.SplitN(sc.Text(), "\t", 3)
		if len(f) < 3 {
			continue
		}
		addr, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(f[0]), ":"), 16, 64)
		if err != nil {
			continue
		}
		code, err := hex.DecodeString(strings.ReplaceAll(f[1], " ", ""))
		if err != nil {
			continue
		}
		text, _, _ := strings.Cut(f[2], "# ")
		text, _, _ = strings.Cut(text, "<")
		each(disassembled{addr, code, strings.TrimSpace(strings.ReplaceAll(text, "\t", " "))})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// unprefixed cuts the prefixes of an AT&T instruction that objdump shows as
// words of their own.
func unprefixed(text string) []string {
	words := strings.Fields(text)
	for len(words) > 1 {
		switch words[0] {
		case "bnd", "notrack", "repz", "rep", "lock", "cs", "ds", "es", "data16", "repnz", "rex", "fs", "gs", "ss",
			"xacquire", "xrelease", "addr32", "rex.W", "rex.R", "rex.X", "rex.B", "rex.WB", "rex.WR", "rex.WRB", "rex.RB", "rex.WRX", "rex.WX", "rex.WXB", "rex.WRXB", "rex.RX", "rex.RXB", "rex.XB":
			words = words[1:]
			continue
		}
		break
	}
	return words
}

// flowOf is the flow of an x86 instruction by its AT&T mnemonic.
func flowOf(text string) (f Flow, ok bool) {
	words := unprefixed(text)
	m := words[0]
	m, _, _ = strings.Cut(m, ",") // branch hints: jne,pn
	indirect := strings.Contains(text, "*")
	switch {
	case m == "call" && indirect:
		return IndirectCall, true
	case m == "call":
		return Call, true
	case m == "jmp" && indirect:
		return IndirectJump, true
	case m == "jmp":
		return Jump, true
	case m == "ret":
		return Return, true
	case m == "syscall" || m == "sysenter" || m == "int":
		return Syscall, true
	case m == "hlt" || m == "ud2" || m == "ud1" || m == "ud0" || m == "int3" || m == "lret" || m == "iret" || m == "iretq" || m == "lretq" || m == "ljmp" || m == "lcall" || m == "iretl" || m == "lretw" || m == "iretw":
		return Trap, true
	case strings.HasPrefix(m, "rex") || strings.HasPrefix(m, "(bad)") || strings.HasPrefix(m, ".byte"):
		return Next, false
	case strings.HasPrefix(m, "j") || strings.HasPrefix(m, "loop"):
		return CondJump, true
	}
	return Next, true
}

// writesSP reports whether the last operand of an AT&T instruction is SP.
func writesSP(a *procstate.Arch, text string) bool {
	if !strings.HasSuffix(text, "%"+a.RegName(a.SP)) {
		return false
	}
	m, _, _ := strings.Cut(text, " ")
	switch {
	case strings.HasPrefix(m, "cmp"), strings.HasPrefix(m, "test"), strings.HasPrefix(m, "push"), m == "call", m == "jmp", strings.HasPrefix(m, "bt"):
		return false
	}
	return true
}

// Every instruction of whole libraries has the length, flow and effect on the
// stack pointer that objdump shows.
func TestAMD64AgainstObjdump(t *testing.T) {
	for _, name := range []string{"libc.so.6", "libcrypto.so.3", "libm.so.6", "libz.so.1", "ld-linux-x86-64.so.2"} {
		againstObjdump(t, procstate.AMD64, "/lib/x86_64-linux-gnu/"+name)
	}
}

// lib32 is where Debian's packages for x86-64 have libraries for i386.
const lib32 = "/lib32/"

func TestI386AgainstObjdump(t *testing.T) {
	names := []string{"libc.so.6", "libm.so.6", "ld-linux.so.2", "libgcc_s.so.1"}
	if testenv.Long() {
		names = append(names, "libstdc++.so.6", "libasan.so.8")
	}
	for _, name := range names {
		againstObjdump(t, procstate.I386, lib32+name)
	}
}

func againstObjdump(t *testing.T, a *procstate.Arch, path string) {
	t.Run(filepath.Base(path), func(t *testing.T) {
		decode := DecoderFor(a)
		var n, bad int
		complain := func(format string, args ...any) {
			if bad++; bad <= 20 {
				t.Errorf(format, args...)
			}
		}
		listing(t, "objdump", path, func(d disassembled) {
			want, ok := flowOf(d.text)
			if !ok || strings.Contains(d.text, "(bad)") {
				return // not an instruction, by objdump
			}
			switch m, _, _ := strings.Cut(d.text, " "); {
			case a == procstate.AMD64 && (m == "jmpw" || m == "retw" || m == "ljmpw" || m == "callw"):
				return // processors disagree on 16-bit branches; no code has them
			case d.code[0] == 0x9b:
				return // objdump shows fwait and its neighbour as one
			}
			n++
			code := append(d.code, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90)
			var in Inst
			if !decode(code, d.addr, &in) || int(in.Len) != len(d.code) {
				complain("%#x: % x: length %d, objdump %d: %s", d.addr, d.code, in.Len, len(d.code), d.text)
				return
			}
			if in.Flow != want {
				complain("%#x: % x: flow %d, objdump: %s", d.addr, d.code, in.Flow, d.text)
			}
			if got := changesSP(a, &in); writesSP(a, d.text) && !got {
				complain("%#x: % x: does not change SP, objdump: %s", d.addr, d.code, d.text)
			}
			if reg := destination(a, d.text); reg != procstate.NoReg && !writesReg(&in, reg) {
				complain("%#x: % x: does not change %s, objdump: %s", d.addr, d.code, a.RegName(reg), d.text)
			}
			if base, ok := memoryBase(a, d.text); ok && base != in.Base {
				complain("%#x: % x: memory at %s, objdump: %s", d.addr, d.code, a.RegName(in.Base), d.text)
			}
			for reg := range procstate.Reg(a.NumRegs - 1) {
				if reg != a.SP && a.CalleeSaved>>reg&1 != 0 && writesReg(&in, reg) && !mentions(a, d.text, reg) {
					complain("%#x: % x: changes %s, objdump: %s", d.addr, d.code, a.RegName(reg), d.text)
				}
			}
			if in.Flow == Call || in.Flow == Jump || in.Flow == CondJump {
				f := strings.Fields(d.text)
				if target, err := strconv.ParseUint(f[len(f)-1], 16, 64); err == nil && target != in.Target {
					complain("%#x: target %#x, objdump: %s", d.addr, in.Target, d.text)
				}
			}
		})
		if n < 1000 {
			t.Errorf("objdump listed %d instructions", n)
		}
		t.Logf("%d instructions, %d differ", n, bad)
	})
}

// intelStore gives the size in bytes, the base register and the displacement
// of the memory that an instruction in Intel syntax writes first, when that is
// at a register and a displacement.
func intelStore(a *procstate.Arch, text string) (size uint8, base procstate.Reg, disp int64, ok bool) {
	_, operands, _ := strings.Cut(text, " ")
	operand, _, _ := strings.Cut(operands, ",")
	width, place, found := strings.Cut(strings.TrimSpace(operand), " PTR [")
	if !found {
		return 0, 0, 0, false
	}
	for name, n := range map[string]uint8{"BYTE": 1, "WORD": 2, "DWORD": 4, "QWORD": 8, "XMMWORD": 16, "YMMWORD": 32, "ZMMWORD": 64} {
		if width == name {
			size = n
		}
	}
	place, _, _ = strings.Cut(place, "]")
	name, rest := place, ""
	if i := strings.IndexAny(place, "+-"); i >= 0 {
		name, rest = place[:i], place[i:]
	}
	base = registerOf(a, "%"+name)
	if rest != "" {
		n, err := strconv.ParseInt(rest, 0, 64)
		if err != nil {
			return 0, 0, 0, false
		}
		disp = n
	}
	return size, base, disp, size != 0 && base != procstate.NoReg
}

// A store that makes memory unknown has the place and the size that objdump
// shows: a size too large forgets what is saved next to it.
func TestStoresAgainstObjdump(t *testing.T) {
	type library struct {
		arch *procstate.Arch
		path string
	}
	libraries := []library{
		{procstate.AMD64, "/lib/x86_64-linux-gnu/libc.so.6"},
		{procstate.I386, lib32 + "libstdc++.so.6"},
	}
	if testenv.Long() {
		libraries = append(libraries, library{procstate.AMD64, "/lib/x86_64-linux-gnu/libm.so.6"}, library{procstate.I386, lib32 + "libc.so.6"})
	}
	for _, c := range libraries {
		t.Run(c.path, func(t *testing.T) {
			n, bad := 0, 0
			listing(t, "objdump", c.path, func(d disassembled) {
				size, base, disp, ok := intelStore(c.arch, strings.Join(unprefixed(d.text), " "))
				var in Inst
				if !ok || !DecoderFor(c.arch)(append(d.code, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90), d.addr, &in) {
					return
				}
				for _, op := range in.Ops[:in.NumOps] {
					if op.Kind != Scratch || op.Size == 255 {
						continue
					}
					n++
					if op.Size != size || op.Dst != base || op.Imm != disp {
						if bad++; bad <= 20 {
							t.Errorf("%#x: % x: %d bytes at %s%+d, objdump: %s", d.addr, d.code, op.Size, c.arch.RegName(op.Dst), op.Imm, d.text)
						}
					}
				}
			}, "-M", "intel")
			if n < 1000 {
				t.Errorf("%d stores", n)
			}
		})
	}
}

func changesSP(a *procstate.Arch, in *Inst) bool {
	for _, op := range in.Ops[:in.NumOps] {
		if op.Dst == a.SP && op.Kind != Store && op.Kind != Scratch && op.Kind != Compare {
			return true
		}
		if op.Kind == Swap && op.Src == a.SP {
			return true
		}
	}
	return false
}

// registerOf gives the register that an operand of AT&T syntax names, or a
// part of: %bpl, %r12d.
func registerOf(a *procstate.Arch, operand string) procstate.Reg {
	name, ok := strings.CutPrefix(operand, "%")
	if !ok {
		return procstate.NoReg
	}
	if n, err := strconv.Atoi(strings.TrimRight(strings.TrimPrefix(name, "r"), "bwd")); err == nil && name[0] == 'r' && n >= 8 && n < 16 {
		return procstate.Reg(n)
	}
	for reg := range procstate.Reg(8) {
		full := a.RegName(reg)[1:]
		switch name {
		case "r" + full, "e" + full, full, full + "l":
			return reg
		}
		if full[1] == 'x' && (name == full[:1]+"l" || name == full[:1]+"h") {
			return reg
		}
	}
	return procstate.NoReg
}

// destination gives the general register that an AT&T instruction writes as
// its last operand, when that is plain from its mnemonic.
func destination(a *procstate.Arch, text string) procstate.Reg {
	words := unprefixed(text)
	m, operands := words[0], strings.Join(words[1:], " ")
	switch {
	case strings.HasPrefix(m, "cmp") && m != "cmpxchg", strings.HasPrefix(m, "test"), strings.HasPrefix(m, "push"), strings.HasPrefix(m, "call"),
		strings.HasPrefix(m, "jmp"), strings.HasPrefix(m, "nop"), strings.HasPrefix(m, "scas"), text == "xchg   %ax,%ax", m == "bt", m == "btl", m == "btq", strings.HasPrefix(m, "mul"), strings.HasPrefix(m, "div"),
		strings.HasPrefix(m, "imul") && !strings.Contains(operands, ","), strings.HasPrefix(m, "idiv"), m == "out", m == "in", m == "ud0", m == "ud1", m == "vmwrite", m == "lfs", m == "lgs", m == "lss", m == "incsspq", m == "incsspd", m == "notrack":
		return procstate.NoReg
	}
	return registerOf(a, operands[strings.LastIndex(operands, ",")+1:])
}

// memoryBase returns the base register of the memory operand of an AT&T
// instruction, NoReg when it has none. ok is false where the syntax does not
// tell: operands that the instruction implies, 32-bit addresses on x86-64, and
// memory of a thread on i386.
func memoryBase(a *procstate.Arch, text string) (base procstate.Reg, ok bool) {
	m := unprefixed(text)[0]
	_, operand, found := strings.Cut(text, "(%")
	if strings.Contains(text, "s:(%") || a == procstate.I386 && strings.Contains(text, "%gs:") || a == procstate.AMD64 && strings.HasPrefix(operand, "e") || strings.HasPrefix(operand, "r") && strings.Contains(operand, "d)") {
		return procstate.NoReg, false
	}
	if !found || strings.HasPrefix(m, "lea") && m != "leave" || strings.HasPrefix(m, "nop") {
		return procstate.NoReg, true
	}
	name, _, _ := strings.Cut(operand, ",")
	name, _, _ = strings.Cut(name, ")")
	if name == "rip" {
		return procstate.NoReg, true
	}
	return a.RegByName(name), true
}

// mentions reports whether an instruction names a register, or writes it
// without naming it.
func mentions(a *procstate.Arch, text string, reg procstate.Reg) bool {
	switch unprefixed(text)[0] {
	case "leave", "leavew", "enter":
		return reg == a.FP
	case "cpuid":
		return reg == 3
	}
	for _, operand := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,()", r) }) {
		if registerOf(a, operand) == reg {
			return true
		}
	}
	return false
}

func writesReg(in *Inst, reg procstate.Reg) bool {
	for _, op := range in.Ops[:in.NumOps] {
		switch op.Kind {
		case Store, StoreIndexed, Scratch, Compare:
			continue
		}
		if op.Dst == reg || op.Kind == Swap && op.Src == reg {
			return true
		}
	}
	return false
}

// text reads the first bytes of a file's .text.
func text(t testing.TB, path string) (code []byte, addr uint64) {
	f, err := elf.Open(path)
	if err != nil {
		testenv.Lacks(t, "%v", err)
	}
	defer f.Close()
	s := f.Section(".text")
	code, err = s.Data()
	if err != nil {
		t.Fatal(err)
	}
	return code, s.Addr
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	code, addr := text(t, "/proc/self/exe")
	dec := DecoderFor(procstate.AMD64)
	if procstate.HostArch() == procstate.ARM64 {
		dec = DecodeARM64
	}
	var in Inst
	if n := testing.AllocsPerRun(10, func() {
		for i := 0; i < 1000; {
			if !dec(code[i:], addr+uint64(i), &in) {
				i++
				continue
			}
			i += int(in.Len)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x48, 0x83, 0xec, 0x08})
	f.Add([]byte{0x62, 0xf1, 0x7c, 0x48, 0x28, 0x05, 0, 0, 0, 0})
	f.Add([]byte{0xc4, 0xe2, 0x7b, 0xf6, 0xc0})
	f.Add([]byte{0xc8, 0x10, 0x00, 0x01})
	f.Add([]byte{0xfd, 0x7b, 0xbf, 0xa9})
	f.Fuzz(func(t *testing.T, code []byte) {
		var in Inst
		for _, dec := range []Decoder{DecodeAMD64, DecodeARM64, DecodeI386} {
			if dec(code, 0x1000, &in) && (in.Len == 0 || int(in.Len) > len(code) || in.NumOps > MaxOps) {
				t.Errorf("% x: length %d, %d operations", code, in.Len, in.NumOps)
			}
		}
	})
}

func BenchmarkDecodeAMD64(b *testing.B) {
	code, addr := text(b, "/lib/x86_64-linux-gnu/libc.so.6")
	b.SetBytes(int64(len(code)))
	var in Inst
	for range b.N {
		for i := 0; i < len(code); {
			if !DecodeAMD64(code[i:], addr+uint64(i), &in) {
				i++
				continue
			}
			i += int(in.Len)
		}
	}
}
