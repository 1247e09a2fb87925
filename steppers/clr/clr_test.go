package clr

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/dotnet"
	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// testFrame is a frame with its stack at 0x1000, whose words are 1, 2, 3 and so on.
func testFrame(pc, sp, fp uint64) (*unwind.Walker, unwind.Frame) {
	stack := make([]byte, 0, 0x400)
	for i := range uint64(0x80) {
		stack = binary.LittleEndian.AppendUint64(stack, i+1)
	}
	snap := procstate.NewSnapshot(procstate.AMD64, 1, "", new(procstate.AddressSpace))
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: 0x1000, Data: stack}})
	f := unwind.NewFrame(procstate.AMD64, pc, sp, fp)
	f.Flags |= unwind.Interrupted
	return unwind.NewWalker(snap, unwind.NewGroup(), nil), f
}

// The prologue of a method, as it is told, is undone as far as it has come.
func TestCLRUnwind(t *testing.T) {
	const base = 0x100000
	rbx, r15 := procstate.Reg(3), procstate.Reg(15)
	mem := steptest.Memory{}
	// push rbp; push r15; push rbx; sub $0x28, rsp; lea 0x20(rsp), rbp
	mem.Put(base+0x80, 1|3<<3, 13, 5, 5|2<<4, 13, 3, 8, 4<<4|2, 4, 3<<4, 3, 15<<4, 1, 5<<4, 0, 0)
	f := function{begin: 0x5000, end: 0x5100}
	if !f.readUnwindAMD64(mem.Read, base, 0x80) {
		t.Fatal("not understood")
	}
	for _, test := range []struct {
		at, sp     uint64 // offset in the function, and where SP is
		ra         uint64
		fp         uint64 // what it is in the caller; 0: it was not saved yet
		rbx, known bool
	}{
		{0, 0x1100, 0x21, 0, false, true},
		{1, 0x10f8, 0x21, 0x20, false, true},
		{3, 0x10f0, 0x21, 0x20, false, true},
		{4, 0x10e8, 0x21, 0x20, true, true},
		{8, 0x10c0, 0x21, 0x20, true, true},
		{13, 0x10c0, 0x21, 0x20, true, true},
		{40, 0x1080, 0x21, 0x20, true, true}, // with something pushed: by the frame pointer
	} {
		w, in := testFrame(f.begin+test.at, test.sp, 0x10e0)
		var out unwind.Frame
		if v, err := f.callerFrame(w, &in, &out); v != unwind.Success || err != nil {
			t.Errorf("%d: %v, %v", test.at, v, err)
			continue
		}
		fp := test.fp
		if fp == 0 {
			fp = in.FP()
		}
		if out.PC() != test.ra || out.SP() != 0x1108 || out.FP() != fp {
			t.Errorf("%d: pc %#x sp %#x fp %#x", test.at, out.PC(), out.SP(), out.FP())
		}
		if v, ok := out.Regs.Value(rbx); ok != test.rbx || ok && v != 0x1e {
			t.Errorf("%d: rbx %#x, %v", test.at, v, ok)
		}
		if v, ok := out.Regs.Value(r15); ok && v != 0x1f {
			t.Errorf("%d: r15 %#x", test.at, v)
		}
	}
	for _, damaged := range [][]byte{{2, 1, 1, 0, 1, 5 << 4}, {1, 1, 1, 0, 1, 1}, {1, 1, 1, 0, 1, 12}, {1}, {1 | 4<<3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0}} {
		mem := steptest.Memory{}
		mem.Put(base+0x80, damaged...)
		if f.readUnwindAMD64(mem.Read, base, 0x80) {
			t.Errorf("%x is understood", damaged)
		}
	}
}

