package v8

import (
	"net/url"
	"slices"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
)

// scriptFile is a file.
type scriptFile struct {
	name  string
	is    [2]uint64 // name and source, as they were
	first int       // the line before the first
	ends  []int32   // of lines

	listed   []listed  // its functions, as they were
	listFrom time.Time // the next time
}

// scriptAt returns what is known of a Script, nil where it is none.
func (vm *machine) scriptAt(addr uint64) *scriptFile {
	if typ, ok := vm.typeOf(addr); !ok || typ != vm.fields.scriptType {
		return nil
	}
	name, _ := vm.field(addr, vm.fields.at(v8ScriptName))
	source, _ := vm.field(addr, vm.fields.at(v8ScriptSource))
	is := [2]uint64{name, source}
	s := vm.scripts[addr]
	if s != nil && s.is == is {
		return s
	}
	s = &scriptFile{is: is}
	s.name = vm.text(name)
	if u, err := url.Parse(s.name); err == nil && u.Scheme == "file" {
		s.name = u.Path
	}
	if !vmread.IsPrintable(s.name) {
		s.name = ""
	}
	first, _ := vm.field(addr, vm.fields.at(v8ScriptLineOffset))
	if n, ok := smallInteger(first); ok {
		s.first = int(int32(n))
	}
	ends, known := vm.scriptLines(addr, source)
	s.ends = vm.lines.share(ends)
	vm.keep(4 * len(s.ends))
	if vm.fields.compressed && (!known || s.name == "" && vm.isUnread(name)) {
		return s // more may be known of it the next time
	}
	if len(vm.scripts) >= maxScripts {
		clear(vm.scripts)
	}
	vm.scripts[addr] = s
	return s
}

// keep counts what is kept of scripts. All are forgotten when that is too much.
func (vm *machine) keep(bytes int) {
	if vm.Kept += bytes; vm.Kept >= vmread.MaxKept {
		clear(vm.scripts)
		clear(vm.functions)
		vm.Kept = bytes
	}
}

// scriptLines returns where the lines of a script end, as V8 has counted them or as they are in its source, if that can be read.
func (vm *machine) scriptLines(script, source uint64) (ends []int32, known bool) {
	array, _ := vm.field(script, vm.fields.at(v8ScriptLineEnds))
	if typ, ok := vm.typeOf(array); ok && typ == vm.fields.arrayType {
		n, _ := vm.lengthOf(array) // 0: they are not counted yet
		if words := vm.elements(array, 0, min(n, maxSource/8), array); len(words) > 0 {
			ends := make([]int32, len(words))
			for i, end := range words {
				ends[i] = int32(end >> 32)
			}
			return ends, true
		}
	}
	text, ok := vm.textAt(source)
	if !ok || text.n > maxSource {
		return nil, ok
	}
	ends = vm.lineEnds(text)
	return ends, ends != nil
}

// lines are ends of lines that scripts of several processes have in common.
type lines struct {
	known map[uint64][]int32
	kept  int // bytes
}

const maxLines = 1 << 14 // scripts

// share returns ends that are the same, if there are such already.
func (l *lines) share(ends []int32) []int32 {
	key := uint64(len(ends))
	for _, end := range ends {
		key = (key ^ uint64(uint32(end))) * 0x9e3779b97f4a7c15
		key ^= key >> 32
	}
	if known := l.known[key]; slices.Equal(known, ends) {
		return known
	}
	if l.kept += 4 * len(ends); l.known == nil || len(l.known) >= maxLines || l.kept >= vmread.MaxKept {
		l.known, l.kept = map[uint64][]int32{}, 4*len(ends)
	}
	ends = slices.Clip(ends)
	l.known[key] = ends
	return ends
}

// line returns the line of a position, 0 where that is not known.
func (s *scriptFile) line(position int32) int {
	if position < 0 || len(s.ends) == 0 {
		return 0
	}
	i, _ := slices.BinarySearch(s.ends, position)
	return s.first + i + 1
}
