package profile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// ReadOptions say how a profile is read. The zero value is useful.
type ReadOptions struct {
	// Name is where the profile comes from, as people call it: a file's name.
	// It stands for Meta.Target where the profile does not tell that.
	Name string
	// SampleType picks what is counted where a file has several: a type of
	// values of pprof ("cpu", "inuse_space"), an event of perf script or of a
	// pprof file that WritePprof wrote. When it is empty, all events are read
	// (Meta.Also): the first is that which was recorded first, or where the text of
	// perf script does not tell, the one with most samples. Of types of values
	// the file's default is taken, or else, as pprof does, the last one.
	SampleType string
	// Times keeps the times of samples where the format has them, for writing
	// a format with a time line.
	Times bool
	// MaxBytes bounds what is held in memory of the uncompressed file; 0
	// stands for 1 GiB. Of compressed files no more than 64 MiB and 200 times
	// their length is read.
	MaxBytes int64
}

const (
	defaultMaxBytes = 1 << 30
	maxLine         = 4 << 20 // bytes of a line of text
	maxInlined      = 255     // functions inlined at one place
	maxFrames       = 1 << 30 // of all stacks together, of which trees in files can hold very many
	maxOpen         = 1 << 16 // frames that are open at a time
	sniffBytes      = 64 << 10
)

// A compressed file may hold this many bytes, and this many for each of its own: profiles
// hold a hundred for one at most, where text repeats itself, and files that are made to
// fill the memory a thousand. Tests lower the first.
var freeInflated int64 = 64 << 20

const maxInflation = 200

// FormatError tells what is wrong with a profile, and where.
type FormatError struct {
	Format string // "pprof", "folded stacks", "perf script", "speedscope", ...
	Offset int64  // in bytes from the start, after decompression
	Line   int    // from 1; 0 in binary formats
	What   string
}

// Error implements error.
func (e *FormatError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s: line %d (byte %d): %s", e.Format, e.Line, e.Offset, e.What)
	}
	return fmt.Sprintf("%s: byte %d: %s", e.Format, e.Offset, e.What)
}

// ErrNoSuchType says that a profile does not have ReadOptions.SampleType. The
// error's text lists those that it has.
var ErrNoSuchType = errors.New("no such sample type")

// errOverflow says that a file's numbers have a sum that is none.
var errOverflow = errors.New("the values add up to more than 64 bits hold")

// maxPlaceLines bounds the functions of all places together: a small file can
// have many chains of inlined calls, of which each call has all those around it.
// Tests lower it.
var maxPlaceLines = 1 << 24

// tooInlined says that a file would fill the memory.
func tooInlined() string {
	return fmt.Sprintf("the places have more than %d functions together", maxPlaceLines)
}

// errTooDeep says that reading a file would not end in reasonable time.
var errTooDeep = fmt.Errorf("the stacks have more than %d frames together", maxFrames)

