package symbols

import (
	"cmp"
	"fmt"
	"math/rand"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

// name returns the system name of the function at vaddr, or "".
func name(s *Symbolizer, t testing.TB, path string) func(vaddr uint64) string {
	im := open(t, path)
	return func(vaddr uint64) string {
		l := s.Lines(nil, im, vaddr)
		if len(l) == 0 {
			return ""
		}
		return l[len(l)-1].SystemName
	}
}

const asmSource = `
	.text
	.globl start
	.type start, @function
start:	nop
	nop
	.size start, 2
	nop			# a gap: no name
	.type nosize, @function
nosize:	nop			# reaches to the next symbol
	nop
	nop
	.globl big, big_alias
	.weak _big
	.type big, @function
	.type big_alias, @function
	.type _big, @function
big:
big_alias:
_big:
__local_big:
	nop
label:	nop			# a label inside a sized function
	.type inner, @function
inner:	nop			# a sized function inside another
	nop
	.size inner, 2
	nop
	.size big, .-big
	.size big_alias, .-big
	.size _big, .-big
bare:	nop			# reaches to the end of the section
	nop
	.section .text.second,"ax",@progbits
	nop			# another section: no name
	.type ifunc, @gnu_indirect_function
	.globl ifunc
ifunc:	ret
	.size ifunc, 1
	.data
	.globl object
object:	.quad 0
	.globl absolute
	.set absolute, 0x1234
`

func TestSymtabRules(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.s", asmSource)
	run(t, dir, "gcc", "-c", "-o", "a.o", "a.s")
	run(t, dir, "ld", "-e", "start", "--unique=.text.second", "-Ttext=0x401000", "-o", "a", "a.o")
	at := name(newSymbolizer(t, Options{}), t, dir+"/a")
	for _, tc := range []struct {
		addr uint64
		want string
	}{
		{0x400fff, ""}, {0x401000, "start"}, {0x401001, "start"}, {0x401002, ""},
		{0x401003, "nosize"}, {0x401005, "nosize"},
		{0x401006, "big"}, {0x401007, "big"}, {0x401008, "inner"}, {0x401009, "inner"}, {0x40100a, "big"},
		{0x40100b, "bare"}, {0x40100c, "bare"}, {0x40100d, ""},
		{0x40100e, "ifunc"}, {0x40100f, ""},
		{0x1234, ""}, {0, ""}, {^uint64(0), ""},
	} {
		if got := at(tc.addr); got != tc.want {
			t.Errorf("%#x is %q, want %q", tc.addr, got, tc.want)
		}
	}
}

// TestSymtabAgainstReadelf looks up every function of real files at its first,
// middle and last byte.
func TestSymtabAgainstReadelf(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", pltSource)
	run(t, dir, "gcc", "-O2", "-static", "-o", "static", "a.c")
	for _, tc := range []struct{ path, table string }{
		{libc(t), ".dynsym"},
		{dir + "/static", ".symtab"},
	} {
		s := newSymbolizer(t, Options{DebugDirs: []string{}})
		f := indexed(s, open(t, tc.path))
		syms := readelfSymbols(t, tc.path, tc.table)
		at := map[uint64][]elfSymbol{}
		for _, y := range syms {
			if (y.typ == "FUNC" || y.typ == "IFUNC" || y.typ == "NOTYPE") && y.section != "UND" && y.section != "ABS" {
				at[y.addr] = append(at[y.addr], y)
			}
		}
		checked := 0
		for _, y := range syms {
			if y.typ != "FUNC" && y.typ != "IFUNC" || y.section == "UND" || y.size == 0 {
				continue
			}
			checked++
			for _, a := range []uint64{y.addr, y.addr + y.size/2, y.addr + y.size - 1} {
				id, ok := f.elf.find(a)
				if !ok {
					t.Fatalf("%s: %#x in %s has no name", tc.path, a, y.name)
				}
				// The answer is a symbol of the file that holds the address.
				got, start := f.elf.name(id, DemangleNone, &budget{}).system, f.elf.start(id)
				if !slices.ContainsFunc(at[start], func(z elfSymbol) bool { return z.name == got && z.addr+z.size > a }) {
					t.Fatalf("%s: %#x in %s is called %s+%#x", tc.path, a, y.name, got, a-start)
				}
				if start < y.addr {
					t.Fatalf("%s: %#x is in %s (%#x), but called %s (%#x)", tc.path, a, y.name, y.addr, got, start)
				}
			}
		}
		if checked < 1000 {
			t.Errorf("%s: only %d functions", tc.path, checked)
		}
	}
}

// libc returns the path of the C library.
func libc(t testing.TB) string {
	t.Helper()
	out := run(t, "", "ldd", "/bin/ls")
	m := regexp.MustCompile(`=> (\S*libc\.\S+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no libc in %q", out)
	}
	return m[1]
}

const pltSource = `
void abort(void), qsort(void *, unsigned long, unsigned long, void *);
int puts(const char *), atoi(const char *), strcmp(const char *, const char *);
char *getenv(const char *);
void *keep = &getenv;
int main(int argc, char **argv) {
	if (argc > 5) { qsort(argv, argc, 8, (void *)strcmp); abort(); }
	puts(getenv("HOME") ? "a" : argv[0]);
	return atoi(argv[0]);
}
`

// TestPLTAgainstObjdump compares the names of PLT entries with the synthetic
// symbols of objdump.
func TestPLTAgainstObjdump(t *testing.T) {
	arm := []string{"clang-19", "--target=aarch64-linux-gnu", "-O1", "-fPIC", "-c", "-o", "a.o", "a.c"}
	for _, tc := range []struct {
		name    string
		compile []string
		link    []string
		prefix  string
	}{
		{"lazy", []string{"gcc", "-O1", "-o", "a", "a.c", "-no-pie", "-Wl,-z,lazy", "-fcf-protection=none"}, nil, ""},
		{"now", []string{"gcc", "-O1", "-o", "a", "a.c", "-pie", "-fPIE", "-Wl,-z,now", "-fcf-protection=none"}, nil, ""},
		{"ibt", []string{"gcc", "-O1", "-o", "a", "a.c", "-pie", "-fPIE", "-Wl,-z,lazy", "-fcf-protection=full", "-Wl,-z,ibtplt"}, nil, ""},
		{"i386", []string{"gcc", "-O1", "-o", "a", "a.c", "-m32", "-no-pie", "-Wl,-z,lazy"}, nil, ""},
		{"i386pic", []string{"gcc", "-O1", "-o", "a", "a.c", "-m32", "-pie", "-fPIE", "-Wl,-z,lazy"}, nil, ""},
		{"arm64", arm, []string{"ld", "-shared", "-z", "lazy", "-o", "a", "a.o"}, "aarch64-linux-gnu-"},
		{"arm64bti", append(arm, "-mbranch-protection=standard"), []string{"ld", "-shared", "-z", "now", "-z", "force-bti", "-z", "pac-plt", "-o", "a", "a.o"}, "aarch64-linux-gnu-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "a.c", pltSource)
			run(t, dir, tc.compile...)
			if tc.link != nil {
				run(t, dir, append([]string{tc.prefix + tc.link[0]}, tc.link[1:]...)...)
			}
			run(t, dir, tc.prefix+"strip", "a")
			at := name(newSymbolizer(t, Options{}), t, dir+"/a")
			n := 0
			header := regexp.MustCompile(`(?m)^([0-9a-f]+) <(\w+@plt)>:$`)
			for _, m := range header.FindAllStringSubmatch(run(t, dir, tc.prefix+"objdump", "-d", "a"), -1) {
				addr, err := strconv.ParseUint(m[1], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range []uint64{addr, addr + 7} {
					if got := at(a); got != m[2] {
						t.Errorf("%#x is %q, want %q", a, got, m[2])
					}
				}
				n++
			}
			if n < 4 {
				t.Errorf("objdump shows only %d entries", n)
			}
		})
	}
}

// TestSymtabOrder checks that the choice among symbols of one address does not
// depend on their order.
func TestSymtabOrder(t *testing.T) {
	names := []string{"_x", "x", "xx", "y", "__x"}
	for rot := range names {
		b := &symtabBuilder{code: []codeRange{{0x1000, 0x2000}}, base: 0x1000}
		str := "\x00" + strings.Join(names, "\x00") + "\x00"
		src, _ := b.addSource(strtab{raw: []byte(str)})
		for i := range names {
			n := names[(i+rot)%len(names)]
			b.add(0x1000, 16, 0x2000, uint32(strings.Index(str, "\x00"+n+"\x00")+1), 5, src)
		}
		tab := b.build()
		id, ok := tab.find(0x100f)
		if got := tab.name(id, DemangleNone, &budget{}).system; !ok || got != "x" {
			t.Errorf("rotation %d: %q", rot, got)
		}
		if id, ok := tab.find(0x1010); ok {
			t.Errorf("past the end: %q", tab.name(id, DemangleNone, &budget{}).system)
		}
	}
}

func TestLongName(t *testing.T) {
	for _, n := range []int{100, 127, 128, 129, 3000, maxNameLength - 1, maxNameLength + 10} {
		dir := t.TempDir()
		long := strings.Repeat("a", n)
		write(t, dir, "a.s", fmt.Sprintf(".globl _start,%s\n.type %s,@function\n_start: nop\n%s: nop\n.size %s,1\n", long, long, long, long))
		run(t, dir, "gcc", "-nostdlib", "-static", "-o", "a", "a.s")
		s := newSymbolizer(t, Options{})
		f := indexed(s, open(t, dir+"/a"))
		got := ""
		for _, id := range f.elf.ranges.ids {
			if id != none {
				got = max(got, f.elf.name(id, DemangleNone, &s.budget).system)
			}
		}
		want := long
		if n > maxNameLength {
			want = long[:maxNameLength] + cutMark
		}
		if got != want {
			t.Errorf("%d: got %d bytes", n, len(got))
		}
	}
}

func TestSortEntries(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, n := range []int{0, 1, 2, 1000} {
		in := make([]entry, n)
		for i := range in {
			in[i] = entry{off: r.Uint32() >> (r.Intn(4) * 8), name: uint32(i)}
		}
		want := slices.Clone(in)
		slices.SortStableFunc(want, func(x, y entry) int { return cmp.Compare(x.off, y.off) })
		if got, _ := sortEntries(in, make([]entry, n)); !slices.Equal(got, want) {
			t.Errorf("%d entries: wrong order", n)
		}
	}
}

// indexed returns the names of a file with the index of all its symbols.
func indexed(s *Symbolizer, im *procstate.Image) *file {
	f := s.file(im)
	f.openOnce.Do(func() { s.open(f) })
	f.scans.Store(scansFirst)
	s.symbolsAt(f, 0)
	return f
}

// TestScan compares symbols that are looked for one by one with the index.
func TestScan(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.s", scanSource)
	run(t, dir, "gcc", "-nostdlib", "-static", "-o", "a", "a.s")
	small := open(t, dir+"/a")
	for _, tc := range []struct {
		im    *procstate.Image
		addrs []uint64
	}{
		{small, textAddresses(small, 1000)},
		{open(t, libc(t)), nil},
	} {
		if tc.addrs == nil {
			tc.addrs = benchAddresses(tc.im, 200)
		}
		s := newSymbolizer(t, Options{})
		f := indexed(s, tc.im)
		for _, a := range tc.addrs {
			one, err := scan(newSymtabBuilder(tc.im), []uint64{a}, f.addTables)
			if err != nil {
				t.Fatal(err)
			}
			want, _ := s.symbol(f.elf, a)
			if got, _ := s.symbol(one, a); got != want {
				t.Errorf("%s: %#x: %+v, in the index %+v", tc.im.Path, a, got, want)
			}
		}
		r := rand.New(rand.NewSource(1))
		for range 50 { // sets of a few and of many
			addrs := []uint64{0, 1}
			for _, a := range tc.addrs[r.Intn(len(tc.addrs)):] {
				if r.Intn(1+r.Intn(20)) == 0 {
					addrs = append(addrs, a)
				}
			}
			slices.Sort(addrs)
			s := newSymbolizer(t, Options{})
			s.Expect(tc.im, slices.Compact(addrs))
			few := s.file(tc.im)
			few.openOnce.Do(func() { s.open(few) })
			for _, a := range addrs {
				want, _ := (&Symbolizer{}).symbol(f.elf, a)
				if got, _ := s.symbol(s.symbolsAt(few, a), a); got != want {
					t.Errorf("%s: %#x of %d: %+v, in the index %+v", tc.im.Path, a, len(addrs), got, want)
				}
			}
			if len(addrs) > scansFirst && few.elf != nil {
				t.Errorf("%s: an index of all symbols for %d addresses", tc.im.Path, len(addrs))
			}
		}
	}
}

// TestScanLooks: to find the symbols at many addresses takes one look at all symbols of a
// file, and a second where one is around another that has its own.
func TestScanLooks(t *testing.T) {
	im := open(t, libc(t))
	f := indexed(newSymbolizer(t, Options{}), im)
	addrs := benchAddresses(im, 40)
	slices.Sort(addrs)
	looks := 0
	if _, err := scan(newSymtabBuilder(im), slices.Compact(addrs), func(b *symtabBuilder) error {
		looks++
		return f.addTables(b)
	}); err != nil || looks < 1 || looks > 2 {
		t.Errorf("%d looks, %v", looks, err)
	}
	dir := t.TempDir()
	write(t, dir, "a.s", ".globl _start\n.type _start,@function\n.type b,@function\n_start: .fill 8,1,0x90\n.size _start,8\nb: .fill 8,1,0x90\n.size b,8\n")
	run(t, dir, "gcc", "-nostdlib", "-static", "-o", "a", "a.s")
	im = open(t, dir+"/a")
	f = indexed(newSymbolizer(t, Options{}), im)
	looks = 0
	text, _ := im.Section(".text")
	if _, err := scan(newSymtabBuilder(im), []uint64{text.Vaddr + 1, text.Vaddr + 9, text.Vaddr + 10}, func(b *symtabBuilder) error {
		looks++
		return f.addTables(b)
	}); err != nil || looks != 1 {
		t.Errorf("two functions side by side: %d looks, %v", looks, err)
	}
}

// scanSource has symbols that nest, overlap, share an address, have no size,
// or are none.
const scanSource = `
.text
.globl _start, alias, __alias
.type _start,@function
.type alias,@function
.type __alias,@function
.type outer,@function
.type inner,@function
.type second,@function
_start: alias: __alias: .fill 16,1,0x90
.size _start,8
.size alias,16
.size __alias,12
bare: .fill 8,1,0x90
outer: .fill 4,1,0x90
inner: .fill 8,1,0x90
label: .fill 4,1,0x90
.size inner,8
.fill 8,1,0x90
.size outer,.-outer
late: .fill 4,1,0x90
second: .fill 4,1,0x90
across: .fill 12,1,0x90
.size second,10
.type across,@function
.size across,12
tail: .fill 8,1,0x90
.globl beside, tri
.type around,@function
.type beside,@function
.type tri,@function
.type within,@function
around: beside: tri: .fill 5,1,0x90
within: .fill 11,1,0x90
.size around,16
.size beside,12
.size tri,4
.size within,2
`

// TestOpenSymbols names the code of a file that was stripped, where functions
// written in assembly have no size and those behind them no symbol.
func TestOpenSymbols(t *testing.T) {
	dir := t.TempDir()
	source := map[string]string{"amd64": `
	.globl fill, restore, dispatch
	.type fill, @function
	.type dispatch, @function
fill:	test %edi, %edi
	jz 2f
1:	dec %edi
	jnz 1b
	call fill
2:	ret
	.hidden restore
	.globl restore
restore: mov $15, %rax
wait:	syscall
	ret
dispatch: jmp *%rax
behind:	ret
`, "arm64": `
	.globl fill, restore, dispatch
	.type fill, @function
	.type dispatch, @function
fill:	cbz x0, 2f
1:	sub x0, x0, #1
	cbnz x0, 1b
	bl fill
2:	ret
	.hidden restore
	.globl restore
restore: mov x8, #139
wait:	svc #0
	ret
dispatch: br x0
behind:	ret
`}[runtime.GOARCH]
	write(t, dir, "a.s", source)
	run(t, dir, "gcc", "-shared", "-nostdlib", "-o", "whole.so", "a.s")
	run(t, dir, "strip", "-o", "stripped.so", "whole.so")
	starts := map[string]uint64{}
	for _, s := range readelfSymbols(t, dir+"/whole.so", ".symtab") {
		starts[s.name] = s.addr
	}
	for _, tc := range []struct {
		file string
		at   uint64
		want string
	}{
		{"stripped.so", starts["fill"], "fill"}, {"stripped.so", starts["restore"] - 1, "fill"},
		{"stripped.so", starts["restore"], ""}, {"stripped.so", starts["wait"], ""}, {"stripped.so", starts["dispatch"] - 1, ""},
		{"stripped.so", starts["dispatch"], "dispatch"},
		{"stripped.so", starts["behind"], "dispatch"}, // it may be where that goes on
		{"whole.so", starts["restore"], "restore"}, {"whole.so", starts["wait"], "wait"},
	} {
		if got := name(newSymbolizer(t, Options{DebugDirs: []string{}}), t, dir+"/"+tc.file)(tc.at); got != tc.want {
			t.Errorf("%s: %#x is %q, want %q", tc.file, tc.at, got, tc.want)
		}
	}
}
