package lua

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// Where the memory that FuzzLua begins with has what.
const (
	testBase   = 0x7f0000000000
	testState  = 0x100
	testCalls  = 0x200 // 5.1 has the array there; else calls are so far apart:
	testCall   = 0x80
	testValues = 0x600
	testFunc   = 0x700
	testProto  = 0x800
	testCode   = 0x900
	testText   = 0xa00
	testStack  = 0xe00 // of C
	testSize   = 0x1000
)

// newMemory makes a process in which a function calls itself in one luaV_execute.
func newMemory(f *fields) []byte {
	b, le := make([]byte, testSize), binary.LittleEndian
	put := func(at, v uint64) { le.PutUint64(b[at:], v) }
	b[testState+luaType] = luaStateType
	put(testState+f.global, testBase+8)
	put(testState+f.top, testBase+testValues+0x80)
	for i := range uint64(3) { // the first is where C begins
		at, value := testCalls+i*testCall, testValues+i*luaValueBytes
		if f.previous == 0 {
			at = testCalls + i*f.callBytes
			put(at+luaCallBase, testBase+value+luaValueBytes)
			put(at+luaCallTop, testBase+value+3*luaValueBytes)
		} else if i > 0 {
			put(at+f.previous, testBase+at-testCall)
		}
		put(at+f.function, testBase+value)
		put(at+f.next, testBase+testCode+8)
		switch {
		case f.previous == 0:
		case i == 0:
			le.PutUint16(b[at+f.status:], f.isC)
		case i == 1:
			le.PutUint16(b[at+f.status:], f.isLua|f.isFresh)
		default:
			le.PutUint16(b[at+f.status:], f.isLua|f.isInner)
		}
		put(testState+f.ci, testBase+at)
		if i > 0 {
			put(value, testBase+testFunc)
			b[value+luaType] = luaFunctionType
		}
	}
	if f.previous == 0 {
		b[testState+f.hook] = 1
		put(testState+luaCallBegin, testBase+testCalls)
		put(testState+luaNextNow, testBase+testCode+8)
		b[testProto+luaOldValues] = 2
	}
	b[testFunc+luaType] = luaFunctionType
	put(testFunc+f.proto, testBase+testProto)
	b[testProto+luaType] = f.protoType
	put(testProto+f.code, testBase+testCode)
	le.PutUint32(b[testProto+f.codeCount:], 4)
	le.PutUint32(b[testCode+4:], f.opCall)
	le.PutUint32(b[testProto+f.lineDefined:], 7)
	put(testProto+f.source, testBase+testText)
	b[testText+luaType] = luaStringType
	const source = "@/app.lua"
	if f.version >= 53 {
		b[testText+luaShortSize] = byte(len(source))
	} else {
		put(testText+luaStringSize, uint64(len(source)))
	}
	copy(b[testText+luaStringData:], source)
	return b
}

// Where the memory of namedMemory has what is added.
const (
	testName    = 0xb00
	testHolder  = 0xb40
	testOther   = 0xb60
	testUpvalue = 0xb90 // what the function calls it,
	testHeld    = 0xbc0 // and where that is
	testTable   = 0xc00
	testNodes   = 0xc40
	testConst   = 0xca0
	testProtos  = 0xcc0
)

// namedMemory adds to the memory of newMemory a variable of the function's, holder, with a table whose field, field, has
// the function.
func namedMemory(f *fields) []byte {
	b, le := newMemory(f), binary.LittleEndian
	put := func(at, v uint64) { le.PutUint64(b[at:], v) }
	for at, text := range map[int]string{testName: "field", testHolder: "holder", testOther: "held"} {
		b[at+luaType] = luaStringType
		if f.version >= 53 {
			b[at+luaShortSize] = byte(len(text))
		} else {
			put(uint64(at+luaStringSize), uint64(len(text)))
		}
		copy(b[at+luaStringData:], text)
	}
	if b[testFunc+luaClosureCount] = 1; f.version == 51 {
		b[testFunc+luaClosureIsC], b[testFunc+luaOldClosureCount] = 0, 1
	}
	put(testFunc+f.proto+8, testBase+testUpvalue+8)
	put(testUpvalue+8+f.upvalueHolds, testBase+testHeld)
	put(testHeld, testBase+testTable)
	b[testHeld+luaType] = luaTableType
	put(testProto+f.upvalues, testBase+testUpvalue)
	le.PutUint32(b[testProto+f.upvalueCount:], 1)
	put(testUpvalue, testBase+testHolder)
	b[testTable+luaType] = luaTableType
	put(testTable+uint64(f.nodes), testBase+testNodes)
	put(testNodes, testBase+testFunc)
	b[testNodes+luaType] = luaFunctionType
	put(testNodes+uint64(f.nodeKey), testBase+testName)
	b[testNodes+f.nodeKeyType] = luaStringType
	return b
}

