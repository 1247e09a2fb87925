//go:build linux && amd64

package steppers

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/swbpf/swbpf/internal/emulated"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// startARM64 runs a static program under qemu up to its main function.
func startARM64(t *testing.T, path string) *emulated.Program {
	t.Helper()
	testenv.Needs(t, "qemu-aarch64")
	p, err := emulated.Start([]string{path}, nil, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Name == "main" {
			if err := p.RunTo(s.Value); err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	t.Fatal("no main")
	return nil
}

// TestDebugEveryInstructionARM64 is TestDebugEveryInstruction for AArch64, in
// emulation: with and without signed return addresses.
func TestDebugEveryInstructionARM64(t *testing.T) {
	for _, protection := range []string{"none", "standard", "pac-ret+leaf+b-key"} {
		t.Run(protection, func(t *testing.T) {
			t.Parallel()
			testenv.Needs(t, "aarch64-linux-gnu-gcc")
			path := filepath.Join(t.TempDir(), "arm64")
			cmd := exec.Command("aarch64-linux-gnu-gcc", "-O2", "-fomit-frame-pointer", "-static",
				"-mbranch-protection="+protection, "testdata/debug/arm64.c", "-o", path)
			testenv.Run(t, cmd)
			everyInstructionARM64(t, path, false, NewDebug(nil))
		})
	}
}

// everyInstructionARM64 has steppers walk at each instruction of a program. With movesSP functions may return with another SP than
// they were called with.
func everyInstructionARM64(t *testing.T, path string, movesSP bool, steppers ...unwind.FrameStepper) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	img, err := procstate.NewImage(file, st.Size(), path)
	if err != nil {
		t.Fatal(err)
	}
	space := &procstate.AddressSpace{}
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X != 0 {
			const page = 4095
			space.Insert(&procstate.Mapping{Start: s.Vaddr &^ page, End: (s.Vaddr + s.Memsz + page) &^ page, Offset: s.Off &^ page, Path: path, Image: img})
		}
	}
	arch := procstate.ARM64
	p := startARM64(t, path)
	snap := procstate.NewSnapshot(arch, 1, path, space)
	w := unwind.NewWalker(snap, unwind.NewGroup(steppers...), nil)
	var stack [8000]byte
	var regs procstate.Regs
	capture := func() {
		if err := p.Registers(&regs); err != nil {
			t.Fatal(err)
		}
		sp := regs.Raw(arch.SP)
		n, _ := p.ReadMemory(sp, stack[:])
		snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack[:n]}})
	}
	capture()
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 3 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	var shadow []shadowEntry // bottom first
	for i := len(frames) - 1; i > 0; i-- {
		shadow = append(shadow, shadowEntry{ra: frames[i].PC(), cfa: frames[i].SP()})
	}
	bottom := len(shadow)
	bad, calls, walked := 0, 0, 0
	for len(shadow) >= bottom && walked < 20000 {
		pc, sp := regs.Raw(arch.PC), regs.Raw(arch.SP)
		code := make([]byte, 4)
		if err := img.ReadVaddr(code, pc); err != nil {
			t.Fatalf("code at %#x: %v", pc, err)
		}
		insn := binary.LittleEndian.Uint32(code)
		if _, err := p.Step(0); err != nil {
			t.Fatal(err)
		}
		capture()
		now := regs.Raw(arch.PC)
		switch {
		case insn>>26 == 0x25 || insn&0xfffffc1f == 0xd63f0000: // bl, blr
			shadow = append(shadow, shadowEntry{ra: pc + 4, cfa: sp})
			calls++
		case insn&0xfffffc1f == 0xd65f0000 || insn&0xfffffbff == 0xd65f0bff: // ret, retaa, retab
			if last := shadow[len(shadow)-1]; now == last.ra && (movesSP || regs.Raw(arch.SP) == last.cfa) {
				shadow = shadow[:len(shadow)-1]
			} else {
				t.Fatalf("%#x returns to %#x, not to %#x", pc, now, last.ra)
			}
		}
		frames, err = w.WalkStack(frames[:0], procstate.DefaultThread)
		walked++
		// The linkage table has no CFI on AArch64.
		if plt, _ := img.Section(".plt"); now-plt.Vaddr < plt.Size {
			if err != unwind.NoUnwindInfo {
				t.Errorf("at %#x, in the linkage table: %v", now, err)
			}
			continue
		}
		if movesSP && len(frames) > 1 && len(shadow) > 0 { // as it will be, where the function is about to raise it
			frames[1].SetSP(arch, shadow[len(shadow)-1].cfa)
		}
		if err != nil || !sameChain(frames, shadow) {
			if bad++; bad <= 10 {
				t.Errorf("at %#x, after %#x (%08x): %d frames, expected %d: %v", now, pc, insn, len(frames), len(shadow)+1, err)
			}
		}
	}
	if bad > 0 || walked < 2000 || calls < 50 || len(shadow) >= bottom {
		t.Errorf("%d of %d walks are wrong, %d calls", bad, walked, calls)
	}
	t.Logf("%d walks, %d calls", walked, calls)
}
