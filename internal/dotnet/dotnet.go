package dotnet

import (
	"bytes"
	"debug/pe"
	_ "embed" // the program
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The program, as it was compiled by Debian 12's mono-mcs 6.8.0.105 (mcs -debug -optimize+) and written again by
// testdata/Convert.cs with Mono.Cecil 0.11, in /src (mono Convert.exe Lines.exe Lines.dll): with its PDB beside it, and within it.
var (
	//go:embed testdata/Lines.cs
	Source string
	//go:embed testdata/Lines.dll
	DLL []byte
	//go:embed testdata/Lines.pdb
	PDB []byte
	//go:embed testdata/Embedded.dll
	Embedded []byte
)

// SourceFile is how the PDB calls Source.
const SourceFile = "/src/Lines.cs"

// Call is a call in a trace of .NET's.
type Call struct {
	Function string // without parameters
	File     string // "" when not told
	Line     int
}

var callLine = regexp.MustCompile(`^   at (.*?)(?:\[.*?\])?\(.*?\)(?: in (.*):line (\d+))?$`)

// Traces reads what the program has written: the calls of each thread, innermost first, by its name.
func Traces(text string) map[string][]Call {
	all, name := map[string][]Call{}, ""
	for line := range strings.SplitSeq(text, "\n") {
		if of, ok := strings.CutPrefix(line, "thread "); ok {
			name = of
			continue
		}
		if m := callLine.FindStringSubmatch(line); m != nil {
			n, _ := strconv.Atoi(m[3])
			all[name] = append(all[name], Call{m[1], m[2], n})
		}
	}
	return all
}

// Compare compares the calls of a thread that were found with those that it has told of, both innermost first, from where it has
// stopped on. Those without lines are left out; so is what handles exceptions, which .NET does not tell of, but must be there. Where
// code is of no line .NET tells of the first of the method, and no line may be found. It returns how many lines were compared of each
// file, but for those.
func Compare(thread string, told, found []Call) (lines map[string]int, err error) {
	const stop, handles = "Lines.Stop", "// handles" // a function, and behind calls in the source
	behind := func(calls []Call) []Call {
		return calls[slices.IndexFunc(calls, func(c Call) bool { return c.Function == stop })+1:]
	}
	source := strings.Split(Source, "\n")
	lines = map[string]int{}
	var want, got []Call
	for _, c := range behind(told) {
		if c.File != "" {
			want = append(want, c)
			lines[c.File]++
		}
	}
	handlers := 0
	for _, c := range behind(found) {
		at := len(got)
		switch {
		case lines[c.File] == 0:
		case c.Line > 0 && c.File == SourceFile && strings.Contains(source[c.Line-1], handles):
			handlers++
		case c.Line == 0 && at < len(want) && want[at].Function == c.Function && want[at].File == c.File:
			got = append(got, want[at])
			lines[c.File]--
		case c.Line > 0:
			got = append(got, c)
		}
	}
	if isHandler := thread == "caught" || thread == "incatch"; isHandler != (handlers == 1) {
		return lines, fmt.Errorf("%d calls handle exceptions", handlers)
	}
	if !slices.Equal(got, want) || len(want) == 0 {
		return lines, fmt.Errorf("it is in\n%v, and says itself\n%v", got, want)
	}
	return lines, nil
}

func (c Call) String() string { return fmt.Sprintf("%s %s:%d", c.Function, c.File, c.Line) }

// bundleIs is behind the place in a program in one file that tells where it is told what that holds
// (src/native/corehost/apphost/static of .NET's sources).
var bundleIs = []byte{
	0x8b, 0x12, 0x02, 0xb9, 0x6a, 0x61, 0x20, 0x38, 0x72, 0x7b, 0x93, 0x02, 0x14, 0xd7, 0xa0, 0x32,
	0x13, 0xf5, 0xb9, 0xe6, 0xef, 0xae, 0x33, 0x18, 0xee, 0x3b, 0x2d, 0xce, 0x24, 0xb3, 0x6a, 0xae,
}

var errNoEntry = errors.New("no such file in the program")

// entry returns where in a program in one file it is told where a file is that it holds, and how long: two words.
func entry(program []byte, name string) (at int, err error) {
	i := bytes.Index(program, bundleIs)
	if i < 8 {
		return 0, errNoEntry
	}
	const fields = 25 // three words, of which the last is the size where it is compressed, and what it is
	tail := append([]byte{byte(len(name))}, name...)
	for at = int(binary.LittleEndian.Uint64(program[i-8:])); ; at++ {
		n := bytes.Index(program[at:], tail)
		if n < 0 {
			return 0, errNoEntry
		}
		at += n
		if binary.LittleEndian.Uint64(program[at-fields+16:]) == 0 {
			return at - fields, nil
		}
	}
}

// File returns a file that a program in one file holds.
func File(program []byte, name string) ([]byte, error) {
	at, err := entry(program, name)
	if err != nil {
		return nil, err
	}
	from, size := binary.LittleEndian.Uint64(program[at:]), binary.LittleEndian.Uint64(program[at+8:])
	if from+size > uint64(len(program)) {
		return nil, errNoEntry
	}
	return program[from : from+size], nil
}

// Replaced returns a program in one file that holds other contents in place of a file.
func Replaced(program []byte, name string, contents []byte) ([]byte, error) {
	at, err := entry(program, name)
	if err != nil {
		return nil, err
	}
	const page = 1 << 12
	p := bytes.Clone(program)
	p = append(p, make([]byte, -len(p)&(page-1))...)
	binary.LittleEndian.PutUint64(p[at:], uint64(len(p)))
	binary.LittleEndian.PutUint64(p[at+8:], uint64(len(contents)))
	return append(p, contents...), nil
}

// OffsetsFile is the file that PDBs of WriteOffsets tell of.
const OffsetsFile = "/il"

// WriteOffsets writes a PDB for an assembly, to a directory, that has for lines the offsets in the IL of methods, plus one.
func WriteOffsets(assembly []byte, dir string) error {
	id, name, err := symbolsOf(assembly)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), offsets(id), 0o600)
}

