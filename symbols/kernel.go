package symbols

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
)

// ErrRestricted is returned where the kernel hides its addresses.
var ErrRestricted = errors.New("kernel addresses are hidden: they need root or cap_syslog, and kernel.kptr_restrict below 2")

// maxKallsyms bounds /proc/kallsyms; real ones have some 10 MB.
const maxKallsyms = 256 << 20

// Room for the symbols of a usual kernel, and for their names in bytes.
const (
	usualSymbols = 1 << 17
	usualNames   = 3 << 20
)

// maxLastSymbol bounds a symbol that is followed by one of another module, as
// its size is not told.
const maxLastSymbol = 64 << 10

// Kernel names kernel addresses from /proc/kallsyms, all of which it reads: the
// kernel proper, its modules, and BPF programs. Where the kernel can be asked for
// single ones, package loader's KernelNames does that. It is a snapshot and
// immutable, but for the sizes of BPF programs, which it asks for at the first of
// their addresses; these have names only where they are told, which takes
// CAP_SYS_ADMIN.
type Kernel struct {
	addrs   []uint64
	names   []uint32 // offset in blob; 0 for a boundary that is no code
	modules []uint16 // index in modnames
	blob    []byte   // names, each ended by NUL; blob[0] is NUL

	modnames []string // modnames[0] is "", the kernel proper

	bpf *bpfFunctions // nil when the symbols are not of this kernel
}

// KernelSymbol is what Kernel knows of an address.
type KernelSymbol struct {
	Name   string
	Module string // "" for the kernel proper, "bpf" for BPF programs
	Offset uint64 // from the start of the function
}

// OpenKernel reads /proc/kallsyms. The error wraps ErrRestricted when all
// addresses are hidden.
func OpenKernel() (*Kernel, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	k, err := parseKallsyms(f)
	if err == nil {
		k.bpf = new(bpfFunctions)
	}
	return k, err
}

// ReadKernel reads a copy of a /proc/kallsyms, perhaps another kernel's.
func ReadKernel(r io.Reader) (*Kernel, error) { return parseKallsyms(r) }

// parseKallsyms reads a file in the format of /proc/kallsyms: on each line an
// address in hex, a type letter, a name, and perhaps a [module].
func parseKallsyms(r io.Reader) (*Kernel, error) {
	k := &Kernel{
		addrs: make([]uint64, 0, usualSymbols), names: make([]uint32, 0, usualSymbols), modules: make([]uint16, 0, usualSymbols),
		blob: append(make([]byte, 0, usualNames), 0), modnames: []string{""},
	}
	mods := map[string]uint16{"": 0}
	r = io.LimitReader(r, maxKallsyms)
	buf := make([]byte, 1<<16)
	have, symbols := 0, 0
	for {
		n, err := r.Read(buf[have:])
		have += n
		rest := buf[:have]
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			symbols += k.addLine(rest[:i], mods)
			rest = rest[i+1:]
		}
		if len(rest) == len(buf) {
			rest = rest[:0] // no line is that long
		}
		have = copy(buf, rest)
		if err == io.EOF {
			symbols += k.addLine(buf[:have], mods)
			break
		}
		if err != nil {
			return nil, fmt.Errorf("kallsyms: %w", err)
		}
	}
	if len(k.addrs) == 0 {
		if symbols > 0 {
			return nil, fmt.Errorf("kallsyms: %w", ErrRestricted)
		}
		return nil, errors.New("kallsyms: no symbols")
	}
	k.sort()
	return k, nil
}

