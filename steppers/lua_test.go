package steppers

import (
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// Where the memory that FuzzLua begins with has what.
const (
	luaTestBase   = 0x7f0000000000
	luaTestState  = 0x100
	luaTestCalls  = 0x200 // 5.1 has the array there; else calls are so far apart:
	luaTestCall   = 0x80
	luaTestValues = 0x600
	luaTestFunc   = 0x700
	luaTestProto  = 0x800
	luaTestCode   = 0x900
	luaTestText   = 0xa00
	luaTestStack  = 0xe00 // of C
	luaTestSize   = 0x1000
)

// newLuaMemory makes a process in which a function calls itself in one luaV_execute.
func newLuaMemory(f *luaFields) []byte {
	b, le := make([]byte, luaTestSize), binary.LittleEndian
	put := func(at, v uint64) { le.PutUint64(b[at:], v) }
	b[luaTestState+luaType] = luaStateType
	put(luaTestState+f.global, luaTestBase+8)
	put(luaTestState+f.top, luaTestBase+luaTestValues+0x80)
	for i := range uint64(3) { // the first is where C begins
		at, value := luaTestCalls+i*luaTestCall, luaTestValues+i*luaValueBytes
		if f.previous == 0 {
			at = luaTestCalls + i*f.callBytes
			put(at+luaCallBase, luaTestBase+value+luaValueBytes)
			put(at+luaCallTop, luaTestBase+value+3*luaValueBytes)
		} else if i > 0 {
			put(at+f.previous, luaTestBase+at-luaTestCall)
		}
		put(at+f.function, luaTestBase+value)
		put(at+f.next, luaTestBase+luaTestCode+8)
		switch {
		case f.previous == 0:
		case i == 0:
			b[at+f.status] = f.isC
		case i == 1:
			b[at+f.status] = f.isLua | f.isFresh
		default:
			b[at+f.status] = f.isLua | f.isInner
		}
		put(luaTestState+f.ci, luaTestBase+at)
		if i > 0 {
			put(value, luaTestBase+luaTestFunc)
			b[value+luaType] = luaFunctionType
		}
	}
	if f.previous == 0 {
		b[luaTestState+f.hook] = 1
		put(luaTestState+luaCallBegin, luaTestBase+luaTestCalls)
		put(luaTestState+luaNextNow, luaTestBase+luaTestCode+8)
		b[luaTestProto+luaOldValues] = 2
	}
	b[luaTestFunc+luaType] = luaFunctionType
	put(luaTestFunc+f.proto, luaTestBase+luaTestProto)
	b[luaTestProto+luaType] = f.protoType
	put(luaTestProto+f.code, luaTestBase+luaTestCode)
	le.PutUint32(b[luaTestProto+f.codeCount:], 4)
	le.PutUint32(b[luaTestCode+4:], f.opCall)
	le.PutUint32(b[luaTestProto+f.lineDefined:], 7)
	put(luaTestProto+f.source, luaTestBase+luaTestText)
	b[luaTestText+luaType] = luaStringType
	const source = "@/app.lua"
	if f.version >= 53 {
		b[luaTestText+luaShortSize] = byte(len(source))
	} else {
		put(luaTestText+luaStringSize, uint64(len(source)))
	}
	copy(b[luaTestText+luaStringData:], source)
	return b
}

// luaFunctions returns what runs in a frame of luaV_execute, innermost first.
func luaFunctions(f *luaFields, b []byte) (names []string) { return luaFunctionsOf(f, b, b) }

// luaFunctionsOf is the same where the process has other memory by now than was captured.
func luaFunctionsOf(f *luaFields, b, now []byte) (names []string) {
	snap, live := procstate.NewSnapshot(procstate.AMD64, 1, "", nil), procstate.NewSnapshot(procstate.AMD64, 1, "", nil)
	snap.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: luaTestBase, Data: b}})
	live.Reset(1, &procstate.Regs{}, []procstate.Region{{Addr: luaTestBase, Data: now}})
	w := unwind.NewWalker(snap, unwind.NewGroup(), nil)
	vm := &luaVM{
		luaImage: &luaImage{fields: f, frame: unwind.RegRule{Kind: unwind.InReg, Reg: procstate.AMD64.SP, Offset: 0x40}, places: []luaPlace{{reg: 3}}},
		vmMemory: vmMemory{mem: live, captured: snap}, asked: map[int]luaAsked{}, calls: map[uint64]bool{},
		byConstants: map[uint64]*luaProto{}, ofConstants: map[luaPlace]int{},
	}
	vm.begin(1)
	in := unwind.NewFrame(procstate.AMD64, 1, luaTestBase, luaTestBase+luaTestStack)
	in.Regs.Set(3, luaTestBase+luaTestState)
	key := uint64(luaTestBase + luaTestCalls + 2*luaTestCall)
	if f.previous == 0 {
		key = luaTestBase + luaTestValues + 3*luaValueBytes
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
	for version, f := range luaVersions {
		if got := luaFunctions(f, newLuaMemory(f)); len(got) != 2 || got[0] != "app.lua:7" || got[1] != got[0] {
			t.Errorf("%d: %q", version, got)
		}
	}
}

// Where Lua has moved its values since calls were copied, their functions are known by the calls that run now.
func TestLuaLearns(t *testing.T) {
	for version, f := range luaVersions {
		if f.previous == 0 {
			continue
		}
		then, now := newLuaMemory(f), newLuaMemory(f)
		const moved = luaTestStack + 0x100
		for i := range uint64(3) {
			copy(now[moved+i*luaValueBytes:], then[luaTestValues+i*luaValueBytes:][:luaValueBytes])
			clear(then[luaTestValues+i*luaValueBytes:][:luaValueBytes])
			clear(now[luaTestValues+i*luaValueBytes:][:luaValueBytes])
			binary.LittleEndian.PutUint64(now[luaTestCalls+i*luaTestCall+f.function:], luaTestBase+moved+i*luaValueBytes)
		}
		if got := luaFunctionsOf(f, then, now); len(got) != 2 || got[0] != "app.lua:7" || got[1] != got[0] {
			t.Errorf("%d: %q", version, got)
		}
		clear(now[luaTestState:][:f.state])
		if got := luaFunctionsOf(f, then, now); len(got) != 2 || got[0] != "[gone]" || got[1] != got[0] {
			t.Errorf("%d, without its lua_State: %q", version, got)
		}
	}
}

// FuzzLua has all that is read of Lua be anything.
func FuzzLua(f *testing.F) {
	for version, fields := range luaVersions {
		f.Add(uint8(version), newLuaMemory(fields))
	}
	f.Fuzz(func(t *testing.T, version uint8, memory []byte) {
		fields := luaVersions[int(version)]
		if fields == nil {
			return
		}
		if n := len(luaFunctions(fields, memory)); n > maxLuaCalls+1 {
			t.Errorf("%d functions", n)
		}
	})
}
