package wazero

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/mcode"
	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// names is what is known of modules and their functions.
type names struct {
	engines      map[uint64]bool // by address: those whose compiled modules are looked for
	modules      []compiledModule
	modulesUntil time.Time // for how long these hold
	wasm         map[uint64]*wasmModule
	functions    map[uint64]interpretedFunction // of the interpreter, by address

	serial uint32             // of modules
	codes  map[codeKey]uint32 // numbers in unwind.Codes
	resets int                // of these
}

// compiledModule is the code of a module.
type compiledModule struct {
	code    mcode.Range
	offsets []uint64 // of its functions in that, in order
	module  *wasmModule
	first   uint32 // the index of the first of them
}

// wasmModule is a module as its text is (internal/wasm.Module).
type wasmModule struct {
	layout    *moduleLayout
	imported  uint32 // functions, which come before its own
	names     []byte // of functions: pairs of an index and a string
	exports   []byte // kind, name and index of each
	functions map[uint32]*unwind.CodeFunction
	head      [moduleBytes]byte // of the Module, when it was read: another may be at its address
	serial    uint32
}

// interpretedFunction is a function of the interpreter.
type interpretedFunction struct {
	module *wasmModule
	index  uint32
	until  time.Time
}

type codeKey struct {
	module     uint32 // wasmModule.serial
	index      uint32
	isCompiled bool
	start      uint64
	outer      uint32
}

// moduleLayout is where a Module has what; where it has not is told by what is there: it has as many function bodies as
// functions.
type moduleLayout struct {
	functions, exports, codes, names uint64
	index                            uint64 // in the interpreter's compiledFunction: which of the module it is
}

const (
	moduleImported = 48 // how many functions are imported, of 32 bits
	moduleBytes    = 304

	namesFunctions = 16 // of a NameSection: a slice
	nameBytes      = 24 // an index of 32 bits, and at 8 a string
	exportBytes    = 32 // a kind, at 8 a string, and at 24 an index of 32 bits
)

var moduleLayouts = [...]moduleLayout{
	{functions: 72, exports: 152, codes: 216, names: 264, index: 92},  // 1.8 to 1.11
	{functions: 72, exports: 184, codes: 248, names: 296, index: 116}, // 1.12
}

// Where other structures have what.
const (
	moduleEngineParent = 8 // address of the compiledModule

	compiledExecutables = 0
	compiledOffsets     = 8  // a slice
	compiledEngine      = 32 // address of the engine
	compiledSource      = 40 // address of the Module
	compiledBytes       = 48

	engineModules = 40 // a slice of addresses of compiledModules, in order of their code

	functionParent = 24 // of the interpreter: address of the compiledFunction, whose first word is the Module
	compiledIndex  = 120
)

// Limits on what is read.
const (
	maxEngines   = 1 << 8
	maxModules   = 1 << 12
	maxFunctions = 1 << 20 // of a module
	maxName      = 1 << 10 // bytes
	maxCodes     = 1 << 18
	maxDepth     = 1 << 12 // functions that have called Go by a frame
	maxCopied    = 1 << 20 // bytes of their stack
	nameMemory   = 64 << 20

	interval = time.Second // after which what is known is looked at again
)

// runtime is the CodeFunction.Runtime of WebAssembly.
const runtime = "wasm"

func newNames() names {
	return names{
		engines: map[uint64]bool{}, wasm: map[uint64]*wasmModule{}, functions: map[uint64]interpretedFunction{}, codes: map[codeKey]uint32{},
	}
}

// begin begins another walk.
func (vm *machine) begin(w *unwind.Walker) {
	if codes := w.Codes(); vm.resets != codes.Resets() {
		clear(vm.codes)
		vm.resets = codes.Resets()
	}
}