// The rest of an epilogue is told from other code.
func TestCLREpilogue(t *testing.T) {
	f := function{begin: 0x5000, end: 0x5100}
	for code, want := range map[string]struct {
		ok    bool
		ra    uint64 // in words from where SP, or where the frame pointer is
		popFP bool
	}{
		"\xc3":                                     {true, 0, false},
		"\x5d\xc3":                                 {true, 1, true},
		"\x48\x83\xc4\x10\x5b\x5d\xc3":             {true, 4, true},
		"\xc5\xf8\x77\x48\x83\xc4\x10\x5d\xc3":     {true, 3, true},
		"\x48\x8d\x65\xf0\x5b\x41\x5c\x5d\xc3":     {true, 0x11, true}, // lea -16(%rbp), %rsp
		"\x5d\xff\xe0":                             {true, 1, true},
		"\xff\x25\x00\x10\x00\x00":                 {true, 0, false}, // jmp *0x1000(%rip)
		"\x48\xff\xe0":                             {true, 0, false}, // rex.W jmp *%rax
		"\xe9\x00\x10\x00\x00":                     {true, 0, false}, // out of the function,
		"\xe9\x10\x00\x00\x00":                     {false, 0, false},
		"\xff\xe0":                                 {false, 0, false}, // as a switch has it
		"\x48\x8b\x45\xf8\xc3":                     {false, 0, false},
		"\x48\x83\xec\x10\x5d\xc3":                 {false, 0, false},
		"\x5d":                                     {false, 0, false},
		"\x5b\x5b\x5b\x5b\x5b\x5b\x5b\x5b\x5b\xc3": {false, 0, false},
	} {
		e := f.epilog([]byte(code), f.begin+0x20)
		if e.ok != want.ok {
			t.Errorf("% x: %v", code, e.ok)
			continue
		}
		if !e.ok {
			continue
		}
		w, in := testFrame(f.begin+0x20, 0x1000, 0x1080)
		var out unwind.Frame
		if v, err := e.callerFrame(w, &in, &out); v != unwind.Success || out.PC() != want.ra+1 || (out.FP() == in.FP()) == want.popFP {
			t.Errorf("% x: %v, %v, pc %#x fp %#x", code, v, err, out.PC(), out.FP())
		}
	}
}

// Code that jumps on has its return address where what it has pushed ends.
func TestCLRThunk(t *testing.T) {
	for code, want := range map[string]int{
		"\xff\x25\xfa\x3f\x00\x00": 0,
		"\x48\x8b\x05\xf9\x3f\x00\x00\x66\xff\x08\x74\x06\xff\x25\xf6\x3f\x00\x00": 0, // counts calls
		"\x52\x4c\x8b\x17\x5a\xff\xe0":                                             0,
		"\x4c\x8b\x17\x5a\xff\xe0":                                                 8,
		"\xe8\x00\x00\x00\x00\xc3":                                                 -1,
		"\x48\x89\xc4\xc3":                                                         -1,
		"\x48\x8b\x05":                                                             -1,
		"\x50\xc3":                                                                 -1,
	} {
		at, ok := thunk(procstate.AMD64, []byte(code), 0x5000)
		if ok != (want >= 0) || ok && at != uint64(want) {
			t.Errorf("% x: %d, %v", code, at, ok)
		}
	}
}

// Where code begins is found in both kinds of map.
func TestCLRStart(t *testing.T) {
	const base, at = 0x10000, 0x900000
	starts := []uint64{0x10, 0x44, 0x60, 0x1000, 0x5004}
	for _, quick := range []bool{false, true} {
		words := make([]uint32, 0x400)
		for i, s := range starts {
			words[s/256] |= uint32(s%32/4+1) << (28 - 4*(s/32%8))
			end := uint64(0x6000)
			if i+1 < len(starts) {
				end = starts[i+1]
			}
			for w := s/256 + 1; quick && 256*(w+1) <= end; w++ { // code is all of it
				words[w] = uint32(s&^15 + s%16/4 + 9)
			}
		}
		mem := steptest.Memory{}
		for i, w := range words {
			mem.Put(at+4*uint64(i), binary.LittleEndian.AppendUint32(nil, w)...)
		}
		vm := &machine{Memory: vmread.Memory{Mem: mem}, fields: &fields{quickMap: quick}}
		for _, test := range []struct{ pc, start uint64 }{{0x10, 0x10}, {0x43, 0x10}, {0x44, 0x44}, {0x5f, 0x44}, {0x60, 0x60}, {0xfff, 0x60}, {0x1000, 0x1000}, {0x4800, 0x1000}, {0x5003, 0x1000}, {0x5fff, 0x5004}} {
			start, ok := vm.startAt(&codeSection{heapBase: base, heapMap: at}, base+test.pc)
			if !ok || start != base+test.start {
				t.Errorf("quick %v: %#x begins at %#x, %v", quick, test.pc, start-base, ok)
			}
		}
		if start, ok := vm.startAt(&codeSection{heapBase: base, heapMap: at}, base+0xf); ok {
			t.Errorf("%#x begins at %#x", 0xf, start)
		}
	}
}