// symbolsOf returns the ID of an assembly's PDB, and its name.
func symbolsOf(assembly []byte) (id [20]byte, name string, err error) {
	// What is compiled ahead for Linux has a machine that only .NET knows.
	f, err := pe.NewFile(bytes.NewReader(withMachine(assembly, pe.IMAGE_FILE_MACHINE_AMD64)))
	if err != nil {
		return id, "", err
	}
	header, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return id, "", errors.New("no assembly of 64 bits")
	}
	at := func(rva, size uint32) []byte {
		for _, s := range f.Sections {
			if rva-s.VirtualAddress < s.Size && size <= s.Size-(rva-s.VirtualAddress) {
				return assembly[s.Offset+rva-s.VirtualAddress:][:size]
			}
		}
		return nil
	}
	const entry = 28
	d := header.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_DEBUG]
	for e := at(d.VirtualAddress, d.Size); len(e) >= entry; e = e[entry:] {
		const codeView = 2
		le := binary.LittleEndian
		b := at(le.Uint32(e[20:]), le.Uint32(e[16:]))
		if le.Uint32(e[12:]) != codeView || len(b) < 24 {
			continue
		}
		copy(id[:], b[4:20])
		copy(id[16:], e[4:8])
		text, _, _ := bytes.Cut(b[24:], []byte{0})
		return id, string(text[bytes.LastIndexAny(text, `/\`)+1:]), nil
	}
	return id, "", fmt.Errorf("no PDB is told of")
}

// withMachine returns an assembly that is for another machine.
func withMachine(assembly []byte, machine uint16) []byte {
	const toHeader, toMachine = 0x3c, 4
	b := bytes.Clone(assembly)
	binary.LittleEndian.PutUint16(b[int(binary.LittleEndian.Uint32(b[toHeader:]))+toMachine:], machine)
	return b
}

// offsets returns a PDB in which all methods, more than there are, have the same lines.
func offsets(id [20]byte) []byte {
	const methods, length = 1<<16 - 2, 1 << 14
	le := binary.LittleEndian
	number := func(b []byte, n int) []byte {
		switch {
		case n < 0x80:
			return append(b, byte(n))
		case n < 0x4000:
			return binary.BigEndian.AppendUint16(b, uint16(n)|0x8000)
		}
		return binary.BigEndian.AppendUint32(b, uint32(n)|0xc0000000)
	}
	lines := []byte{0, 0, 0, 1, 1, 1} // the first, at column 1
	for range length {
		lines = append(lines, 1, 0, 1, 1<<1, 0) // the next, in the next line
	}
	blobs := []byte{0, byte(len(OffsetsFile))}
	blobs = append(blobs, OffsetsFile...)
	name := len(blobs)
	blobs = append(blobs, 3, 0, 0, 1) // one part
	points := len(blobs)
	blobs = append(number(blobs, len(lines)), lines...)

	const wideBlobs, documents, methodTable = 4, 0x30, 0x31
	tables := []byte{0, 0, 0, 0, 2, 0, wideBlobs, 1}
	tables = le.AppendUint64(tables, 1<<documents|1<<methodTable)
	tables = le.AppendUint64(tables, 0)
	tables = le.AppendUint32(tables, 1)
	tables = le.AppendUint32(tables, methods)
	tables = le.AppendUint32(tables, uint32(name))
	tables = append(tables, make([]byte, 2+4+2)...)
	for range methods {
		tables = le.AppendUint16(tables, 1)
		tables = le.AppendUint32(tables, uint32(points))
	}
	header := append(id[:], make([]byte, 4+8)...) // no entry point, and no tables of the assembly

	b := append([]byte("BSJB\x01\x00\x01\x00\x00\x00\x00\x00\x0c\x00\x00\x00PDB v1.0\x00\x00\x00\x00\x00\x00"), 0, 0)
	streams := []struct {
		name string
		data []byte
	}{{"#Pdb", header}, {"#~", tables}, {"#Strings", []byte{0}}, {"#GUID", nil}, {"#Blob", blobs}}
	le.PutUint16(b[len(b)-2:], uint16(len(streams)))
	at := len(b)
	for _, s := range streams {
		at += 8 + (len(s.name)+4)&^3
	}
	for _, s := range streams {
		b = le.AppendUint32(b, uint32(at))
		b = le.AppendUint32(b, uint32(len(s.data)))
		b = append(b, s.name...)
		b = append(b, make([]byte, 4-len(s.name)&3)...)
		at += (len(s.data) + 3) &^ 3
	}
	for _, s := range streams {
		b = append(b, s.data...)
		b = append(b, make([]byte, -len(s.data)&3)...)
	}
	return b
}
