package steppers

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/isa"
	"github.com/swbpf/swbpf/unwind"
)

// goSwitchesARM64 builds a program of Go for arm64, and opens it.
func goSwitchesARM64(t *testing.T) (path string, img *procstate.Image, symbols []elf.Symbol) {
	t.Helper()
	t.Setenv("GOARCH", "arm64")
	t.Setenv("CGO_ENABLED", "0")
	path = buildGo(t, "goswitches")
	img = steptest.OpenImage(t, path)
	file, err := elf.NewFile(img)
	if err != nil {
		t.Fatal(err)
	}
	symbols, err = file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return path, img, symbols
}

// On arm64 gogo overwrites its return address while it is on the scheduler's
// stack. Which call it came from the stack tells all the same, where the
// function that called it does so at one place.
func TestGogoARM64(t *testing.T) {
	path, img, symbols := goSwitchesARM64(t)
	// insts decodes a function, and branches finds where it goes to another by
	// a call, or a jump.
	insts := func(name string, visit func(at uint64, in *isa.Inst)) {
		for _, s := range symbols {
			code := make([]byte, s.Size)
			if s.Name != name && s.Name != name+".abi0" || img.ReadVaddr(code, s.Value) != nil {
				continue
			}
			var in isa.Inst
			for i := 0; i+4 <= len(code); i += 4 {
				if isa.DecodeARM64(code[i:], s.Value+uint64(i), &in) {
					visit(s.Value+uint64(i), &in)
				}
			}
		}
	}
	branches := func(from, to string, flow isa.Flow) (at []uint64) {
		insts(from, func(a uint64, in *isa.Inst) {
			for _, s := range symbols {
				if in.Flow == flow && s.Value == in.Target && (s.Name == to || s.Name == to+".abi0") && !slices.Contains(at, a) {
					at = append(at, a)
				}
			}
		})
		return at
	}
	if len(branches("runtime.gogo", "gogo", isa.Jump)) != 1 {
		t.Fatal("runtime.gogo does not go on to gogo")
	}
	var lost []uint64 // where the return address is lost
	calls := 0
	insts("gogo", func(at uint64, in *isa.Inst) {
		if calls > 0 && len(lost) < 2 { // up to the one that sets SP
			lost = append(lost, at)
		}
		if in.Flow == isa.Call {
			calls++
		}
	})
	const sp = 0x70000000
	for _, c := range []struct{ above, caller string }{{"runtime.schedule", "runtime.execute"}, {"runtime.morestack", "runtime.newstack"}} {
		sites, returns := branches(c.caller, "runtime.gogo", isa.Call), branches(c.above, c.caller, isa.Call)
		if len(sites) == 0 || len(returns) == 0 || len(lost) != 2 {
			t.Fatalf("%s: %d calls of gogo, %d of it; %x", c.caller, len(sites), len(returns), lost)
		}
		for _, at := range lost {
			space := &procstate.AddressSpace{}
			for _, s := range img.Segments() {
				if s.Flags&elf.PF_X != 0 {
					space.Insert(&procstate.Mapping{Start: s.Vaddr &^ 4095, End: (s.Vaddr + s.Memsz + 4095) &^ 4095, Offset: s.Off &^ 4095, Image: img})
				}
			}
			snap := procstate.NewSnapshot(procstate.ARM64, 1, path, space)
			var regs procstate.Regs
			regs.Set(procstate.ARM64.PC, at)
			regs.Set(procstate.ARM64.SP, sp)
			regs.Set(procstate.ARM64.FP, 0)
			regs.Set(procstate.ARM64.LR, lost[0])
			stack := make([]byte, 4096)
			binary.LittleEndian.PutUint64(stack, returns[0]+4)
			snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
			frames, err := unwind.NewWalker(snap, Default(unwind.NewTables()), nil).WalkStack(nil, 1)
			if len(sites) > 1 {
				if len(frames) != 1 || err != unwind.NoUnwindInfo {
					t.Errorf("called by %s, at %d places: %d frames, %v", c.caller, len(sites), len(frames), err)
				}
				continue
			}
			if len(frames) < 3 || frames[1].PC() != sites[0]+4 || frames[1].SP() != sp || frames[2].PC() != returns[0]+4 {
				t.Errorf("called by %s: %v, %v", c.caller, frames, err)
			}
		}
	}
}