// Read reads a profile of any known format, which it recognises by content:
// pprof, folded stacks, the text of perf script, a flame graph that WriteHTML
// wrote, speedscope's format, or that of the Firefox Profiler, each as it is
// or compressed by gzip. A malformed profile yields a *FormatError.
func Read(r io.Reader, o ReadOptions) (*Profile, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	packed := &countedReader{r: r}
	in := bufio.NewReaderSize(packed, sniffBytes)
	for depth := 0; ; depth++ {
		head, err := in.Peek(2)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if depth == 2 || !bytes.Equal(head, []byte{0x1f, 0x8b}) {
			break
		}
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, &FormatError{"gzip", 0, 0, "the header: " + err.Error()}
		}
		packed = &countedReader{r: &inflated{z: z, packed: packed}}
		in = bufio.NewReaderSize(packed, sniffBytes)
	}
	head, err := in.Peek(sniffBytes)
	if err != nil && err != io.EOF {
		return nil, err
	}
	kind, err := sniff(head)
	if err != nil {
		return nil, err
	}
	switch kind {
	case foldedText:
		return readFolded(in, o)
	case perfText:
		return readPerf(in, o)
	case binaryData:
		// Before it is read: it may be large.
		if _, _, _, err := pprofTag(head, 0); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(in, o.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > o.MaxBytes {
		return nil, fmt.Errorf("the profile is larger than %d bytes", o.MaxBytes)
	}
	switch kind {
	case pageText:
		return readPage(data, o)
	case jsonText:
		return readJSON(data, o)
	}
	return readPprof(data, o)
}

// countedReader counts what is read.
type countedReader struct {
	r io.Reader
	n int64 // bytes
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// inflated is what a compressed file holds, as far as that is within bounds. Its errors
// tell how far decompression came.
type inflated struct {
	z      *gzip.Reader
	packed *countedReader // the file
	n      int64          // bytes that came of it
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.z.Read(p)
	i.n += int64(n)
	switch {
	case err != nil && err != io.EOF:
		err = fmt.Errorf("gzip: after byte %d of the uncompressed data: %w", i.n, err)
	case i.n > maxInflated(i.packed.n):
		err = fmt.Errorf("gzip: %d bytes hold more than %d uncompressed ones: no profile does", i.packed.n, maxInflated(i.packed.n))
	}
	return n, err
}

// maxInflated is how many bytes may come of that many compressed ones.
func maxInflated(packed int64) int64 { return freeInflated + maxInflation*packed }

type textKind int

const (
	binaryData textKind = iota
	foldedText
	perfText
	pageText
	jsonText
)

// others are files that are no profiles for Read, and what to do with them.
var others = []struct{ prefix, advice string }{
	{"PERFILE2", "this is perf.data; pass it on as text: perf script -i FILE | swbpf view -"},
	{"\x7fELF", "this is a program, not a profile"},
	{"<svg", "this is a picture, not a profile; keep the .pb.gz beside it"},
}

// sniff tells formats apart by the beginning of a file.
func sniff(head []byte) (textKind, error) {
	if len(bytes.TrimSpace(head)) == 0 {
		return 0, errors.New("the profile is empty")
	}
	for _, o := range others {
		if bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte(o.prefix)) {
			return 0, errors.New(o.advice)
		}
	}
	switch text := bytes.TrimLeft(head, " \t\r\n"); {
	case countedLine().Match(text):
		// The name of a thread may begin like the others.
	case text[0] == '<':
		return pageText, nil
	case text[0] == '{':
		return jsonText, nil
	}
	if isBinary(head) {
		return binaryData, nil
	}
	for line := range bytes.Lines(head) {
		text := strings.TrimRight(string(line), "\r\n")
		if strings.TrimSpace(text) == "" || text[0] == '#' {
			continue
		}
		if _, ok := parsePerfHeader(text); ok {
			return perfText, nil
		}
		break
	}
	return foldedText, nil
}

// countedLine is a first line that neither a page nor JSON has: of folded stacks, or of a
// sample of perf script.
var countedLine = pattern(`^(<[^!?][^\n]*|\{[^"\n]*)(;[^\n]* \d+|\s\d+/\d+\s[^\n]*:)\s*(\n|$)`)

// isBinary tells data from text, of which a byte or two may be damaged.
func isBinary(head []byte) bool {
	odd := 0
	for i := 0; i < len(head); {
		r, n := utf8.DecodeRune(head[i:])
		if r == utf8.RuneError && n == 1 || !isTextByte(head[i]) {
			odd++
		}
		i += n
	}
	// A table of strings that comes first in pprof's format has hardly any.
	return odd > len(head)/4 || odd > 2 && odd > len(head)/64 || bytes.HasPrefix(head, []byte("2\x00"))
}

// invalidUTF8 returns where a text is not UTF-8, or -1.
func invalidUTF8(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return -1
}

// isTextByte reports whether a byte can be in a line of text.
func isTextByte(c byte) bool { return c >= ' ' || c == '\t' || c == '\n' || c == '\r' || c == 0x1b }

// lines reads a text line by line and knows where it is.
type lines struct {
	r      *bufio.Reader
	format string
	text   string // the line, without its end
	ended  bool   // it had one
	line   int    // its number, from 1
	offset int64  // its first byte
	next   int64
	buf    []byte
}

// read goes to the next line. It returns io.EOF after the last.
func (l *lines) read() error {
	l.offset, l.line = l.next, l.line+1
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		l.next += int64(len(part))
		if len(l.buf) > maxLine {
			return l.errorf("the line is longer than %d bytes", maxLine)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil && (err != io.EOF || len(l.buf) == 0) {
			return err
		}
		l.ended = err == nil
		for i, c := range l.buf {
			if !isTextByte(c) {
				return &FormatError{l.format, l.offset + int64(i), l.line, fmt.Sprintf("the byte %#02x is none of a text", c)}
			}
		}
		l.text = strings.TrimRight(string(l.buf), "\r\n")
		return nil
	}
}

func (l *lines) errorf(format string, args ...any) error {
	return &FormatError{l.format, l.offset, l.line, fmt.Sprintf(format, args...)}
}

// assembler makes a Profile from frames with names.
type assembler struct {
	b            *Builder
	ids          map[string]Loc
	count, value int64
	frames       int // of all stacks
	lines        int // of all places
	key          []byte
}

func newAssembler() *assembler {
	b := NewBuilder()
	b.places = make([]place, 0, 64)
	return &assembler{b: b, ids: map[string]Loc{}}
}

// place makes a frame. Its functions are innermost first.
func (a *assembler) place(module uint32, addr uint64, lines []Line) Loc {
	a.lines += len(lines)
	a.b.places = append(a.b.places, place{addr, lines})
	return Loc{module, uint64(len(a.b.places) - 1)}
}

// add counts a stack, leaf first.
func (a *assembler) add(t Thread, stack []Loc, truncated string, count, value int64) error {
	return a.addSquares(t, stack, truncated, count, value, 0)
}

// addSquares is add where the sum of the squares of the values is known, or 0.
func (a *assembler) addSquares(t Thread, stack []Loc, truncated string, count, value int64, squares float64) error {
	if err := a.sum(len(stack), count, value); err != nil {
		return err
	}
	if squares > 0 {
		a.b.add(t, stack, truncated, count, value, squares)
	} else {
		a.b.Add(t, stack, truncated, count, value)
	}
	return nil
}

// addOpen counts a stack whose frames are open, from the root on.
func (a *assembler) addOpen(t Thread, open *openStack, count, value int64) error {
	if err := a.sum(len(open.frames), count, value); err != nil {
		return err
	}
	a.b.init()
	a.b.squaresGuessed = a.b.squaresGuessed || count > 1
	a.b.addNode(a.b.threads.number(&t), open.leaf(a.b), count, value, evenSquares(count, value))
	return nil
}

// sum adds up what is read, as far as that has bounds.
func (a *assembler) sum(frames int, count, value int64) error {
	if count < 0 || value < 0 || a.count > math.MaxInt64-count || a.value > math.MaxInt64-value {
		return errOverflow
	}
	if a.frames += frames; a.frames > maxFrames {
		return errTooDeep
	}
	a.count += count
	a.value += value
	return nil
}

// openStack is a stack of which frames are opened and closed. Each is looked for in the
// tree of stacks once.
type openStack struct {
	root   uint32 // the node below which the frames are
	frames []Loc
	nodes  []uint32 // of the first frames
}

func (s *openStack) push(loc Loc) { s.frames = append(s.frames, loc) }

func (s *openStack) pop() {
	s.frames = s.frames[:len(s.frames)-1]
	s.nodes = s.nodes[:min(len(s.nodes), len(s.frames))]
}

// leaf returns the node of the innermost frame.
func (s *openStack) leaf(b *Builder) uint32 {
	leaf := s.root
	if n := len(s.nodes); n > 0 {
		leaf = s.nodes[n-1]
	}
	for _, loc := range s.frames[len(s.nodes):] {
		leaf = b.stacks.child(leaf, loc)
		s.nodes = append(s.nodes, leaf)
	}
	return leaf
}

// truncatedReason returns the reason that a marker names, "" if a name is
// that of no marker.
func truncatedReason(name string) string {
	if rest, ok := strings.CutPrefix(name, "[truncated: "); ok && strings.HasSuffix(rest, "]") {
		return rest[:len(rest)-1]
	}
	return ""
}

// typesOf returns what a profile can be read for that has one value at most.
func typesOf(m *Meta) []ValueType {
	types := []ValueType{{"samples", "count"}}
	if m.Value.Type != "" {
		types = append(types, m.Value)
	}
	return types
}

// checkType reports whether a profile has the type that was asked for, and
// makes its widths those of it.
func (o *ReadOptions) checkType(p *Profile) error {
	if o.SampleType == "" && len(p.Types) > 0 {
		p.Type = p.Types[0].Type
		if p.Meta.ByValue {
			p.Type = p.Meta.Value.Type
		}
		return nil
	}
	var names []string
	for i, t := range p.Types {
		names = append(names, t.Type)
		if t.Type == o.SampleType {
			p.Type, p.Meta.ByValue = t.Type, i > 0
			return nil
		}
	}
	return noSuchType(o.SampleType, names)
}

// pattern returns a regular expression that is compiled when it is asked for
// first: those who read no profile do not wait for it when they start.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
