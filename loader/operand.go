package loader

import (
	"debug/elf"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// operand is where a program finds a whole number. The zero operand is nowhere: see
// constant.
type operand struct {
	size   int // in bytes: 1, 2, 4 or 8; 0: it is constant
	signed bool
	offset int // in the context of the program, unless inMemory

	constant uint64

	// In user memory, at the sum of these, of which 32 bits may be all:
	inMemory     bool
	base, index  register
	indexShift   uint
	displacement uint64
	address32    bool
}

// register is one of those in the context of a uprobe's program, as far as it is used. The
// zero register is none.
type register struct {
	offset int  // in bytes
	bits   int  // 8, 16, 32 or 64; 0: none
	signed bool // which is extended with its sign
}

// number is the operand as the programs have it (bpf/number.h).
func (o *operand) number() gen.SamplerNumber {
	offset := func(r register) uint32 {
		if r.bits == 0 {
			return ^uint32(0)
		}
		return uint32(r.offset)
	}
	n := gen.SamplerNumber{
		Constant: o.constant, Displacement: o.displacement, Offset: uint32(o.offset), Base: offset(o.base), Index: offset(o.index),
		Size: uint8(o.size), UnusedBits: uint8(64 - 8*o.size), IsSigned: o.signed, InMemory: o.inMemory,
		IndexSigned: o.index.signed, IndexShift: uint8(o.indexShift), Address32: o.address32,
	}
	if o.index.bits != 0 {
		n.IndexCut = uint8(64 - o.index.bits)
	}
	return n
}

// splitArguments splits what a note says of a probe's arguments: there is space between
// them, and in those in brackets.
func splitArguments(s string) (arguments []string) {
	begin, inBrackets := 0, false
	for i := range len(s) + 1 {
		switch {
		case i == len(s) || s[i] == ' ' && !inBrackets:
			if i > begin {
				arguments = append(arguments, s[begin:i])
			}
			begin = i + 1
		case s[i] == '[' || s[i] == ']':
			inBrackets = s[i] == '['
		}
	}
	return arguments
}

var (
	argumentText = lazy(`^(-?)(\d{1,2})(f?)@(.+)$`)
	// displacement(base,index,scale), and what a displacement is a sum of
	memoryAMD64      = lazy(`^([^()%]*)(?:\((%\w+)?(?:,(%\w+)?(?:,([1248]))?)?\))?$`)
	displacementTerm = lazy(`^([+-]?)(?:(\d\w*)|([A-Za-z_.][\w.$]*))`)
	// [base, displacement] or [base, index, extension shift]
	memoryARM64 = lazy(`^\[(\w+)(?:, ?#?(-?\d\w*)|, ?(\w+)(?:, ?(lsl|[su]xt[wx])(?: ?#?(\d))?)?)?\]$`)
)

// parseArgument reads where an argument of a static probe is, the probe being at pc: its
// size in bytes, below zero if it is signed, and an operand of the assembler. Errors say
// what the argument is instead of a number that a program finds.
func parseArgument(im *procstate.Image, pc uint64, s string) (o operand, err error) {
	m := argumentText().FindStringSubmatch(s)
	if m == nil {
		return o, errors.New("not SIZE@OPERAND")
	}
	o.signed = m[1] != ""
	o.size, _ = strconv.Atoi(m[2])
	switch {
	case m[3] != "":
		return o, errors.New("a floating-point number, and not a whole one")
	case o.size != 1 && o.size != 2 && o.size != 4 && o.size != 8:
		return o, fmt.Errorf("no number of %d bytes is counted", o.size)
	}
	if im.Arch() == procstate.ARM64 {
		err = o.parseARM64(m[4])
	} else {
		err = o.parseAMD64(im, pc, m[4])
	}
	return o, err
}

// setConstant makes o a constant of its size.
func (o *operand) setConstant(s string) error {
	n, err := parseNumber(s)
	if err != nil {
		return err
	}
	unused := 64 - 8*o.size
	o.constant = n << unused >> unused
	if o.signed {
		o.constant = uint64(int64(n<<unused) >> unused)
	}
	o.size = 0
	return nil
}

// setRegister makes o what is in a register, in its low bytes.
func (o *operand) setRegister(r register) {
	o.offset, o.size = r.offset, min(o.size, r.bits/8)
}

// parseNumber reads a number as the assembler writes it.
func parseNumber(s string) (uint64, error) {
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return uint64(n), nil
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number of 64 bits", s)
	}
	return n, nil
}

// parseAMD64 reads an operand of x86, of 64 or 32 bits, in AT&T's syntax.
func (o *operand) parseAMD64(im *procstate.Image, pc uint64, s string) error {
	width := 8 * im.Arch().AddressWidth
	if number, ok := strings.CutPrefix(s, "$"); ok {
		return o.setConstant(number)
	}
	if name, ok := strings.CutPrefix(s, "%"); ok && !strings.ContainsAny(name, ":(") {
		r, err := registerAMD64(name, width)
		if err == nil {
			o.setRegister(r)
		}
		return err
	}
	m := memoryAMD64().FindStringSubmatch(s)
	if m == nil {
		return errors.New("an operand of no known form")
	}
	var symbol string
	var err error
	if o.displacement, symbol, err = parseDisplacement(m[1]); err != nil {
		return err
	}
	o.inMemory = true
	if symbol != "" {
		at, err := symbolAddress(im, symbol)
		if err != nil {
			return err
		}
		o.displacement += at
	}
	if m[2] == "%rip" && symbol != "" && m[3] == "" && width == 64 {
		o.base = registersAMD64()["rip"]
		o.displacement -= pc
		return nil
	}
	if symbol != "" && im.Type() != elf.ET_EXEC {
		return fmt.Errorf("%s is at another address in each process", symbol)
	}
	if o.base, err = addressRegister(m[2], width); err == nil {
		o.index, err = addressRegister(m[3], width)
	}
	switch {
	case err != nil:
		return err
	case m[1] == "" && o.base.bits == 0 && o.index.bits == 0,
		o.base.bits != 0 && o.index.bits != 0 && o.base.bits != o.index.bits:
		return errors.New("no address")
	}
	o.address32 = width == 32 || max(o.base.bits, o.index.bits) == 32
	if scale, err := strconv.Atoi(m[4]); err == nil {
		o.indexShift = uint(bits.TrailingZeros(uint(scale)))
	}
	return nil
}

