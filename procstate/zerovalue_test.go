package procstate

import (
	"debug/elf"
	"os"
	"testing"
)

// noPanic calls f, and says it where f panics.
func noPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s: %v", what, r)
		}
	}()
	f()
}

// A value that nothing has made has nothing, and says so.
func TestZeroValues(t *testing.T) {
	var regs Regs
	buf := make([]byte, 8)
	state := func(name string, p ProcessState) {
		noPanic(t, name+".Arch", func() { p.Arch() })
		noPanic(t, name+".PID", func() { p.PID() })
		noPanic(t, name+".ExecutablePath", func() { p.ExecutablePath() })
		noPanic(t, name+".Libraries", func() { p.Libraries() })
		noPanic(t, name+".Threads", func() {
			if tids, err := p.Threads(); err == nil && len(tids) > 0 {
				t.Errorf("%s has threads %v", name, tids)
			}
		})
		noPanic(t, name+".BeforeWalk", func() { _ = p.BeforeWalk(DefaultThread) })
		noPanic(t, name+".Registers", func() {
			if p.Registers(DefaultThread, &regs) == nil {
				t.Errorf("%s has registers", name)
			}
		})
		noPanic(t, name+".ReadWord", func() {
			if _, ok := p.ReadWord(8); ok {
				t.Errorf("%s has memory", name)
			}
		})
		noPanic(t, name+".ReadMemory", func() {
			if n, err := p.ReadMemory(8, buf); n != 0 || err == nil {
				t.Errorf("%s has memory", name)
			}
		})
		noPanic(t, name+".AfterWalk", func() { _ = p.AfterWalk(DefaultThread) })
		if p, ok := p.(ProbedState); ok {
			noPanic(t, name+".UserProbes", func() { p.UserProbes() })
		}
		if p, ok := p.(LiveMemory); ok {
			noPanic(t, name+".ReadLive", func() { p.ReadLive(8, buf) })
		}
		if p, ok := p.(FloatState); ok {
			noPanic(t, name+".FloatRegister", func() {
				if _, err := p.FloatRegister(DefaultThread, 17); err == nil {
					t.Errorf("%s has registers", name)
				}
			})
		}
		noPanic(t, name+" goroutines", func() {
			if _, err := ReadGoroutines(p); err == nil {
				t.Errorf("%s has goroutines", name)
			}
		})
	}
	state("Capture", &Capture{})
	state("Core", &Core{})
	state("ProcDebug", &ProcDebug{})
	state("ProcSelf", &ProcSelf{})
	var s Snapshot // that of a process without memory, see TestZeroSnapshot
	noPanic(t, "Snapshot", func() {
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
	noPanic(t, "Capture.Missed", func() { (&Capture{}).Missed() })
	noPanic(t, "Capture.CapturedThreads", func() { (&Capture{}).CapturedThreads() })
	noPanic(t, "Core.Close", func() { _ = (&Core{}).Close() })
	noPanic(t, "ProcSelf.InCall", func() { (&ProcSelf{}).InCall() })
	noPanic(t, "ProcSelf.SetProbes", func() { (&ProcSelf{}).SetProbes(nil) })
	for name, f := range map[string]func(p *ProcDebug) error{
		"Capture":       func(p *ProcDebug) error { _, err := p.Capture(CaptureOptions{}); return err },
		"Pause":         func(p *ProcDebug) error { return p.Pause(DefaultThread) },
		"Resume":        func(p *ProcDebug) error { return p.Resume(DefaultThread) },
		"TrapLibraries": func(p *ProcDebug) error { return p.TrapLibraries() },
		"LibraryTrap":   func(p *ProcDebug) error { return p.LibraryTrap() },
	} {
		noPanic(t, "ProcDebug."+name, func() {
			if f(&ProcDebug{}) == nil {
				t.Errorf("%s of nothing", name)
			}
		})
	}
	noPanic(t, "ProcDebug.Detach", func() { (&ProcDebug{}).Detach() })
	noPanic(t, "ProcDebug.Done", func() { (&ProcDebug{}).Done() })
	noPanic(t, "ProcDebug.ExitStatus", func() { (&ProcDebug{}).ExitStatus() })
	noPanic(t, "ProcDebug.IsTerminated", func() { (&ProcDebug{}).IsTerminated() })
	noPanic(t, "ProcDebug.OnLibraryChange", func() { (&ProcDebug{}).OnLibraryChange(nil) })
	noPanic(t, "ProcDebug.SetProbes", func() { (&ProcDebug{}).SetProbes(nil) })

	var space AddressSpace
	noPanic(t, "AddressSpace", func() {
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
	noPanic(t, "Arch", func() { a.RegByName("rax"); a.RegName(1); a.RegName(NoReg) })
	var g Goroutine
	noPanic(t, "Goroutine.State", func() { _ = g.State() })
	noPanic(t, "Goroutine.Registers", func() { g.Registers(AMD64, &regs) })
	noPanic(t, "Goroutine.Registers", func() { g.Registers(&a, &regs) })
	var rt GoRuntime
	noPanic(t, "GoRuntime", func() { rt.GAddr(&Snapshot{}, 0, 0); rt.Samplable() })
	var fn GoFunc
	noPanic(t, "GoFunc", func() { _ = fn.Name() })
	noPanic(t, "names", func() {
		_, _, _, _ = EventKind(0).String(), GoStatus(5).String(), ThreadState(0).String(), (&FormatError{}).Error()
	})
	var table GoTable
	noPanic(t, "GoTable.At", func() { table.At(0) })
	noPanic(t, "GoTable.Func", func() { table.Func(1) })
	noPanic(t, "GoTable.Len", func() { table.Len() })
	noPanic(t, "GoTable.Lines", func() { table.Lines(nil, &fn, 1) })
	noPanic(t, "GoTable.Memory", func() { table.Memory() })
	noPanic(t, "GoTable.Range", func() { table.Range() })
	noPanic(t, "GoTable.SPDelta", func() { table.SPDelta(&fn, 1) })
	noPanic(t, "GoTable.Forget", func() { table.Forget() })

	im := func() *Image { return &Image{} }
	noPanic(t, "Image.Arch", func() { im().Arch() })
	noPanic(t, "Image.BuildID", func() { im().BuildID() })
	noPanic(t, "Image.DynamicSymbol", func() { im().DynamicSymbol(1) })
	noPanic(t, "Image.EachSymbol", func() { im().EachSymbol(func(*ELFSymbol) bool { return true }) })
	noPanic(t, "Image.Entry", func() { im().Entry() })
	noPanic(t, "Image.FuncStarts", func() { im().FuncStarts() })
	noPanic(t, "Image.HasMark", func() { im().HasMark(8, 0, 0, 8, func(_ *Arch, _ []byte, m []Mark) []Mark { return m }) })
	noPanic(t, "Image.OffsetOfVaddr", func() { im().OffsetOfVaddr(1, 1) })
	noPanic(t, "Image.Packed", func() { _, _ = im().Packed(Section{}) })
	noPanic(t, "Image.Prog", func() { im().Prog(elf.PT_LOAD) })
	noPanic(t, "Image.ReadAt", func() {
		if _, err := im().ReadAt(buf, 0); err == nil {
			t.Error("Image has bytes")
		}
	})
	noPanic(t, "Image.ReadVaddr", func() {
		if im().ReadVaddr(buf, 0) == nil {
			t.Error("Image has bytes")
		}
	})
	noPanic(t, "Image.Section", func() { im().Section(".text") })
	noPanic(t, "Image.SectionBytes", func() { _, _ = im().SectionBytes(Section{}, 10) })
	noPanic(t, "Image.SectionBytes", func() { _, _ = im().SectionBytes(Section{Size: 8}, 10) })
	noPanic(t, "Image.SectionParts", func() { _ = im().SectionParts(Section{Size: 8}, 10, func([]byte) {}) })
	noPanic(t, "Image.Sections", func() { im().Sections() })
	noPanic(t, "Image.Segments", func() { im().Segments() })
	noPanic(t, "Image.Size", func() { im().Size() })
	noPanic(t, "Image.Type", func() { im().Type() })
	noPanic(t, "Image.VaddrOfOffset", func() { im().VaddrOfOffset(1) })
	noPanic(t, "Pclntab", func() {
		if _, err := Pclntab(im()); err == nil {
			t.Error("Image has functions")
		}
	})
	noPanic(t, "GoRuntimeOf", func() {
		if _, err := GoRuntimeOf(im()); err == nil {
			t.Error("Image has a runtime")
		}
	})

	var is Images
	noPanic(t, "Images.CloseIdle", func() { is.CloseIdle(nil) })
	noPanic(t, "Images.ForgetBlocks", func() { is.ForgetBlocks() })
	noPanic(t, "Images.Stats", func() { is.Stats() })
	noPanic(t, "Images.LoadAddressSpace", func() {
		if s, err := is.LoadAddressSpace(int32(os.Getpid())); err != nil || len(s.Mappings()) == 0 {
			t.Errorf("LoadAddressSpace: %v", err)
		}
	})
	noPanic(t, "Images.NewMapping", func() { is.NewMapping(&space, &FileRef{}, 0) })
	noPanic(t, "Images.Open", func() {
		if _, err := is.Open(&FileRef{}); err == nil {
			t.Error("Images has files")
		}
	})
	noPanic(t, "Images.VDSO", func() {
		if _, err := is.VDSO(int32(os.Getpid()), 0, 0); err == nil {
			t.Error("Images has a vDSO")
		}
	})
	noPanic(t, "Images.Close", func() { _ = is.Close() })

	var o JITObject
	noPanic(t, "JITObject", func() { o.Holds(1) })
	var os JITObjects
	noPanic(t, "JITObjects.Begin", func() { os.Begin() })
	noPanic(t, "JITObjects.Above", func() { os.Above(1, 10) })
	noPanic(t, "JITObjects.At", func() { os.At(1) })
	noPanic(t, "JITObjects.Linked", func() { os.Linked() })
	var m Mapping
	noPanic(t, "Mapping", func() { m.Contains(1) })
	var p Packed
	noPanic(t, "Packed.Part", func() { _, _, _ = p.Part(0) })
	noPanic(t, "Packed.PartSize", func() { p.PartSize() })
	noPanic(t, "Packed.Size", func() { p.Size() })
	noPanic(t, "Regs", func() {
		regs.Set(NoReg, 1)
		regs.Value(NoReg)
		regs.Raw(NoReg)
		regs.Forget(NoReg)
		regs.Inherit(&Regs{}, 0)
	})
}