// addEngine adds the engine of a moduleEngine.
func (vm *machine) addEngine(moduleEngine uint64) {
	compiled, _ := vm.WordNow(moduleEngine + moduleEngineParent)
	engine, ok := vm.WordNow(compiled + compiledEngine)
	if !ok || engine == 0 || engine%8 != 0 || vm.engines[engine] || len(vm.engines) >= maxEngines {
		return
	}
	vm.engines[engine] = true
	vm.modulesUntil = time.Time{}
}

// slice reads a slice, nil where it is none, of at most so many elements.
func (vm *machine) slice(head []byte, size, most int) []byte {
	at, n, room := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
	if n > uint64(most) || n > room || n > 0 && at == 0 {
		return nil
	}
	b := make([]byte, int(n)*size)
	if !vm.ReadNow(at, b) {
		return nil
	}
	return b
}

// readModules reads which modules are compiled.
func (vm *machine) readModules() {
	now := time.Now()
	if now.Before(vm.modulesUntil) {
		return
	}
	old := vm.modules
	vm.modules = nil
	le := binary.LittleEndian
	for engine := range vm.engines {
		var head [24]byte
		if !vm.ReadNow(engine+engineModules, head[:]) {
			continue
		}
		for list := vm.slice(head[:], 8, maxModules); len(list) >= 8 && len(vm.modules) < maxModules; list = list[8:] {
			if m, ok := vm.readModule(le.Uint64(list), old); ok {
				vm.modules = append(vm.modules, m)
			}
		}
	}
	if len(vm.modules) == 0 {
		vm.modules = old // the process has ended, likely
	}
	slices.SortFunc(vm.modules, func(a, b compiledModule) int {
		switch {
		case a.code.Start < b.code.Start:
			return -1
		case a.code.Start > b.code.Start:
			return 1
		}
		return 0
	})
	const part = 20 // one in so much of the time
	vm.modulesUntil = time.Now().Add(max(interval, part*time.Since(now)))
}

// readModule reads a compiledModule, which may be one that is known.
func (vm *machine) readModule(at uint64, known []compiledModule) (m compiledModule, ok bool) {
	le := binary.LittleEndian
	var b [compiledBytes]byte
	var head [24]byte
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, b[:]) || !vm.ReadNow(le.Uint64(b[compiledExecutables:]), head[:]) {
		return m, false
	}
	m.code.Start = le.Uint64(head[:])
	m.code.End = m.code.Start + le.Uint64(head[8:])
	if m.code.End <= m.code.Start {
		return m, false
	}
	m.module = vm.moduleAt(le.Uint64(b[compiledSource:]))
	for i := range known {
		if k := &known[i]; k.code == m.code && k.module == m.module && m.module != nil {
			return *k, true
		}
	}
	offsets := vm.slice(b[compiledOffsets:], 8, maxFunctions)
	if m.module == nil || len(offsets) == 0 {
		return m, false
	}
	m.offsets = make([]uint64, len(offsets)/8)
	for i := range m.offsets {
		m.offsets[i] = le.Uint64(offsets[8*i:])
	}
	m.first = m.module.imported
	return m, slices.IsSorted(m.offsets)
}

// moduleAt returns the Module at an address, nil where there is none.
func (vm *machine) moduleAt(at uint64) *wasmModule {
	known := vm.wasm[at]
	le := binary.LittleEndian
	var b [moduleBytes]byte
	if at == 0 || at%8 != 0 || !vm.ReadNow(at, b[:]) {
		return known
	}
	if known != nil && known.head == b {
		return known
	}
	for i := range moduleLayouts {
		l := &moduleLayouts[i]
		n := le.Uint64(b[l.functions+8:])
		if n == 0 || n > maxFunctions || n != le.Uint64(b[l.codes+8:]) {
			continue
		}
		vm.serial++
		m := &wasmModule{serial: vm.serial, head: b, layout: l, imported: le.Uint32(b[moduleImported:]), functions: map[uint32]*unwind.CodeFunction{}}
		var head [24]byte
		if section := le.Uint64(b[l.names:]); section != 0 && vm.ReadNow(section+namesFunctions, head[:]) {
			m.names = vm.slice(head[:], nameBytes, maxFunctions)
		}
		m.exports = vm.slice(b[l.exports:], exportBytes, maxFunctions)
		if vm.Kept += len(m.names) + len(m.exports); vm.Kept > nameMemory || len(vm.wasm) >= maxModules {
			vm.forget()
			vm.Kept = len(m.names) + len(m.exports)
		}
		vm.wasm[at] = m
		return m
	}
	return nil
}