// madeMemory adds to the memory of namedMemory an instruction that makes the function, and one that stores it.
func madeMemory(f *fields, store uint32) []byte {
	b, le := namedMemory(f), binary.LittleEndian
	put := func(at, v uint64) { le.PutUint64(b[at:], v) }
	reg := uint(6)
	if f.version >= 54 {
		reg = 7
	}
	le.PutUint32(b[testCode+8:], f.opClosure|testReg<<reg)
	le.PutUint32(b[testCode+12:], store)
	put(testProto+f.protos, testBase+testProtos)
	le.PutUint32(b[testProto+f.protoCount:], 1)
	put(testProtos, testBase+testProto)
	put(testProto+f.constants, testBase+testConst)
	le.PutUint32(b[testProto+f.constantCount:], 1)
	put(testConst, testBase+testName)
	b[testConst+luaType] = luaStringType
	return b
}

// testReg is the register with the function that is made.
const testReg = 2

// functions returns what runs in a frame of luaV_execute, innermost first.
func functions(f *fields, b []byte) (names []string) { return functionsOf(f, b, b) }

// functionsOf is the same where the process has other memory by now than was captured.
func functionsOf(f *fields, b, now []byte) (names []string) {
	snap, live := procstate.NewSnapshot(procstate.AMD64, 1, "", nil), procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: b}})
	live.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: now}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	vm := &machine{
		imageInfo: &imageInfo{fields: f, arch: procstate.AMD64, frame: unwind.RegRule{Kind: unwind.InReg, Reg: procstate.AMD64.SP, Offset: 0x40}, places: []keptPlace{{reg: 3}}},
		Memory:    vmread.Memory{Mem: live, Captured: snap}, asked: map[int]askedThread{}, calls: map[uint64]bool{},
		byConstants: map[uint64]*proto{}, ofConstants: map[keptPlace]int{},
	}
	vm.begin(1)
	in := unwind.NewFrame(procstate.AMD64, 1, testBase, testBase+testStack)
	in.Regs.Set(3, testBase+testState)
	key := uint64(testBase + testCalls + 2*testCall)
	if f.previous == 0 {
		key = testBase + testValues + 3*luaValueBytes
	}
	in.Regs.Set(6, key)
	for code := vm.codeOf(w, &in); code != 0; code = w.Codes().Outer(code) {
		for _, l := range w.Codes().Lines(code) {
			names = append(names, l.Name)
		}
	}
	return names
}

// Calls of one luaV_execute have their functions, in all versions.
func TestLuaCalls(t *testing.T) {
	for version, f := range versions {
		if got := functions(f, newMemory(f)); len(got) != 2 || got[0] != "app.lua:7" || got[1] != got[0] {
			t.Errorf("%d: %q", version, got)
		}
	}
}

// A function is called as the field of a table that has it.
func TestLuaHeld(t *testing.T) {
	for version, f := range versions {
		if got := functions(f, namedMemory(f)); len(got) != 2 || got[0] != "field" || got[1] != got[0] {
			t.Errorf("%d: %q", version, got)
		}
	}
}

