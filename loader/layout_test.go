package loader

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/procstate"
)

// The structs that both sides read have the same layout in the objects'
// own type information and in Go.
func TestWireLayout(t *testing.T) {
	spec, err := gen.LoadSampler()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{
		"sample_header":   gen.SamplerSampleHeader{},
		"region_header":   gen.SamplerRegionHeader{},
		"replaced_return": gen.SamplerReplacedReturn{},
		"off_cpu_end":     gen.SamplerOffCpuEnd{},
		"unsampled":       gen.SamplerUnsampled{},
		"thread_times":    gen.SamplerThreadTimes{},
		"counters":        gen.SamplerCounters{},
		"go_process":      gen.SamplerGoProcess{},
		"cpu_ring":        gen.SamplerCpuRing{},
	} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(name, &s); err != nil {
			t.Errorf("struct %s: %v", name, err)
			continue
		}
		compareLayout(t, name, s, reflect.TypeOf(v))
	}
}

func compareLayout(t *testing.T, name string, s *btf.Struct, typ reflect.Type) {
	if uintptr(s.Size) != typ.Size() {
		t.Errorf("%s: %d bytes in C, %d in Go", name, s.Size, typ.Size())
	}
	var fields []reflect.StructField
	for i := range typ.NumField() {
		if f := typ.Field(i); f.Name != "_" {
			fields = append(fields, f)
		}
	}
	if len(fields) != len(s.Members) {
		t.Errorf("%s: %d members in C, %d in Go", name, len(s.Members), len(fields))
		return
	}
	for i, m := range s.Members {
		f := fields[i]
		plain := strings.ToLower(strings.ReplaceAll(f.Name, "_", ""))
		if plain != strings.ToLower(strings.ReplaceAll(m.Name, "_", "")) || uintptr(m.Offset.Bytes()) != f.Offset {
			t.Errorf("%s: member %s at %d in C, %s at %d in Go", name, m.Name, m.Offset.Bytes(), f.Name, f.Offset)
		}
		if size, err := btf.Sizeof(m.Type); err != nil || uintptr(size) != f.Type.Size() {
			t.Errorf("%s.%s: %d bytes in C, %d in Go (%v)", name, m.Name, size, f.Type.Size(), err)
		}
		if sub, ok := btf.UnderlyingType(m.Type).(*btf.Struct); ok {
			compareLayout(t, name+"."+m.Name, sub, f.Type)
		}
	}
}

// The numbers of the enumerations are those of the C side, and so are the
// constants that both sides have.
func TestWireConstants(t *testing.T) {
	for want, got := range map[gen.SamplerUserState]UserState{
		gen.SamplerUserStateUSER_NONE:     UserNone,
		gen.SamplerUserStateUSER_NATIVE:   UserNative,
		gen.SamplerUserStateUSER_COMPAT32: UserCompat32,
		gen.SamplerUserStateUSER_EXITED:   UserExited,
		gen.SamplerUserStateUSER_PARTIAL:  UserPartial,
		gen.SamplerUserStateUSER_EXEC:     UserExec,
	} {
		if uint32(want) != uint32(got) {
			t.Errorf("state %v is %d in C", got, want)
		}
	}
	for want, got := range map[gen.SamplerOffCpuState]Blocked{
		gen.SamplerOffCpuStateOFF_CPU_NOT:             NotBlocked,
		gen.SamplerOffCpuStateOFF_CPU_SLEEP:           BlockedSleep,
		gen.SamplerOffCpuStateOFF_CPU_DISK:            BlockedDisk,
		gen.SamplerOffCpuStateOFF_CPU_LOCK:            BlockedLock,
		gen.SamplerOffCpuStateOFF_CPU_STOPPED:         BlockedStopped,
		gen.SamplerOffCpuStateOFF_CPU_UNINTERRUPTIBLE: BlockedUninterruptible,
		gen.SamplerOffCpuStateOFF_CPU_RUNNABLE:        BlockedRunnable,
	} {
		if uint32(want) != uint32(got) {
			t.Errorf("%v is %d in C", got, want)
		}
	}
	for want, got := range map[gen.SamplerStackEndKind]StackEnd{
		gen.SamplerStackEndKindSTACK_END_NONE:       StackEndNone,
		gen.SamplerStackEndKindSTACK_END_BOTTOM:     StackEndBottom,
		gen.SamplerStackEndKindSTACK_END_LIMIT:      StackEndLimit,
		gen.SamplerStackEndKindSTACK_END_UNREADABLE: StackEndUnreadable,
	} {
		if uint32(want) != uint32(got) {
			t.Errorf("end %v is %d in C", got, want)
		}
	}
	var ours procstate.ReplacedReturn
	var theirs gen.SamplerReplacedReturn
	if unsafe.Sizeof(ours) != unsafe.Sizeof(theirs) || unsafe.Offsetof(ours.Stack) != unsafe.Offsetof(theirs.Stack) || unsafe.Offsetof(ours.RA) != unsafe.Offsetof(theirs.Ra) {
		t.Errorf("%T is not laid out as %T", ours, theirs)
	}
	if maxGoHead != gen.SamplerLimitsMAX_GO_HEAD {
		t.Errorf("maxGoHead is %d, MAX_GO_HEAD %d", maxGoHead, gen.SamplerLimitsMAX_GO_HEAD)
	}
}

