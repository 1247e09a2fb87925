package v8

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// wasmMemory is a process with a module, of which the tree has the code of one function, and the list of new code another's.
type wasmMemory struct {
	*memory
	native, node, frame uint64
	old, young          uint64 // code
}

const (
	wasmBytesAt = 240
	wasmRootAt  = 328
	wasmOld     = 0x7f0000001000 // where code is
	wasmYoung   = 0x7f0000002000
)

func newWasmMemory() *wasmMemory {
	m := &wasmMemory{memory: newMemory(make([]byte, 1<<12))}
	text := func(b []byte) uint64 {
		at := m.room(uint64(len(b)))
		copy(m.b[at-base:], b)
		return at
	}
	words := func(n int, at map[int]uint64) uint64 {
		addr := m.room(uint64(n))
		for off, v := range at {
			m.put(addr+uint64(off), v)
		}
		return addr
	}
	names := bytes.Join([][]byte{part([]byte("name")...), {1}, part(bytes.Join([][]byte{{2}, {0}, part([]byte("old")...), {1}, part([]byte("young")...)}, nil)...)}, nil)
	module := bytes.Join([][]byte{[]byte(wasmMagic), {3}, part(2, 0, 0), {0}, part(names...)}, nil)
	m.native = m.room(wasmNativeBytes)
	code := func(start uint64, index uint64) uint64 {
		return words(wasmCodeBytes, map[int]uint64{0: m.native, wasmCodeStart: start, 32: 64, 56: index})
	}
	m.old, m.young = code(wasmOld, 0), code(wasmYoung, 1)
	m.node = words(wasmNodeBytes, map[int]uint64{wasmNodeParent: m.native + wasmRootAt - wasmNodeParent, wasmNodeStart: wasmOld, wasmNodeCode: m.old})
	list := words(8, map[int]uint64{0: m.young})
	m.put(m.native+wasmBytesAt, words(16, map[int]uint64{0: text(module), 8: uint64(len(module))}))
	m.put(m.native+wasmRootAt, m.node)
	for i, v := range []uint64{list, list + 8, list + 8} {
		m.put(m.native+wasmRootAt+wasmNewCode+8*uint64(i), v)
	}
	shared := words(8, map[int]uint64{0: m.native})
	owner := words(32, map[int]uint64{wasmShared: shared})
	holder := words(wasmObjectBytes, map[int]uint64{wasmHolder: owner}) + 1
	between := words(wasmObjectBytes, map[int]uint64{24: holder}) + 1
	instance := words(wasmInstanceBytes, map[int]uint64{208: between}) + 1
	m.frame = words(32, map[int]uint64{0: instance, 8: 8}) + wasmFrameInstance
	return m
}

// at returns what the function is called that a frame in a call of code runs, "" where that is not known.
func (m *wasmMemory) at(pc uint64) string {
	fr := &unwind.Frame{}
	fr.SetPC(procstate.AMD64, pc+1)
	fr.SetSP(procstate.AMD64, m.frame-32)
	fr.SetFP(procstate.AMD64, m.frame)
	c := m.vm.wasmAt(fr)
	if c == nil {
		return ""
	}
	return c.lines(0)[0].Name
}

func (m *wasmMemory) want(t *testing.T, when string, old, young string) {
	t.Helper()
	if got := m.at(wasmOld + 8); got != old {
		t.Errorf("%s: %q, want %q", when, got, old)
	}
	if got := m.at(wasmYoung + 8); got != young {
		t.Errorf("%s: %q, want %q of the list", when, got, young)
	}
}

// forget has what was missed looked for, and what is known checked, again.
func (m *wasmMemory) forget() {
	m.vm.wasm.missed = nil
	for _, c := range m.vm.wasm.codes {
		c.checked = c.checked.Add(-interval)
	}
}

func TestWasmCode(t *testing.T) {
	m := newWasmMemory()
	m.want(t, "at first", "old", "young")
	if got := m.at(wasmOld + 64); got != "" {
		t.Errorf("behind code is %q", got)
	}
	m.put(m.young+wasmCodeStart, wasmYoung+0x1000) // the object is of other code by now
	m.forget()
	m.want(t, "code that is gone", "old", "")
	m.put(m.native+wasmBytesAt, m.native) // and the module is another
	m.vm.wasm.codes = nil
	m.forget()
	m.want(t, "a module that is gone", "", "")
}

// What a process says of its code may be anything.
func TestWasmLies(t *testing.T) {
	for name, lie := range map[string]func(m *wasmMemory){
		"a tree without an end":   func(m *wasmMemory) { m.put(m.node+wasmNodeRight, m.node); m.put(m.node+wasmNodeCode, 0) },
		"a list without an end":   func(m *wasmMemory) { m.put(m.native+wasmRootAt+wasmNewCode+8, 1<<40) },
		"code of another module":  func(m *wasmMemory) { m.put(m.old, m.native+8); m.put(m.young, m.native+8) },
		"functions there are not": func(m *wasmMemory) { m.put(m.old+56, 7); m.put(m.young+56, 1<<31) },
		"no bytes":                func(m *wasmMemory) { m.put(m.native+wasmBytesAt, 0) },
		"holders in a circle":     func(m *wasmMemory) { m.put(m.frame-wasmFrameInstance, m.frame-wasmFrameInstance+1) },
	} {
		m := newWasmMemory()
		lie(m)
		for _, pc := range []uint64{wasmOld + 8, wasmYoung + 8} {
			if got := m.at(pc); got != "" && !(name == "a list without an end" && got == "old") && !(name == "a tree without an end" && got == "young") {
				t.Errorf("%s: %q", name, got)
			}
		}
	}
	for n := range len(newWasmMemory().b) / 8 { // memory that ends, and words that are others
		m := newWasmMemory()
		v := binary.LittleEndian.Uint64(m.b[8*n:])
		for _, other := range []uint64{0, v + 8, ^v} {
			binary.LittleEndian.PutUint64(m.b[8*n:], other)
			m.at(wasmOld + 8)
			m.at(wasmYoung + 8)
			m.forget()
		}
	}
}