// What a hash map holds is found, also where it is not in the first place for it.
func TestCLREntry(t *testing.T) {
	const hashMap, buckets, n = 0x1000, 0x2000, 7
	mem := steptest.Memory{}
	mem.Words(hashMap, 0, 0, buckets)
	for i := range uint64(8 * (n + 1)) {
		mem.Words(buckets+8*i, 0)
	}
	mem.Words(buckets, n)
	vm := &machine{Memory: vmread.Memory{Mem: mem}}
	put := func(key, value uint64) {
		seed, step := uint32(key>>2), 1+(uint32(key>>5)+1)%(n-1)
		for range n {
			b := buckets + clrBucketBytes*(1+uint64(seed)%n)
			for i := range uint64(clrBucketSlots) {
				if v, _ := mem.ReadWord(b + 8*i); v == 0 {
					flag, _ := mem.ReadWord(b + 32 + 8*i)
					mem.Words(b+8*i, key)
					mem.Words(b+32+8*i, flag&(1<<63)|value>>1)
					return
				}
			}
			flag, _ := mem.ReadWord(b + 32)
			mem.Words(b+32, flag|1<<63)
			seed += step
		}
		t.Fatal("full")
	}
	for i := range uint64(20) {
		put(0x7f0012340000+0x40*i, 0x5000+16*i)
	}
	for i := range uint64(20) {
		if got := vm.entry(hashMap, 0x7f0012340000+0x40*i); got != 0x5000+16*i {
			t.Errorf("%d: %#x", i, got)
		}
	}
	if got := vm.entry(hashMap, 0x7f0012340000+0x40*21); got != 0 {
		t.Errorf("%#x", got)
	}
}

// descriptorText is a descriptor's text, with offsets that are as in .NET 10.
const descriptorText10 = `{"version":0,"baseline":"empty","types":{"Module":{"PEAssembly":216,"ReadyToRunInfo":704,"Path":200,"FileName":208},
"PEAssembly":{"PEImage":8},"PEImage":{"LoadedImageLayout":128},"PEImageLayout":{"Base":8},"MethodTable":{"!":64,"Module":24},
"MethodDesc":{"!":16,"ChunkIndex":2,"Flags":6,"Flags3AndTokenRemainder":0},"MethodDescChunk":{"!":24,"MethodTable":0,"FlagsAndTokenRange":18},
"DynamicMethodDesc":{"!":48,"MethodName":[32,"pointer"]},"ReadyToRunInfo":{"ReadyToRunHeader":16,"CompositeInfo":40,"NumRuntimeFunctions":88,"RuntimeFunctions":80,"NumHotColdMap":104,"EntryPointToMethodDescMap":360},
"RuntimeFunction":{"!":12},"HashMap":{"Buckets":16},"Bucket":{"!":64,"Values":32},"RangeSectionMap":{"TopLevelData":0},
"RangeSectionFragment":{"RangeBegin":8,"RangeEndOpen":16,"RangeSection":24,"Next":0},"RangeSection":{"RangeBegin":0,"RangeEndOpen":8,"Flags":16,"HeapList":40,"R2RModule":32},
"RealCodeHeader":{"MethodDesc":24,"GCInfo":16,"NumUnwindInfos":32,"UnwindInfos":36},"CodeHeapListNode":{"MapBase":32,"HeaderMap":40}},
"globals":{"MethodDescTokenRemainderBitCount":["0xc","uint8"],"ExecutionManagerCodeRangeMapAddress":[[20],"pointer"]},"contracts":{"ExecutionManager":2}}`

