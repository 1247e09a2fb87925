package procstate

import (
	"debug/elf"
	"errors"
	"os"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// A value that nothing has made has nothing, and says so.
func TestZeroValues(t *testing.T) {
	var regs Regs
	buf := make([]byte, 8)
	state := func(name string, p ProcessState) {
		testenv.NoPanic(t, name+".Arch", func() { p.Arch() })
		testenv.NoPanic(t, name+".PID", func() { p.PID() })
		testenv.NoPanic(t, name+".ExecutablePath", func() { p.ExecutablePath() })
		testenv.NoPanic(t, name+".Libraries", func() { p.Libraries() })
		testenv.NoPanic(t, name+".Threads", func() {
			if tids, err := p.Threads(); err == nil && len(tids) > 0 {
				t.Errorf("%s has threads %v", name, tids)
			}
		})
		testenv.NoPanic(t, name+".BeforeWalk", func() { _ = p.BeforeWalk(DefaultThread) })
		testenv.NoPanic(t, name+".Registers", func() {
			if p.Registers(DefaultThread, &regs) == nil {
				t.Errorf("%s has registers", name)
			}
		})
		testenv.NoPanic(t, name+".ReadWord", func() {
			if _, ok := p.ReadWord(8); ok {
				t.Errorf("%s has memory", name)
			}
		})
		testenv.NoPanic(t, name+".ReadMemory", func() {
			if n, err := p.ReadMemory(8, buf); n != 0 || err == nil {
				t.Errorf("%s has memory", name)
			}
		})
		testenv.NoPanic(t, name+".AfterWalk", func() { _ = p.AfterWalk(DefaultThread) })
		if p, ok := p.(ProbedState); ok {
			testenv.NoPanic(t, name+".UserProbes", func() { p.UserProbes() })
		}
		if p, ok := p.(LiveMemory); ok {
			testenv.NoPanic(t, name+".ReadLive", func() { p.ReadLive(8, buf) })
		}
		if p, ok := p.(FloatState); ok {
			testenv.NoPanic(t, name+".FloatRegister", func() {
				if _, err := p.FloatRegister(DefaultThread, 17); err == nil {
					t.Errorf("%s has registers", name)
				}
			})
		}
		testenv.NoPanic(t, name+" goroutines", func() {
			if _, err := ReadGoroutines(p); err == nil {
				t.Errorf("%s has goroutines", name)
			}
		})
	}
	testenv.NoPanic(t, "ReadGoroutines of nil", func() {
		if _, err := ReadGoroutines(nil); !errors.Is(err, ErrNoProcess) {
			t.Errorf("ReadGoroutines of nil: %v", err)
		}
	})
	state("Capture", &Capture{})
	state("Core", &Core{})
	state("ProcDebug", &ProcDebug{})
	state("ProcSelf", &ProcSelf{})
	var s Snapshot // that of a process without memory, see TestZeroSnapshot
	testenv.NoPanic(t, "Snapshot", func() {
		s.RegionAt(8)
		s.Regions()
		s.Missed()
		s.JITObjects()
		s.SetLiveCode(nil)
		s.SetLiveCode(&LiveCode{})
		s.ReadLive(8, buf)
		s.JITObjects()
		s.SetUserProbes(UserProbes{})
	})
	testenv.NoPanic(t, "Capture.Missed", func() { (&Capture{}).Missed() })
	testenv.NoPanic(t, "Capture.CapturedThreads", func() { (&Capture{}).CapturedThreads() })
	testenv.NoPanic(t, "Core.Close", func() { _ = (&Core{}).Close() })
	testenv.NoPanic(t, "ProcSelf.InCall", func() { (&ProcSelf{}).InCall() })
	testenv.NoPanic(t, "ProcSelf.SetProbes", func() { (&ProcSelf{}).SetProbes(nil) })
	for name, f := range map[string]func(p *ProcDebug) error{
		"Capture":       func(p *ProcDebug) error { _, err := p.Capture(CaptureOptions{}); return err },
		"Pause":         func(p *ProcDebug) error { return p.Pause(DefaultThread) },
		"Resume":        func(p *ProcDebug) error { return p.Resume(DefaultThread) },
		"TrapLibraries": func(p *ProcDebug) error { return p.TrapLibraries() },
		"LibraryTrap":   func(p *ProcDebug) error { return p.LibraryTrap() },
	} {
		testenv.NoPanic(t, "ProcDebug."+name, func() {
			if f(&ProcDebug{}) == nil {
				t.Errorf("%s of nothing", name)
			}
		})
	}
	testenv.NoPanic(t, "ProcDebug.Detach", func() { (&ProcDebug{}).Detach() })
	testenv.NoPanic(t, "ProcDebug.Done", func() {
		select {
		case <-(&ProcDebug{}).Done():
		default:
			t.Error("a ProcDebug of no process goes on")
		}
	})
	testenv.NoPanic(t, "ProcDebug.ExitStatus", func() { (&ProcDebug{}).ExitStatus() })
	testenv.NoPanic(t, "ProcDebug.IsTerminated", func() { (&ProcDebug{}).IsTerminated() })
	testenv.NoPanic(t, "ProcDebug.OnLibraryChange", func() { (&ProcDebug{}).OnLibraryChange(nil) })
	testenv.NoPanic(t, "ProcDebug.SetProbes", func() { (&ProcDebug{}).SetProbes(nil) })

	var space AddressSpace
	testenv.NoPanic(t, "AddressSpace", func() {
		c := space.Clone()
		c.Remove(1, 2)
		c.Clear()
		space.Generation()
		space.Libraries()
		space.MappingAt(1)
		space.Mappings()
		space.Overlaps(1, 2)
		space.TrapAddress()
		_ = space.Update()
		if space.ReadFile(buf, 8) == nil {
			t.Error("AddressSpace has files")
		}
		space.Remove(1, 2)
		space.Insert(&Mapping{Start: 1, End: 2})
		space.Clear()
	})
	var a Arch
	testenv.NoPanic(t, "Arch", func() { a.RegByName("rax"); a.RegName(1); a.RegName(NoReg) })
	var g Goroutine
	testenv.NoPanic(t, "Goroutine.State", func() { _ = g.State() })
	testenv.NoPanic(t, "Goroutine.Registers", func() { g.Registers(AMD64, &regs) })
	testenv.NoPanic(t, "Goroutine.Registers", func() { g.Registers(&a, &regs) })
	var rt GoRuntime
	testenv.NoPanic(t, "GoRuntime", func() { rt.GAddr(&Snapshot{}, 0, 0); rt.Samplable() })
	var fn GoFunc
	testenv.NoPanic(t, "GoFunc", func() { _ = fn.Name() })
	testenv.NoPanic(t, "names", func() {
		_, _, _, _ = EventKind(0).String(), GoStatus(5).String(), ThreadState(0).String(), (&FormatError{}).Error()
	})
	var table GoTable
	testenv.NoPanic(t, "GoTable.At", func() { table.At(0) })
	testenv.NoPanic(t, "GoTable.Func", func() { table.Func(1) })
	testenv.NoPanic(t, "GoTable.Len", func() { table.Len() })
	testenv.NoPanic(t, "GoTable.Lines", func() { table.Lines(nil, &fn, 1) })
	testenv.NoPanic(t, "GoTable.Memory", func() { table.Memory() })
	testenv.NoPanic(t, "GoTable.Range", func() { table.Range() })
	testenv.NoPanic(t, "GoTable.SPDelta", func() { table.SPDelta(&fn, 1) })
	testenv.NoPanic(t, "GoTable.Forget", func() { table.Forget() })

	im := func() *Image { return &Image{} }
	testenv.NoPanic(t, "Image.Arch", func() { im().Arch() })
	testenv.NoPanic(t, "Image.BuildID", func() { im().BuildID() })
	testenv.NoPanic(t, "Image.DynamicSymbol", func() { im().DynamicSymbol(1) })
	testenv.NoPanic(t, "Image.EachSymbol", func() { im().EachSymbol(func(*ELFSymbol) bool { return true }) })
	testenv.NoPanic(t, "Image.Entry", func() { im().Entry() })
	testenv.NoPanic(t, "Image.FuncStarts", func() { im().FuncStarts() })
	testenv.NoPanic(t, "Image.FuncStartsIn", func() { im().FuncStartsIn(1, 2) })
	testenv.NoPanic(t, "Image.HasMark", func() { im().HasMark(8, 0, 8, 0, func(_ *Arch, _ []byte, m []uint16) []uint16 { return m }) })
	testenv.NoPanic(t, "Image.OffsetOfVaddr", func() { im().OffsetOfVaddr(1, 1) })
	testenv.NoPanic(t, "Image.Packed", func() { _, _ = im().Packed(Section{}) })
	testenv.NoPanic(t, "Image.Prog", func() { im().Prog(elf.PT_LOAD) })
	testenv.NoPanic(t, "Image.ReadAt", func() {
		if _, err := im().ReadAt(buf, 0); err == nil {
			t.Error("Image has bytes")
		}
	})
	testenv.NoPanic(t, "Image.ReadVaddr", func() {
		if im().ReadVaddr(buf, 0) == nil {
			t.Error("Image has bytes")
		}
	})
	testenv.NoPanic(t, "Image.Section", func() { im().Section(".text") })
	testenv.NoPanic(t, "Image.SectionBytes", func() { _, _ = im().SectionBytes(Section{}, 10) })
	testenv.NoPanic(t, "Image.SectionBytes", func() { _, _ = im().SectionBytes(Section{Size: 8}, 10) })
	testenv.NoPanic(t, "Image.SectionParts", func() { _ = im().SectionParts(Section{Size: 8}, 10, func([]byte) {}) })
	testenv.NoPanic(t, "Image.Sections", func() { im().Sections() })
	testenv.NoPanic(t, "Image.Segments", func() { im().Segments() })
	testenv.NoPanic(t, "Image.Size", func() { im().Size() })
	testenv.NoPanic(t, "Image.Type", func() { im().Type() })
	testenv.NoPanic(t, "Image.VaddrOfOffset", func() { im().VaddrOfOffset(1) })
	testenv.NoPanic(t, "Pclntab", func() {
		if _, err := Pclntab(im()); err == nil {
			t.Error("Image has functions")
		}
	})
	testenv.NoPanic(t, "GoRuntimeOf", func() {
		if _, err := GoRuntimeOf(im()); err == nil {
			t.Error("Image has a runtime")
		}
	})

	var is Images
	testenv.NoPanic(t, "Images.CloseIdle", func() { is.CloseIdle(nil) })
	testenv.NoPanic(t, "Images.ForgetBlocks", func() { is.ForgetBlocks() })
	testenv.NoPanic(t, "Images.Stats", func() { is.Stats() })
	testenv.NoPanic(t, "Images.LoadAddressSpace", func() {
		if s, err := is.LoadAddressSpace(int32(os.Getpid())); err != nil || len(s.Mappings()) == 0 {
			t.Errorf("LoadAddressSpace: %v", err)
		}
	})
	testenv.NoPanic(t, "Images.NewMapping", func() { is.NewMapping(&space, &FileRef{}, 0) })
	testenv.NoPanic(t, "Images.Open", func() {
		if _, err := is.Open(&FileRef{}); err == nil {
			t.Error("Images has files")
		}
	})
	testenv.NoPanic(t, "Images.VDSO", func() {
		if _, err := is.VDSO(int32(os.Getpid()), 0, 0); err == nil {
			t.Error("Images has a vDSO")
		}
	})
	testenv.NoPanic(t, "Images.Close", func() { _ = is.Close() })

	var o JITObject
	testenv.NoPanic(t, "JITObject", func() { o.Holds(1) })
	var os JITObjects
	testenv.NoPanic(t, "JITObjects.Begin", func() { os.Begin() })
	testenv.NoPanic(t, "JITObjects.Above", func() { os.Above(1, 10) })
	testenv.NoPanic(t, "JITObjects.At", func() { os.At(1) })
	testenv.NoPanic(t, "JITObjects.Linked", func() { os.Linked() })
	var m Mapping
	testenv.NoPanic(t, "Mapping", func() { m.Contains(1) })
	var p Packed
	testenv.NoPanic(t, "Packed.Part", func() { _, _, _ = p.Part(0) })
	testenv.NoPanic(t, "Packed.PartSize", func() { p.PartSize() })
	testenv.NoPanic(t, "Packed.Size", func() { p.Size() })
	testenv.NoPanic(t, "Regs", func() {
		regs.Set(NoReg, 1)
		regs.Value(NoReg)
		regs.Raw(NoReg)
		regs.Forget(NoReg)
		regs.Inherit(&Regs{}, 0)
	})
}