// The registers on the wire are the kernel's own struct, member by member.
func TestRegisterLayout(t *testing.T) {
	if _, err := os.Stat(btfPath); err != nil {
		kernelTest(t)
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	name := map[string]string{"amd64": "pt_regs", "arm64": "user_pt_regs"}[hostName()]
	var theirs *btf.Struct
	if err := kernel.TypeByName(name, &theirs); err != nil {
		t.Fatal(err)
	}
	spec, err := gen.LoadSampler()
	if err != nil {
		t.Fatal(err)
	}
	var ours *btf.Struct
	if err := spec.Types.TypeByName("user_regs", &ours); err != nil {
		t.Fatal(err)
	}
	if ours.Size != theirs.Size || len(ours.Members) != len(theirs.Members) {
		t.Fatalf("%d members in %d bytes, the kernel has %d in %d", len(ours.Members), ours.Size, len(theirs.Members), theirs.Size)
	}
	for i, m := range ours.Members {
		k := theirs.Members[i]
		// The kernel calls them ax, flags and so on; cs and ss may be unions.
		same := strings.HasSuffix(m.Name, k.Name) || k.Name == "" || k.Name == "regs"
		if m.Offset != k.Offset || !same {
			t.Errorf("%s at %d, the kernel has %s at %d", m.Name, m.Offset, k.Name, k.Offset)
		}
	}
}

func hostName() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return map[string]string{"x86_64": "amd64", "aarch64": "arm64"}[unix.ByteSliceToString(u.Machine[:])]
}

// Both objects hold the programs and the maps, with licences that the
// verifier accepts.
func TestObjects(t *testing.T) {
	for _, file := range []string{"sampler_x86_bpfel.o", "sampler_arm64_bpfel.o"} {
		spec, err := ebpf.LoadCollectionSpec(filepath.Join("..", "gen", file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for name, typ := range map[string]ebpf.ProgramType{
			gen.SamplerProgOnPerfEvent:  ebpf.PerfEvent,
			gen.SamplerProgOnTracepoint: ebpf.TracePoint,
			gen.SamplerProgOnUprobe:     ebpf.Kprobe,
			gen.SamplerProgOnKprobe:     ebpf.Kprobe,
			gen.SamplerProgOnSwitch:     ebpf.RawTracepoint,
			gen.SamplerProgOnFork:       ebpf.RawTracepoint,
		} {
			p := spec.Programs[name]
			if p == nil || p.Type != typ || p.License != "GPL" {
				t.Errorf("%s: program %s is %v", file, name, p)
			}
		}
		if m := spec.Maps[gen.SamplerMapRings]; m == nil || m.Type != ebpf.Array {
			t.Errorf("%s: rings are %v", file, m)
		}
	}
}