// What a descriptor tells is taken from it, or nothing where something lacks or is otherwise.
func TestCLRFields(t *testing.T) {
	f := fieldsIn([]byte(descriptorText10), 24, bytesAMD64)
	if f == nil {
		t.Fatal("not understood")
	}
	if !f.quickMap || !f.isTold || f.rangeMap != 20 || f.tokenBits != 12 || f.readyToRun != 704 || f.dynamicName != 32 || f.entries != 360 {
		t.Errorf("%+v", f)
	}
	if f.debug != formPacked || f.header != 16 || f.path != 200 {
		t.Errorf("lines: %+v", f)
	}
	for _, change := range [][2]string{{`"GCInfo":16`, `"GCInfo":8`}, {`"Path":200,`, ``}, {`"contracts":{`, `"contracts":{"DebugInfo":2,`}} {
		f := fieldsIn([]byte(strings.Replace(descriptorText10, change[0], change[1], 1)), 24, bytesAMD64)
		if f == nil || f.debug != formUnknown {
			t.Errorf("with %s for %s lines are known: %+v", change[1], change[0], f)
		}
	}
	for _, change := range [][2]string{{`"PEImage":8`, `"PEImage":-8`}, {`"Module":24`, `"Modul":24`}, {`"MapBase":32`, `"MapBase":48`}, {`"0xc"`, `"0x40"`}, {`[[20]`, `[[24]`}, {`[[20]`, `[[]`}, {`}`, ``}} {
		if fieldsIn([]byte(strings.Replace(descriptorText10, change[0], change[1], 1)), 24, bytesAMD64) != nil {
			t.Errorf("%s for %s is understood", change[1], change[0])
		}
	}
}

// testModule is a module with a type A.B, one C within it, and methods, as a file is or as it is loaded.
func testModule(loaded bool) []byte {
	le := binary.LittleEndian
	var meta []byte
	strs := "\x00B\x00A\x00C\x00Run\x00.ctor\x00<Module>\x00List`1\x00Sys\x00Stop\x00"
	str := func(s string) uint16 { return uint16(strings.Index(strs, "\x00"+s+"\x00") + 1) }
	// instance void (int, ref A.B.C[], List<string>, !!0)
	blob := "\x00\x10\x20\x04\x01\x08\x10\x1d\x12\x0c\x15\x12\x05\x01\x0e\x1e\x00"
	var tables []byte
	u16 := func(v ...uint16) {
		for _, v := range v {
			tables = le.AppendUint16(tables, v)
		}
	}
	tables = append(tables, 0, 0, 0, 0, 2, 0, 0, 1)
	tables = le.AppendUint64(tables, 1<<0|1<<typeRef|1<<typeDef|1<<methodDef|1<<nestedClass)
	tables = le.AppendUint64(tables, 0)
	for _, rows := range []uint32{1, 1, 3, 4, 1} {
		tables = le.AppendUint32(tables, rows)
	}
	u16(0, 0, 0, 0, 0)                                                                                    // Module
	u16(0, str("List`1"), str("Sys"))                                                                     // TypeRef
	u16(0, 0, str("<Module>"), 0, 0, 1, 1, 0, 0, str("B"), str("A"), 0, 1, 2, 0, 0, str("C"), 0, 0, 1, 4) // TypeDef
	for _, name := range []string{"Stop", ".ctor", "Run", "Run"} {
		u16(0, 0, 0, 0, str(name), 1, 1)
	}
	u16(3, 2) // NestedClass
	meta = append(meta, "BSJB\x01\x00\x01\x00\x00\x00\x00\x00\x04\x00\x00\x00v4.0\x00\x00\x03\x00"...)
	at := uint32(len(meta) + 12 + 20 + 16)
	for _, s := range []struct {
		name string
		data string
	}{{"#~\x00\x00", string(tables)}, {"#Strings\x00\x00\x00\x00", strs}, {"#Blob\x00\x00\x00", blob}} {
		meta = le.AppendUint32(meta, at)
		meta = le.AppendUint32(meta, uint32(len(s.data)))
		meta = append(meta, s.name...)
		at += uint32(len(s.data))
	}
	meta = append(meta, string(tables)+strs+blob...)

	const rva, raw = 0x2000, 0x400
	file := make([]byte, 0x2000)
	copy(file, "MZ")
	le.PutUint32(file[0x3c:], 0x80)
	copy(file[0x80:], "PE\x00\x00")
	le.PutUint16(file[0x86:], 1)
	le.PutUint16(file[0x94:], 240)
	le.PutUint16(file[0x98:], 0x20b)
	le.PutUint32(file[0x98+112+8*14:], rva)
	section := file[0x98+240:]
	le.PutUint32(section[8:], 0x1000)
	le.PutUint32(section[12:], rva)
	le.PutUint32(section[16:], 0x1000)
	le.PutUint32(section[20:], raw)
	to := uint32(raw)
	if loaded {
		file, to = append(file, make([]byte, 0x1000)...), rva
	}
	le.PutUint32(file[to:], 72)
	le.PutUint32(file[to+8:], rva+0x100)
	copy(file[to+0x100:], meta)
	return file
}