// parseDisplacement reads a sum of numbers, and of a symbol, which may be in it once.
func parseDisplacement(s string) (sum uint64, symbol string, err error) {
	for s != "" {
		m := displacementTerm().FindStringSubmatch(s)
		switch {
		case m == nil:
			return 0, "", fmt.Errorf("%q is neither a number nor a symbol", s)
		case m[3] != "" && (symbol != "" || m[1] == "-"):
			return 0, "", errors.New("an address by more than a symbol and a number")
		case m[3] != "":
			symbol = m[3]
		default:
			n, err := parseNumber(m[2])
			if err != nil {
				return 0, "", err
			}
			if m[1] == "-" {
				n = -n
			}
			sum += n
		}
		s = s[len(m[0]):]
		if s != "" && s[0] != '+' && s[0] != '-' {
			return 0, "", fmt.Errorf("%q is neither a number nor a symbol", s)
		}
	}
	return sum, symbol, nil
}

// symbolAddress is the link-time address of a symbol of the file.
func symbolAddress(im *procstate.Image, name string) (uint64, error) {
	var at []uint64
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if string(s.Name) == name && s.Value != 0 && s.Type != elf.STT_TLS && !slices.Contains(at, s.Value) {
			at = append(at, s.Value)
		}
		return len(at) < 2
	})
	switch len(at) {
	case 0:
		return 0, fmt.Errorf("%s names no variable %s", im.Path, name)
	case 1:
		return at[0], nil
	}
	return 0, fmt.Errorf("%s has several variables %s", im.Path, name)
}

// registerAMD64 returns a register of at most width bits by its name.
func registerAMD64(name string, width int) (register, error) {
	r, ok := registersAMD64()[name]
	if !ok || r.bits > width || name == "rip" {
		return register{}, notRegister(name)
	}
	return r, nil
}

func notRegister(name string) error {
	return fmt.Errorf("%s is no register for whole numbers", name)
}

// addressRegister returns a register of an address by its name with a percent sign; none for "".
func addressRegister(name string, width int) (r register, err error) {
	if name == "" {
		return r, nil
	}
	r, err = registerAMD64(name[1:], width)
	if err == nil && r.bits < 32 {
		err = notRegister(name[1:])
	}
	return r, err
}

// registersAMD64 are the registers of x86 with their parts, in the order of struct pt_regs.
var registersAMD64 = sync.OnceValue(func() map[string]register {
	all := map[string]register{"rip": {offset: 8 * 16, bits: 64}}
	for i, name := range strings.Fields("r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di - - - - sp") {
		at := 8 * i
		parts := []string{"r" + name, "e" + name, name, name + "l"}
		switch {
		case name == "-":
			continue
		case name[0] == 'r':
			parts = []string{name, name + "d", name + "w", name + "b"}
		case name[1] == 'x':
			parts[3] = name[:1] + "l"
			all[name[:1]+"h"] = register{offset: at + 1, bits: 8}
		}
		for i, part := range parts {
			all[part] = register{offset: at, bits: 64 >> i}
		}
	}
	return all
})

// parseARM64 reads an operand of AArch64.
func (o *operand) parseARM64(s string) error {
	if number, ok := strings.CutPrefix(s, "#"); ok || s[0] == '-' || s[0] >= '0' && s[0] <= '9' {
		return o.setConstant(number)
	}
	if s == "xzr" || s == "wzr" {
		return o.setConstant("0")
	}
	if s[0] != '[' {
		r, err := registerARM64(s)
		if err == nil {
			o.setRegister(r)
		}
		return err
	}
	m := memoryARM64().FindStringSubmatch(s)
	if m == nil {
		return errors.New("an operand of no known form")
	}
	o.inMemory = true
	var err error
	if o.base, err = registerARM64(m[1]); err == nil && m[3] != "" {
		o.index, err = registerARM64(m[3])
	}
	if err == nil && m[2] != "" {
		o.displacement, err = parseNumber(m[2])
	}
	if err != nil {
		return err
	}
	extension, isWord := m[4], o.index.bits == 32
	o.index.signed = strings.HasPrefix(extension, "s")
	if o.base.bits != 64 || m[3] != "" && isWord != strings.HasSuffix(extension, "w") {
		return errors.New("no address")
	}
	if m[5] != "" {
		o.indexShift = uint(m[5][0] - '0')
	}
	return nil
}

// registerARM64 returns a register of AArch64 by its name.
func registerARM64(name string) (register, error) {
	switch name {
	case "sp":
		return register{offset: 8 * 31, bits: 64}, nil
	case "wsp":
		return register{offset: 8 * 31, bits: 32}, nil
	case "fp":
		name = "x29"
	case "lr":
		name = "x30"
	}
	n, err := strconv.ParseUint(name[1:], 10, 8)
	if err != nil || n > 30 || name[0] != 'x' && name[0] != 'w' {
		return register{}, notRegister(name)
	}
	r := register{offset: 8 * int(n), bits: 64}
	if name[0] == 'w' {
		r.bits = 32
	}
	return r, nil
}