// addLine adds the symbol of a line and returns 1, or 0 when it has none.
func (k *Kernel) addLine(line []byte, mods map[string]uint16) int {
	addr, n := hexPrefix(line)
	if n == 0 || len(line) < n+4 || line[n] != ' ' || line[n+2] != ' ' {
		return 0
	}
	typ, name := line[n+1], line[n+3:]
	if addr == 0 {
		return 1
	}
	var mod uint16
	if name[len(name)-1] == ']' {
		if i := bytes.IndexByte(name, '\t'); i >= 0 {
			mod, name = k.module(bytes.Trim(name[i+1:], "[]"), mods), name[:i]
		}
	}
	code := typ|0x20 == 't' || typ|0x20 == 'w'
	if last := len(k.addrs) - 1; !code && mod == 0 && last >= 0 && k.names[last] == 0 && k.addrs[last] <= addr {
		return 1 // the kernel's own are in order: one boundary is enough
	}
	var off uint32
	if name = nulTerminated(name); code && len(name) > 0 && len(k.blob)+len(name) < 1<<31 {
		off = uint32(len(k.blob))
		k.blob = append(append(k.blob, name...), 0)
	}
	k.addrs = append(k.addrs, addr)
	k.names = append(k.names, off)
	k.modules = append(k.modules, mod)
	return 1
}

// module returns the number of a module.
func (k *Kernel) module(name []byte, mods map[string]uint16) uint16 {
	if last := len(k.modnames) - 1; k.modnames[last] == string(name) {
		return uint16(last)
	}
	mod, ok := mods[string(name)]
	if !ok && len(k.modnames) < 1<<16-1 {
		mod = uint16(len(k.modnames))
		k.modnames = append(k.modnames, string(name))
		mods[string(name)] = mod
	}
	return mod
}

// hexPrefix reads the hex number that b starts with.
func hexPrefix(b []byte) (v uint64, n int) {
	for n < len(b) && n < 16 {
		c := b[n]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return v, n
		}
		v = v<<4 | uint64(c)
		n++
	}
	return v, n
}

// sort puts the symbols in order of address; at one address the last is the
// one that names it.
func (k *Kernel) sort() {
	order := make([]uint32, len(k.addrs))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(x, y uint32) int {
		if c := cmp.Compare(k.addrs[x], k.addrs[y]); c != 0 {
			return c
		}
		return k.compareNames(x, y)
	})
	out := Kernel{blob: k.blob, modnames: k.modnames}
	out.addrs = make([]uint64, 0, len(order))
	out.names = make([]uint32, 0, len(order))
	out.modules = make([]uint16, 0, len(order))
	for i, o := range order {
		if i+1 < len(order) && k.addrs[order[i+1]] == k.addrs[o] {
			continue
		}
		out.addrs = append(out.addrs, k.addrs[o])
		out.names = append(out.names, k.names[o])
		out.modules = append(out.modules, k.modules[o])
	}
	*k = out
}

// compareNames orders symbols at one address, the better name last: code
// after boundaries, fewer leading underscores after more, shorter after longer.
func (k *Kernel) compareNames(x, y uint32) int {
	a, b := k.nameBytes(x), k.nameBytes(y)
	if c := cmp.Compare(min(len(a), 1), min(len(b), 1)); c != 0 {
		return c
	}
	if c := -cmp.Compare(underscores(a), underscores(b)); c != 0 {
		return c
	}
	if c := -cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return -bytes.Compare(a, b)
}

func (k *Kernel) nameBytes(i uint32) []byte {
	b := k.blob[k.names[i]:]
	return b[:bytes.IndexByte(b, 0)]
}

// Lookup names a kernel address; ok is false when no code is known there.
func (k *Kernel) Lookup(addr uint64) (s KernelSymbol, ok bool) {
	i := sort.Search(len(k.addrs), func(i int) bool { return k.addrs[i] > addr }) - 1
	if i < 0 || k.names[i] == 0 {
		return s, false
	}
	off := addr - k.addrs[i]
	if (i+1 == len(k.addrs) || k.modules[i+1] != k.modules[i]) && off >= maxLastSymbol {
		return s, false
	}
	s = KernelSymbol{string(k.nameBytes(uint32(i))), k.modnames[k.modules[i]], off}
	if k.bpf != nil && s.Module == "bpf" && !k.bpf.holds(k.addrs[i], s.Name, off) {
		return KernelSymbol{}, false
	}
	return s, true
}