// Names of methods, of the types that they are of and of parameters are those of the module's metadata.
func TestCLRMetadata(t *testing.T) {
	const base = 0x400000
	for _, loaded := range []bool{false, true} {
		mem := steptest.Memory{}
		mem.Put(base, testModule(loaded)...)
		m := readModule(mem.Read, base)
		if m == nil {
			t.Fatal("not understood")
		}
		for n, want := range []string{" ", "<Module> Stop(Int32, C[]&, List`1[String], !!0)", "A.B .ctor(Int32, C[]&, List`1[String], !!0)", "A.B Run(Int32, C[]&, List`1[String], !!0)", "A.B.C Run(Int32, C[]&, List`1[String], !!0)", " "} {
			name, typ, parameters := m.method(uint64(n))
			if got := typ + " " + name + parameters; got != want {
				t.Errorf("loaded %v, %d: %s, want %s", loaded, n, got, want)
			}
		}
	}
}

// Whatever a process tells, reading it has an end, and an early one.
func TestCLRLies(t *testing.T) {
	for of, arch := range archs {
		liar := steptest.NewLiar(of, new(procstate.AddressSpace), "")
		for seed := range uint64(200) {
			pc := 0x7f0000000000 + seed<<12
			liar.Begin(seed, pc, 0x7fff00000000)
			vm := &machine{Memory: vmread.Memory{Mem: liar}, image: &image{table: 1}, arch: arch, fields: &fields8, pdbs: &pdbs{}, root: t.TempDir()}
			vm.forget()
			vm.rangeMap = 0x7f1000000000
			var codes unwind.Codes
			in := unwind.NewFrame(of, pc, 0x7fff00000000, 0)
			if f := vm.functionAt(pc); f != nil {
				vm.codeOf(&codes, f, &in)
			}
			for _, section := range []codeSection{{low: pc - 4096, high: pc + 4096, heapBase: pc - 1<<30, heapMap: 0x7f2000000000}, {low: pc - 4096, high: pc + 4096, module: 0x7f3000000000}} {
				for _, find := range []func(*codeSection, uint64) *function{vm.madeFunction, vm.aheadFunction} {
					if f := find(&section, pc); f != nil {
						f.checked = time.Now()
						vm.codeOf(&codes, f, &in)
						vm.debugOf(f).ilOffset(vm.ReadNow, uint32(seed))
					}
				}
			}
			readFields(vm.ReadNow, pc, arch.functionBytes)
			if liar.Reads > 1<<20 {
				t.Fatalf("%s, seed %d: %d reads", of.Name, seed, liar.Reads)
			}
		}
	}
}

// FuzzCLR has all that is read of the virtual machine be anything.
func FuzzCLR(f *testing.F) {
	f.Add(testModule(false))
	f.Add(testModule(true))
	f.Add([]byte(descriptorText10))
	f.Add(dotnet.DLL)
	f.Add(dotnet.Embedded)
	f.Fuzz(func(_ *testing.T, data []byte) {
		const base = 0x400000
		read := func(addr uint64, buf []byte) bool {
			if addr-base >= uint64(len(data)) {
				return false
			}
			return copy(buf, data[addr-base:]) == len(buf)
		}
		if m := readModule(read, base); m != nil {
			for n := range uint64(6) {
				m.method(n)
			}
			vm := &machine{Memory: vmread.Memory{Mem: bytesAt{base, data}}}
			vm.readEmbedded(&m.symbols)
		}
		fieldsIn(data, 24, bytesAMD64)
		var u unwindInfo
		u.readUnwindAMD64(read, base, 0)
		fn := function{begin: 0x5000, end: 0x5100}
		fn.epilog(data[:min(len(data), codeBytes)], 0x5000)
		for of, arch := range archs {
			thunk(of, data[:min(len(data), codeBytes)], 0x5000)
			arch.readUnwind(&fn, read, base, append(make([]byte, arch.functionBytes-4), 4, 0, 0, 0))
			fn.undone(8)
		}
	})
}