// On arm64 chacha8rand.block has something else where it has saved its return address. It calls
// nothing, so that the register has it at each instruction.
func TestOverwrittenReturnAddressARM64(t *testing.T) {
	path, img, symbols := goSwitchesARM64(t)
	find := func(name string) elf.Symbol {
		i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == name })
		if i < 0 {
			t.Fatalf("no %s", name)
		}
		return symbols[i]
	}
	space := &procstate.AddressSpace{}
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X != 0 {
			space.Insert(&procstate.Mapping{Start: s.Vaddr &^ 4095, End: (s.Vaddr + s.Memsz + 4095) &^ 4095, Offset: s.Off &^ 4095, Image: img})
		}
	}
	const (
		ret, frame = 0xd65f03c0, 32
		outer      = 0x70000100 // SP at the function's entry
		fp         = outer - 8  // the caller's
	)
	block := find("internal/chacha8rand.block")
	caller := find("internal/chacha8rand.(*State).Refill").Value + 64
	code := make([]byte, block.Size)
	if err := img.ReadVaddr(code, block.Value); err != nil {
		t.Fatal(err)
	}
	snap := procstate.NewSnapshot(procstate.ARM64, 1, path, space)
	stack := make([]byte, 4096)
	binary.LittleEndian.PutUint64(stack[outer-frame-8-0x70000000:], fp)
	binary.LittleEndian.PutUint64(stack[outer-frame-0x70000000:], 4711) // what it has put there
	places := 0
	for at := uint64(4); binary.LittleEndian.Uint32(code[at-4:]) != ret; at += 4 {
		var regs procstate.Regs
		sp, ownFP := uint64(outer-frame), uint64(outer-frame-8)
		switch inst := binary.LittleEndian.Uint32(code[at:]); {
		case at < 12:
			ownFP = fp
		case inst == ret:
			sp, ownFP = outer, fp
		case binary.LittleEndian.Uint32(code[at+4:]) == ret:
			ownFP = fp
		}
		regs.Set(procstate.ARM64.PC, block.Value+at)
		regs.Set(procstate.ARM64.SP, sp)
		regs.Set(procstate.ARM64.FP, ownFP)
		regs.Set(procstate.ARM64.LR, caller)
		snap.Reset(1, &regs, []procstate.Region{{Addr: 0x70000000, Data: stack}})
		frames, _ := unwind.NewWalker(snap, Default(unwind.NewTables()), nil).WalkStack(nil, 1)
		if len(frames) < 2 || frames[1].PC() != caller || frames[1].SP() != outer || frames[1].FP() != fp {
			t.Errorf("block+%#x: %v", at, frames)
		}
		places++
	}
	if places < 100 {
		t.Errorf("%d instructions", places)
	}
}

// On arm64 systemstack pops its frame before it jumps to what it was to call on
// the stack that it is on already, which the function table leaves out.
func TestSystemstackPoppedARM64(t *testing.T) {
	t.Setenv("GOARCH", "arm64")
	t.Setenv("CGO_ENABLED", "0")
	img := steptest.OpenImage(t, buildGo(t, "goswitches"))
	table, err := procstate.Pclntab(img)
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.NewFile(img)
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "runtime.systemstack.abi0" })
	if i < 0 {
		t.Fatal("no systemstack")
	}
	code := make([]byte, symbols[i].Size)
	if err := img.ReadVaddr(code, symbols[i].Value); err != nil {
		t.Fatal(err)
	}
	const pop, toX3 = 0xf84107fe, 0xd61f0060 // ldr x30,[sp],#16; br x3
	s, want, jumps := NewGo(), int32(16), 0
	for at := 4; at+4 <= len(code); at += 4 {
		if binary.LittleEndian.Uint32(code[at-4:]) == pop {
			want = 0
		}
		if got := s.rule(img, table, symbols[i].Value+uint64(at)).delta; got != want {
			t.Errorf("systemstack+%#x: %d bytes of frame, want %d", at, got, want)
		}
		switch binary.LittleEndian.Uint32(code[at:]) {
		case toX3:
			jumps++
			at = len(code) // what follows is no code
		case 0xd65f03c0: // ret
			want = 16
		}
	}
	if jumps != 1 {
		t.Errorf("%d jumps out of systemstack", jumps)
	}
}
