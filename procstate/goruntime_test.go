package procstate

import (
	"debug/dwarf"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The layout agrees with the DWARF that the compiler writes. The installed
// toolchain is tested, and those that SWBPF_GO_VERSIONS names, separated by
// blanks: "go1.20.14 go1.21.13".
func TestGoRuntimeAgainstDWARF(t *testing.T) {
	versions := append([]string{"local"}, strings.Fields(os.Getenv("SWBPF_GO_VERSIONS"))...)
	for _, version := range versions {
		for _, arch := range []string{"amd64", "arm64"} {
			t.Run(version+" "+arch, func(t *testing.T) {
				path := buildGoMain(t, version, arch)
				rt, err := GoRuntimeOf(openTestImage(t, path))
				if err != nil {
					t.Fatal(err)
				}
				if version != "local" && rt.Version != version {
					t.Errorf("version %q, want %q", rt.Version, version)
				}
				f, err := elf.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				want := goFields(t, f)
				sched := want["runtime.g.sched"]
				for name, got := range map[string]uint32{
					"runtime.g.m": rt.M, "runtime.m.g0": rt.G0, "runtime.m.gsignal": rt.GSignal, "runtime.m.curg": rt.CurG,
					"runtime.m.vdsoSP": rt.VDSOSP, "runtime.g.stack": rt.StackLo,
					"runtime.g.atomicstatus": rt.Status, "runtime.g.goid": rt.ID, "runtime.g.waitsince": rt.WaitSince,
					"runtime.g.waitreason": rt.WaitReason, "runtime.g.lockedm": rt.LockedM, "runtime.g.parentGoid": rt.ParentID,
					"runtime.g.gopc": rt.GoPC, "runtime.g.startpc": rt.StartPC,
				} {
					if want[name] != int64(got) {
						t.Errorf("%s at %d, want %d", name, got, want[name])
					}
				}
				if labels := want["runtime.g.labels"]; labels != int64(rt.GoPC)+goLabelsBehindPC || rt.Labels != 0 {
					t.Errorf("labels of g at %d, gopc at %d; of a program that sets none at %d", labels, rt.GoPC, rt.Labels)
				}
				for name, got := range map[string]uint32{"sp": rt.SchedSP, "pc": rt.SchedPC, "lr": rt.SchedLR, "bp": rt.SchedBP} {
					if sched+want["runtime.gobuf."+name] != int64(got) {
						t.Errorf("sched.%s at %d, want %d", name, got, sched+want["runtime.gobuf."+name])
					}
				}
				switch arch {
				case "amd64":
					if !rt.HasTLS || rt.TLSOffset != -8 || rt.GReg != NoReg {
						t.Errorf("g at TLS %+d, %v, register %d", rt.TLSOffset, rt.HasTLS, rt.GReg)
					}
				case "arm64":
					if rt.HasTLS || ARM64.RegName(rt.GReg) != "x28" {
						t.Errorf("g in register %d", rt.GReg)
					}
				}
			})
		}
	}
}

// A stripped and position-independent program tells the same.
func TestGoRuntimeStripped(t *testing.T) {
	for _, flags := range [][]string{{"-ldflags=-s -w"}, {"-buildmode=pie", "-ldflags=-s -w"}} {
		rt, err := GoRuntimeOf(openTestImage(t, buildGoMain(t, "local", "amd64", flags...)))
		if err != nil || !rt.HasTLS || rt.TLSOffset != -8 || rt.SchedSP != 56 {
			t.Errorf("%v: %+v, %v", flags, rt, err)
		}
	}
}

func TestGoRuntimeOfOthers(t *testing.T) {
	if _, err := GoRuntimeOf(openTestImage(t, "/bin/true")); !errors.Is(err, ErrNoPclntab) {
		t.Errorf("/bin/true: %v", err)
	}
	// Of 32 bits: in Go, and not.
	if _, err := GoRuntimeOf(openTestImage(t, buildGoMain(t, "local", "386"))); !errors.Is(err, ErrNotSupported) {
		t.Errorf("Go on 386: %v", err)
	}
	im := openTestImage(t, "/bin/true")
	im.arch = I386
	if _, err := GoRuntimeOf(im); !errors.Is(err, ErrNoPclntab) {
		t.Errorf("/bin/true as of 386: %v", err)
	}
}

func TestGoMinor(t *testing.T) {
	for _, tc := range []struct {
		version string
		minor   int
		ok      bool
	}{
		{"go1.21.13", 21, true}, {"go1.26-custom X:exp", 26, true}, {"go1.20", 20, true},
		{"go1.", 0, false}, {"devel go1.27-abc", 0, false}, {"go2.1", 0, false}, {"", 0, false},
		{"go1.99999999999999999999", 0, false},
	} {
		if n, ok := goMinor(tc.version); ok != tc.ok || ok && n != tc.minor {
			t.Errorf("%q: %d, %v", tc.version, n, ok)
		}
	}
}

// buildGoMain returns a program of Go that does nothing.
func buildGoMain(t *testing.T, version, arch string, flags ...string) string {
	t.Helper()
	return goBuilt(t, version, arch, "package main\n\nfunc main() { println() }\n", flags...)
}

// goBuilt returns a file with what a version of Go makes of a source. All tests that ask for the same
// have copies of what is built once; it is not to be run.
func goBuilt(t *testing.T, version, arch, source string, flags ...string) string {
	t.Helper()
	built, _ := goPrograms.LoadOrStore(fmt.Sprintf("%q", append([]string{version, arch, source}, flags...)),
		sync.OnceValues(func() ([]byte, error) { return buildGoProgram(version, arch, source, flags...) }))
	program, err := built.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, program, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// goPrograms has what buildGoProgram returns, by what it is given.
var goPrograms sync.Map

func buildGoProgram(version, arch, source string, flags ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "goprogram")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"main.go": source, "go.mod": "module m\n\ngo 1.20\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", "m", ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+version, "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return os.ReadFile(filepath.Join(dir, "m"))
}

// goFields returns the offsets of the fields of runtime structures.
func goFields(t *testing.T, f *elf.File) map[string]int64 {
	t.Helper()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]int64{}
	r := d.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return fields
		}
		if e.Tag != dwarf.TagStructType {
			continue
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if name != "runtime.g" && name != "runtime.m" && name != "runtime.gobuf" {
			continue
		}
		typ, err := d.Type(e.Offset)
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range typ.(*dwarf.StructType).Field {
			fields[name+"."+field.Name] = field.ByteOffset
		}
	}
}