// A function is called as what it is stored into where it is made, and as what has it where that is not told.
func TestLuaMade(t *testing.T) {
	const key = 1 << 31 // constant 0
	for version, f := range versions {
		stores := map[string]uint32{}
		if version < 54 {
			stores["field of a register"] = f.opSetField | testReg<<14 | key
			stores["upvalue"] = f.opSetUpvalue | testReg<<6
			stores["another register"] = f.opSetField | (testReg+1)<<14 | key
			stores["a key in a register"] = f.opSetField | testReg<<14
		} else {
			stores["field of a register"] = f.opSetField | testReg<<24
			stores["upvalue"] = f.opSetUpvalue | testReg<<7
			stores["another register"] = f.opSetField | (testReg+1)<<24
			stores["a constant"] = f.opSetField | testReg<<24 | 1<<15
		}
		switch {
		case version == 51:
			stores["global"] = f.opSetGlobal | testReg<<6
		case version < 54:
			stores["global"] = f.opSetTabUp | testReg<<14 | key
		default:
			stores["global"] = f.opSetTabUp | testReg<<24
		}
		for kind, store := range stores {
			want := "held"
			switch kind {
			case "field of a register", "global":
				want = "field"
			case "upvalue":
				want = "holder"
			}
			b := madeMemory(f, store)
			binary.LittleEndian.PutUint64(b[testNodes+f.nodeKey:], testBase+testOther)
			if got := functions(f, b); len(got) != 2 || got[0] != want || got[1] != want {
				t.Errorf("%d, %s: %q, want %q", version, kind, got, want)
			}
		}
	}
}

// A name is a function's only while that is the one that had it: another one may come to be at its place.
func TestLuaNameOfAnother(t *testing.T) {
	for version, f := range versions {
		snap := procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
		snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: testBase, Data: newMemory(f)}})
		vm := &machine{imageInfo: &imageInfo{fields: f}, Memory: vmread.Memory{Mem: snap}}
		p := vm.readProto(testBase + testProto)
		was := vm.is(p)
		was.line++
		vm.names.until = vm.now.Add(1) // what has it is not looked at
		for _, by := range []*map[uint64]protoName{&vm.names.made, &vm.names.held} {
			*by, vm.names.read = map[uint64]protoName{p.at: {"another", was}}, p.seekAt
			if vm.seek(p); p.isNamed {
				t.Fatalf("%d: called %s", version, p.Name)
			}
		}
		vm.names.held[p.at], vm.names.read = protoName{"its own", vm.is(p)}, p.seekAt
		if vm.seek(p); p.Name != "its own" {
			t.Errorf("%d: called %s", version, p.Name)
		}
	}
}

// Where Lua has moved its values since calls were copied, their functions are known by the calls that run now.
func TestLuaLearns(t *testing.T) {
	for version, f := range versions {
		if f.previous == 0 {
			continue
		}
		then, now := newMemory(f), newMemory(f)
		const moved = testStack + 0x100
		for i := range uint64(3) {
			copy(now[moved+i*luaValueBytes:], then[testValues+i*luaValueBytes:][:luaValueBytes])
			clear(then[testValues+i*luaValueBytes:][:luaValueBytes])
			clear(now[testValues+i*luaValueBytes:][:luaValueBytes])
			binary.LittleEndian.PutUint64(now[testCalls+i*testCall+f.function:], testBase+moved+i*luaValueBytes)
		}
		if got := functionsOf(f, then, now); len(got) != 2 || got[0] != "app.lua:7" || got[1] != got[0] {
			t.Errorf("%d: %q", version, got)
		}
		clear(now[testState:][:f.state])
		if got := functionsOf(f, then, now); len(got) != 2 || got[0] != "[not read]" || got[1] != got[0] {
			t.Errorf("%d, without its lua_State: %q", version, got)
		}
	}
}

// FuzzLua has all that is read of Lua be anything.
func FuzzLua(f *testing.F) {
	for version, fields := range versions {
		f.Add(uint8(version), newMemory(fields))
		f.Add(uint8(version), namedMemory(fields))
		f.Add(uint8(version), madeMemory(fields, fields.opSetUpvalue))
	}
	f.Fuzz(func(t *testing.T, version uint8, memory []byte) {
		fields := versions[int(version)]
		if fields == nil {
			return
		}
		if n := len(functions(fields, memory)); n > maxCalls+1 {
			t.Errorf("%d functions", n)
		}
	})
}
