package postgres

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"

	"github.com/swbpf/swbpf/steppers/internal/vmread"
	"github.com/swbpf/swbpf/unwind"
)

// function is what is known of an address.
type function struct {
	is    *unwind.CodeFunction // nil where there is no function
	valid vmread.Valid
}

// called is what is known of a function in SQL.
type called struct {
	is    *unwind.CodeFunction
	other *unwind.CodeFunction // what was read last, if that was another one
	read  uint64               // when, in ns of CLOCK_MONOTONIC
}

// statement is what is known of an address.
type statement struct {
	line  int // 0 where there is none
	valid vmread.Valid
}

// functionOf returns the function at an address, which is in a file, notRead where it is not known any more.
func (vm *machine) functionOf(at uint64, file string) *unwind.CodeFunction {
	known := vm.functions[at]
	if known == nil {
		if len(vm.functions) >= maxFunctions {
			clear(vm.functions)
		}
		known = new(function)
		vm.functions[at] = known
	}
	if known.valid.IsDue(vm.times) {
		is := vm.readFunction(at+vm.server.release.name, file)
		if is != nil || known.is == nil || !vm.hasEnded() {
			known.valid.Read(vm.times, is == known.is)
			known.is = is
		}
	}
	if known.is == nil || !known.valid.Holds(vm.times) {
		return &notRead
	}
	return known.is
}

// hasEnded reports whether the process has: what is known of it stays so.
func (vm *machine) hasEnded() bool { return vm.HasEnded(vm.im, vm.bias) }

// Names of functions in SQL are read again after so many ns.
const calledInterval = uint64(time.Second)

// functionInSQL returns the function in SQL that a context has, notRead where it is not known.
func (vm *machine) functionInSQL(of uint64) *unwind.CodeFunction {
	word, ok := vm.Word(of + vm.server.release.functionWord())
	switch {
	case !ok:
		return &notRead
	case vm.server.release.hasHash:
		return vm.functionOf(word, "")
	}
	oid := uint32(word)
	known := vm.called[oid]
	if known == nil {
		if len(vm.called) >= maxFunctions {
			clear(vm.called)
		}
		known = new(called)
		vm.called[oid] = known
	}
	if known.is == nil || vm.times.Now-known.read >= calledInterval {
		if is := vm.readCalled(of, word); is != nil {
			known.take(is, vm.times.Now)
		}
	}
	if known.is == nil {
		return &notRead
	}
	return known.is
}

// take takes what was read of a function, whose memory may have been let go of meanwhile: it is another one
// only where that was read twice.
func (c *called) take(is *unwind.CodeFunction, now uint64) {
	switch {
	case c.is == nil, is == c.other:
		c.is, c.other = is, nil
	case is != c.is:
		c.other = is
	default:
		c.other = nil
	}
	c.read = now
}

// readCalled reads the function in SQL of an FmgrInfo, as long as that has the number; nil where it has not any more.
func (vm *machine) readCalled(at, number uint64) *unwind.CodeFunction {
	code, ok1 := vm.wordOf(at + calledCode)
	is, ok2 := vm.wordOf(at + calledOID)
	cache, ok3 := vm.wordOf(at + calledCache)
	if !ok1 || !ok2 || !ok3 || code != vm.server.sql.Start+vm.bias || is != number || cache < leastAddress {
		return nil
	}
	return vm.readFunction(cache, "")
}

// readFunction reads the function of which a word leads to the name, nil where there is none.
func (vm *machine) readFunction(word uint64, file string) *unwind.CodeFunction {
	name, ok := vm.wordOf(word)
	if !ok {
		return nil
	}
	text, ok := vm.text(name)
	if !ok {
		return nil
	}
	fn := unwind.CodeFunction{Name: text, SystemName: text, File: file, Runtime: runtime}
	if file == source { // else it is the name alone, and not quoted
		fn.Name, fn.Parameters = splitSignature(text)
	}
	known := vm.named[fn]
	if known == nil {
		if len(vm.named) >= maxFunctions {
			clear(vm.named)
		}
		known = &fn
		vm.named[fn] = known
	}
	return known
}

// source stands for the file of a function in PL/pgSQL: lines count from where its text begins.
const source = "<plpgsql>"

// readOf reads memory as it was at the moment of the capture, where a Collector has copied it, and else as it is now.
func (vm *machine) readOf(at uint64, buf []byte) bool {
	return vm.Captured != nil && vm.Captured.ReadCaptured(at, buf) || vm.ReadNow(at, buf)
}

// wordOf reads a word as readOf does.
func (vm *machine) wordOf(at uint64) (uint64, bool) {
	if !vm.readOf(at, vm.Buf[:]) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(vm.Buf[:]), true
}

// textPiece is how much of a text is read at once, up to where a multiple of that begins, in bytes: as long as the name of a
// function in SQL is at most (NAMEDATALEN of src/include/pg_config_manual.h).
const textPiece = 64

// maxName bounds the name of a function, and those of the types of its arguments, in bytes.
const maxName = 1 << 10

// text reads a string of C.
func (vm *machine) text(at uint64) (text string, ok bool) {
	var b []byte
	for piece := (at | (textPiece - 1)) + 1 - at; at >= leastAddress && len(b) < maxName; piece = textPiece {
		b = append(b, make([]byte, piece)...)
		part := b[len(b)-int(piece):]
		if !vm.readOf(at, part) {
			return "", false
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			text = vmread.ValidText(b[:len(b)-len(part)+end])
			return text, vmread.IsPrintable(text)
		}
		at += piece
	}
	return "", false
}

// splitSignature parts the name of a function, which may be quoted, from the types of its arguments.
func splitSignature(text string) (name, parameters string) {
	quoted := false
	at := strings.IndexFunc(text, func(r rune) bool {
		quoted = quoted != (r == '"')
		return !quoted && r == '('
	})
	if at <= 0 || !strings.HasSuffix(text, ")") {
		return text, ""
	}
	return text[:at], text[at:]
}

// lineOf returns the line of a statement, 0 where it is not known.
func (vm *machine) lineOf(at uint64) int {
	if at < leastAddress { // none runs
		return 0
	}
	known := vm.statements[at]
	if known == nil {
		if len(vm.statements) >= maxStatements {
			clear(vm.statements)
		}
		known = new(statement)
		vm.statements[at] = known
	}
	if known.valid.IsDue(vm.times) {
		line := vm.readLine(at)
		if line != 0 || known.line == 0 || !vm.hasEnded() {
			known.valid.Read(vm.times, line == known.line)
			known.line = line
		}
	}
	if !known.valid.Holds(vm.times) {
		return 0
	}
	return known.line
}

// readLine reads the line of a statement.
func (vm *machine) readLine(at uint64) int {
	const most = 1 << 24
	var b [4]byte
	if !vm.ReadNow(at+statementLine, b[:]) {
		return 0
	}
	line := binary.LittleEndian.Uint32(b[:])
	if line > most {
		return 0
	}
	return int(line)
}