// In a shared library the dynamic loader stores the offset of g in a word that a
// relocation tells of.
func TestGoRuntimeOfLibrary(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 g is in a register")
	}
	dir := t.TempDir()
	src, out := filepath.Join(dir, "library.go"), filepath.Join(dir, "library.so")
	if err := os.WriteFile(src, []byte("package main\n\nimport \"C\"\n\n//export F\nfunc F() {}\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Needs(t, "gcc")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-o", out, src)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=1")
	testenv.Run(t, cmd)
	rt, err := GoRuntimeOf(openTestImage(t, out))
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rela, err := f.Section(".rela.dyn").Data()
	if err != nil {
		t.Fatal(err)
	}
	var slots []uint64
	for ; len(rela) >= 24; rela = rela[24:] {
		if elf.R_X86_64(binary.LittleEndian.Uint32(rela[8:])) == elf.R_X86_64_TPOFF64 {
			slots = append(slots, binary.LittleEndian.Uint64(rela))
		}
	}
	if !rt.HasTLS || rt.TLSOffset != 0 || !slices.Contains(slots, rt.TLSSlot) {
		t.Errorf("g at %+d, or what %#x holds, %v; relocated are %#x", rt.TLSOffset, rt.TLSSlot, rt.HasTLS, slots)
	}
}

// How the linkers leave the load of g in runtime.load_g of programs with cgo for
// arm64; objdump -d and the file's TLS segment say where g is.
func TestGoTLSLoadARM64(t *testing.T) {
	const mrs, load, ret = 0xd53bd040, 0xf87b681c, 0xd65f03c0
	for _, c := range []struct {
		name   string
		code   []uint32
		offset int64
		slot   uint64
		ok     bool
	}{
		{"program", []uint32{0xb000085b, 0x39b61360, 0xb4000080, mrs, 0xd280021b, load, ret}, 0x10, 0, true},
		{"static", []uint32{0x90000d7b, 0x39961360, 0xb4000080, mrs, 0xd280061b, load, ret}, 0x30, 0, true},
		{"PIE", []uint32{0xf00007fb, 0x39b61360, 0xb40000a0, mrs, 0xd2a0001b, 0xf280021b, load, ret}, 0x10, 0, true},
		{"PIE, far", []uint32{mrs, 0xd2a0003b, 0xf280021b, load, ret}, 0x10010, 0, true},
		{"library", []uint32{0xb00005bb, 0x399d1360, 0xb40000a0, mrs, 0x9000059b, 0xf947cb7b, load, ret}, 0, 0x13ff90, true},
		{"without cgo", []uint32{0xb00005bb, 0x399d1360, 0xb40000a0, ret}, 0, 0, false},
		{"another register", []uint32{mrs, 0xd280021a, load, ret, ret}, 0, 0, false},
		{"cut off", []uint32{mrs, 0xd280021b, load}, 0, 0, false},
	} {
		var code []byte
		for _, inst := range c.code {
			code = binary.LittleEndian.AppendUint32(code, inst)
		}
		if offset, slot, ok := goTLSLoadARM64(code, 0x8f2b0); offset != c.offset || slot != c.slot || ok != c.ok {
			t.Errorf("%s: %#x, slot %#x, %v", c.name, offset, slot, ok)
		}
	}
}

// FuzzGoTLSLoad looks for the load in any code.
func FuzzGoTLSLoad(f *testing.F) {
	f.Add([]byte{0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff})
	f.Add([]byte{0x48, 0xc7, 0xc1, 0xf8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x01})
	f.Add([]byte{0x48, 0x8b, 0x0d, 0xf8, 0xff, 0xff, 0xff, 0x64, 0x48, 0x8b, 0x01})
	f.Add([]byte{0x64, 0x48, 0x8b, 0x04, 0x25})
	f.Fuzz(func(t *testing.T, code []byte) {
		_, _, _ = goTLSLoadARM64(code, 0x1000)
		off, slot, ok := goTLSLoadAMD64(code, 0x1000)
		if ok && len(code) < 9 || !ok && (off != 0 || slot != 0) || off != 0 && slot != 0 {
			t.Fatalf("%d, %#x, %v", off, slot, ok)
		}
	})
}