// forget lets go of what is known of modules.
func (vm *machine) forget() {
	clear(vm.wasm)
	clear(vm.functions)
	vm.modules, vm.modulesUntil = nil, time.Time{}
}

// function returns a function of a module by its index.
func (vm *machine) function(m *wasmModule, index uint32) *unwind.CodeFunction {
	fn := m.functions[index]
	if fn == nil {
		name := vm.nameOf(m, index)
		fn = &unwind.CodeFunction{Name: name, SystemName: name, Runtime: runtime}
		m.functions[index] = fn
	}
	return fn
}

// nameOf returns what a function is called: as the module says, or as it is exported, or by its index.
func (vm *machine) nameOf(m *wasmModule, index uint32) string {
	le := binary.LittleEndian
	for b := m.names; len(b) >= nameBytes; b = b[nameBytes:] {
		if le.Uint32(b) == index {
			if name := vm.text(b[8:]); name != "" {
				return name
			}
			break
		}
	}
	for b := m.exports; len(b) >= exportBytes; b = b[exportBytes:] {
		const function = 0
		if b[0] == function && le.Uint32(b[24:]) == index {
			if name := vm.text(b[8:]); name != "" {
				return name
			}
		}
	}
	return fmt.Sprintf("wasm-function[%d]", index)
}

// text reads a string of Go, "" where it is none.
func (vm *machine) text(head []byte) string {
	at, n := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint64(head[8:])
	if n == 0 || n > 1<<20 {
		return ""
	}
	b := make([]byte, min(n, maxName))
	if !vm.ReadNow(at, b) {
		return ""
	}
	if name := vmread.ValidText(b); vmread.IsPrintable(name) {
		return name
	}
	return ""
}

// moduleOf returns the module whose code is at an address, nil where there is none.
func (vm *machine) moduleOf(pc uint64) *compiledModule {
	vm.readModules()
	i, found := slices.BinarySearchFunc(vm.modules, pc, func(m compiledModule, pc uint64) int {
		switch {
		case m.code.Start < pc:
			return -1
		case m.code.Start > pc:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 || !vm.modules[i].code.Holds(pc) {
		return nil
	}
	return &vm.modules[i]
}

// compiled returns the number of the function whose code is at an address, 0 where there is none. In a frame of Go it has no
// code of its own, and outer is what it is called by.
func (vm *machine) compiled(codes *unwind.Codes, pc uint64, inGo bool, outer uint32) uint32 {
	m := vm.moduleOf(pc)
	if m == nil {
		return 0
	}
	off := pc - m.code.Start
	i, found := slices.BinarySearch(m.offsets, off)
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	start := m.code.Start + m.offsets[i]
	if inGo {
		start = 0
	}
	return vm.number(codes, m.module, m.first+uint32(i), true, start, outer)
}

// number returns the number of a function, with what it is called by in the same frame.
func (vm *machine) number(codes *unwind.Codes, m *wasmModule, index uint32, isCompiled bool, start uint64, outer uint32) uint32 {
	key := codeKey{m.serial, index, isCompiled, start, outer}
	n, ok := vm.codes[key]
	if !ok && len(vm.codes) < maxCodes {
		n = codes.Add(start, []unwind.CodeLine{{CodeFunction: vm.function(m, index), IsCompiled: isCompiled}}, outer)
		vm.codes[key] = n
	}
	return n
}
