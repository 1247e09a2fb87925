package symbols

import (
	"bytes"
	"testing"

	"github.com/swbpf/swbpf/procstate"
)

const fuzzVariables = `
struct list { struct list *next; int v : 5; union { long l; double d; }; char name[8]; };
enum e { A, B = 4 };
typedef int (*fn_t)(struct list *, enum e);
int apply(fn_t f, struct list *l, enum e e);
static inline __attribute__((always_inline)) int in(int a) { int b = a * 3; { int c = b + a; return apply(0, 0, c) + b; } }
__attribute__((noinline)) static int callee(int a, const char *s, double d) { int t = a + s[0]; apply(0, 0, A); return t + (int)d; }
int top(int n, struct list *l) {
	static int calls;
	int vla[n];
	struct list copy = *l;
	float f = n;
	calls++;
	for (int i = 0; i < n; i++) { int sq = i * i; vla[i] = in(sq); }
	return callee(n, copy.name, f) + vla[n - 1] + copy.v;
}
`

// functionSections are those that tell of functions and variables.
var functionSections = []string{".debug_info", ".debug_abbrev", ".debug_str", ".debug_ranges", ".debug_rnglists", ".debug_addr",
	".debug_str_offsets", ".debug_loc", ".debug_loclists", ".debug_line_str", ".debug_types"}

// FuzzFunctions reads functions, variables, types and call sites of damaged
// debug sections.
func FuzzFunctions(f *testing.F) {
	dir := f.TempDir()
	write(f, dir, "v.c", fuzzVariables)
	for _, args := range [][]string{
		{"gcc", "-gdwarf-5", "-O2"}, {"gcc", "-gdwarf-4", "-O2"}, {"gcc", "-gdwarf-5", "-O0"}, {"gcc", "-gdwarf-2", "-gstrict-dwarf", "-O1"},
		{"clang-19", "-gdwarf-5", "-O2"}, {"clang-19", "-gdwarf-4", "-O1"}, {"gcc", "-g", "-O2", "-fdebug-types-section"},
		{"gcc", "-gdwarf-4", "-O2", "-fdebug-types-section"},
	} {
		run(f, dir, append(args, "-shared", "-fPIC", "-nostdlib", "-o", "v.so", "v.c")...)
		im := open(f, dir+"/v.so")
		var b [11][]byte
		for i, n := range functionSections {
			if s, ok := im.Section(n); ok {
				var err error
				if b[i], err = im.SectionBytes(s, 0); err != nil {
					f.Fatal(err)
				}
			}
		}
		f.Add(b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10])
	}
	f.Fuzz(func(t *testing.T, info, abbrev, str, ranges, rnglists, addr, strOffsets, loc, loclists, lineStr, types []byte) {
		section := func(b []byte) dwarfSection {
			return dwarfSection{r: bytes.NewReader(b), size: uint64(len(b)), windowLen: 64, budget: &budget{}}
		}
		const text = 0x1000
		d := &dwarfData{
			group: &fileGroup{}, owner: New(Options{}), img: &procstate.Image{}, base: text, codeRanges: []codeRange{{text, text + 0x400}}, altDone: true, dwpDone: true,
			info: section(info), abbrev: section(abbrev), strings: section(str), lineStr: section(lineStr),
			ranges: section(ranges), rnglists: section(rnglists), rangeOffsets: section(rnglists), addr: section(addr), strOffsets: section(strOffsets),
			loc: section(loc), loclists: section(loclists), typesSection: section(types),
		}
		defer boundAllocations(t)()
		for a := uint64(text); a < text+0x400; a += 96 {
			fns, err := d.functions(a)
			if (err == nil) != (len(fns) > 0) {
				t.Errorf("%#x: %d functions, %v", a, len(fns), err)
			}
			for _, fn := range fns {
				readFunction(fn, a)
			}
		}
	})
}

// readFunction asks for all that is known of a function.
func readFunction(fn *Function, vaddr uint64) {
	fn.Entry()
	fn.MayReenter()
	if site, err := fn.CallSite(vaddr); err == nil && site != nil {
		for _, p := range site.Parameters {
			readExpression(p.Value, vaddr)
		}
	}
	if x, err := fn.FrameBase(vaddr); err == nil {
		readExpression(x, vaddr)
	}
	vars, _ := fn.AllVariables()
	for i, v := range append(vars, fn.Variables...) {
		if i == 16 {
			break
		}
		if x, err := v.Location(vaddr); err == nil {
			readExpression(x, vaddr)
		}
		readType(v.Type(), 3)
	}
}

func readType(t *Type, depth int) {
	t.Size()
	_ = t.String()
	if depth == 0 {
		return
	}
	t.Enumerators()
	t.Dimensions()
	t.RuntimeType(0x40)
	readType(t.Strip().Elem(), depth-1)
	for i, m := range t.Members() {
		if i == 4 {
			break
		}
		readType(m.Type, depth-1)
	}
}

func readExpression(x *Expression, vaddr uint64) {
	for at := 0; at < len(x.Code) && !x.Constant; {
		o, next, err := x.Operation(at)
		if err != nil {
			return
		}
		switch o.Op {
		case OpCall:
			_, _ = x.Procedure(o.A, vaddr)
		case OpImplicitPointer:
			_, _, _ = x.Object(o.A, vaddr)
		case OpConvert:
			_, _ = x.BaseType(o.A)
		}
		at = next
	}
}
