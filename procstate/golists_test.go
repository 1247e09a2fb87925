package procstate

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The lists are found by code where the symbols say that they are, also in
// programs that have none.
func TestGoLists(t *testing.T) {
	type program struct {
		arch  string
		flags []string
	}
	programs := []program{
		{"amd64", nil}, {"arm64", nil}, {"amd64", []string{"-buildmode=pie"}}, {"arm64", []string{"-gcflags=all=-N -l"}},
	}
	if testenv.Long() {
		programs = append(programs, program{"arm64", []string{"-buildmode=pie"}}, program{"amd64", []string{"-gcflags=all=-N -l"}})
	}
	for _, c := range programs {
		path := buildGoMain(t, "local", c.arch, c.flags...)
		stripped := buildGoMain(t, "local", c.arch, append(slices.Clone(c.flags), "-ldflags=-s -w")...)
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		syms, err := f.Symbols()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		want := make(map[string]uint64)
		for _, s := range syms {
			want[s.Name] = s.Value
		}
		l, err := goListsOf(openTestImage(t, path))
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		if l.allgs != want["runtime.allgs"] || !slices.Contains(l.reasons, want["runtime.waitReasonStrings"]) {
			t.Errorf("%v: %#x, want %#x; %#x, want %#x among them", c, l.allgs, want["runtime.allgs"], l.reasons, want["runtime.waitReasonStrings"])
		}
		if len(l.reasons) > maxReasonPlaces {
			t.Errorf("%v: %d places", c, len(l.reasons))
		}
		ls, err := goListsOf(openTestImage(t, stripped))
		if err != nil || ls.allgs == 0 || len(ls.reasons) == 0 {
			t.Errorf("%v, stripped: %+v, %v", c, ls, err)
		}
	}
}

// Loads of a slice as compilers have made them: with its address in a register,
// or in the instruction.
func TestGoRefsARM64(t *testing.T) {
	var code []byte
	for _, in := range []uint32{
		0xf000073b, // adrp x27, +0xe7000
		0x9114437b, // add x27, x27, #1296
		0xa9400b61, // ldp x1, x2, [x27]
		0x90000020, // adrp x0, +0x4000
		0xf9400801, // ldr x1, [x0, #16]
		0xf9400002, // ldr x2, [x0]
		0xf9400c23, // ldr x3, [x1, #24]: x1 was loaded
	} {
		code = binary.LittleEndian.AppendUint32(code, in)
	}
	loads, addresses := goRefsARM64(code, 0x508b0)
	if want := []uint64{0x137510, 0x137518, 0x54010, 0x54000}; !slices.Equal(loads, want) {
		t.Errorf("loads %#x, want %#x", loads, want)
	}
	if want := []uint64{0x137510}; !slices.Equal(addresses, want) {
		t.Errorf("addresses %#x, want %#x", addresses, want)
	}
}

// FuzzGoRefs looks for references in any code.
func FuzzGoRefs(f *testing.F) {
	f.Add([]byte{0x48, 0x8b, 0x0d, 0xe4, 0x07, 0x0e, 0x00, 0x48, 0x8d, 0x05, 0xf4, 0x09, 0x10, 0x00})
	f.Add([]byte{0x3b, 0x07, 0x00, 0xf0, 0x7b, 0x43, 0x14, 0x91, 0x61, 0x0b, 0x40, 0xa9})
	f.Fuzz(func(t *testing.T, code []byte) {
		for _, refs := range []func([]byte, uint64) ([]uint64, []uint64){goRefsAMD64, goRefsARM64} {
			loads, addresses := refs(code, 0x1000)
			if len(loads)+len(addresses) > len(code) {
				t.Fatalf("%d references in %d bytes", len(loads)+len(addresses), len(code))
			}
		}
	})
}
