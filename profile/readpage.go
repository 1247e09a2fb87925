package profile

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const pageFormat = "flame graph"

// readPage reads the data of a page that WriteHTML wrote. They tell functions
// and lines, but no addresses.
func readPage(data []byte, o ReadOptions) (*Profile, error) {
	const begin, end = `<pre id="data" hidden>`, `</pre>`
	i := bytes.LastIndex(data, []byte(begin))
	if i < 0 {
		return nil, errors.New("this is a page or a picture, not a profile; of pages, flame graphs by swbpf can be read")
	}
	start := i + len(begin)
	n := bytes.Index(data[start:], []byte(end))
	if n < 0 {
		return nil, &FormatError{pageFormat, int64(len(data)), 0, "the data have no end"}
	}
	packed := make([]byte, base64.StdEncoding.DecodedLen(n))
	size, err := base64.StdEncoding.Decode(packed, data[start:start+n])
	if err != nil {
		at := int64(start)
		var corrupt base64.CorruptInputError
		if errors.As(err, &corrupt) {
			at += int64(corrupt)
		}
		return nil, &FormatError{pageFormat, at, 0, err.Error()}
	}
	limit := min(o.MaxBytes, maxInflated(int64(size)))
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed[:size])), limit+1))
	if err != nil {
		at := int64(start + n)
		var corrupt flate.CorruptInputError
		if errors.As(err, &corrupt) {
			at = int64(start) + int64(corrupt)*4/3
		}
		return nil, &FormatError{pageFormat, at, 0, err.Error()}
	}
	if int64(len(raw)) > limit {
		return nil, fmt.Errorf("the profile is larger than %d bytes", limit)
	}
	r := pageReader{b: raw}
	p, err := r.profile(o)
	if r.err != nil {
		// Where the data begin, since what is wrong is in no byte of the file.
		err = &FormatError{pageFormat, int64(start), 0, fmt.Sprintf("at byte %d of the data when unpacked: %v", r.at, r.err)}
	}
	return p, err
}

// pageReader reads what flameData wrote. Its first error stays.
type pageReader struct {
	b   []byte
	at  int
	err error
}

func (r *pageReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// below reads a number that must be less than limit.
func (r *pageReader) below(limit uint64, what string) int {
	v, n := binary.Uvarint(r.b[r.at:])
	switch {
	case n <= 0:
		r.fail("no number where %s should be", what)
	case v >= limit:
		r.fail("%s %d of %d", what, v, limit)
	}
	if r.err != nil {
		return 0
	}
	r.at += n
	return int(v)
}

// pageFrame is a node, with the place that it and those it is inlined into
// make.
type pageFrame struct {
	parent, function int
	line             int
	lines            []Line // innermost first
	caller           int    // node of the frame that called this place; 0 for none
}

func (r *pageReader) profile(o ReadOptions) (*Profile, error) {
	size := r.below(uint64(len(r.b)), "the length of tables")
	var t flameTables
	if r.err == nil {
		if err := json.Unmarshal(r.b[r.at:r.at+min(size, len(r.b)-r.at)], &t); err != nil {
			r.fail("%v", err)
		}
		r.at += min(size, len(r.b)-r.at)
	}
	if t.Diff != nil {
		return nil, errors.New("this is a comparison of two profiles, not a profile")
	}
	r.check(&t)
	nodes := r.nodes(&t)
	a := newAssembler()
	r.places(&t, nodes)
	labels := r.labels(&t, a)
	modules := r.modules(&t, a)
	locs := make([]*Loc, len(nodes))
	samples := r.below(uint64(len(r.b))+1, "the number of samples")
	node := 0
	var stack []Loc
	for range samples {
		node += r.below(uint64(len(nodes)-node), "a node")
		thread := r.below(uint64(len(t.ThreadPID)), "a thread")
		count := int64(r.below(1<<62, "a count"))
		value := int64(0)
		if t.ByValue {
			value = int64(r.below(1<<62, "a value"))
		} else if t.Meta != nil && t.Meta.Period > 0 && count < (1<<62)/t.Meta.Period {
			value = count * t.Meta.Period
		}
		if r.err != nil {
			break
		}
		stack = stack[:0]
		truncated := ""
		for n := node; n != 0; n = nodes[n].caller {
			f := nodes[n].function
			if t.FunctionFlags[f]&2 != 0 {
				break // the process
			}
			if nodes[n].parent != 0 && t.FunctionFlags[nodes[nodes[n].parent].function]&2 != 0 {
				if truncated = truncatedReason(t.FunctionName[f]); truncated != "" {
					break
				}
			}
			if locs[n] == nil {
				loc := a.b.Marker(t.FunctionName[f])
				if Kind(t.FunctionKind[f]) != Marker {
					loc = a.place(modules[t.FunctionModule[f]], 0, nodes[n].lines)
				}
				locs[n] = &loc
			}
			stack = append(stack, *locs[n])
		}
		th := Thread{PID: t.ThreadPID[thread], TID: t.ThreadTID[thread], Comm: Comm(t.ThreadComm[thread]), Labels: labels[t.ThreadLabels[thread]]}
		if err := a.add(th, stack, truncated, count, value); err != nil {
			r.fail("%v", err)
		}
	}
	if left := len(r.b) - r.at; left > 0 || samples == 0 && len(nodes) > 1 {
		r.fail("%d bytes are left, after %d samples", left, samples)
	}
	if r.err != nil {
		return nil, r.err
	}
	m := Meta{Target: o.Name}
	if t.Meta != nil {
		m = *t.Meta
		m.Also = nil // it is a page of one event
	}
	p := a.b.Finish(m, nil)
	p.Format, p.Types = pageFormat, typesOf(&m)
	return p, o.checkType(p)
}

// check makes sure that the columns of tables are of equal length, and that
// what they refer to is there.
func (r *pageReader) check(t *flameTables) {
	functions, threads := len(t.FunctionName), len(t.ThreadPID)
	for _, n := range []int{len(t.FunctionModule), len(t.FunctionFile), len(t.FunctionLine), len(t.FunctionKind), len(t.FunctionFlags)} {
		if n != functions {
			r.fail("columns of %d and %d functions", n, functions)
		}
	}
	for _, n := range []int{len(t.ThreadTID), len(t.ThreadComm), len(t.ThreadLabels)} {
		if n != threads {
			r.fail("columns of %d and %d threads", n, threads)
		}
	}
	within := func(column []int, n int, what string) {
		for _, i := range column {
			if i < 0 || i >= n {
				r.fail("%s %d of %d", what, i, n)
				return
			}
		}
	}
	within(t.FunctionModule, len(t.Modules), "module")
	within(t.FunctionFile, len(t.Files), "file")
	within(t.FunctionKind, int(numKinds), "kind")
	for _, set := range t.LabelSets {
		within(set, min(len(t.LabelKeys), len(t.LabelValues)), "label")
	}
	for _, set := range t.ThreadLabels {
		within([]int{int(set)}, len(t.LabelSets), "set of labels")
	}
}

func (r *pageReader) nodes(t *flameTables) []pageFrame {
	n := r.below(uint64(len(r.b))/3+1, "the number of nodes") // of at least three bytes each
	if r.err != nil {
		return make([]pageFrame, 1)
	}
	nodes := make([]pageFrame, n+1)
	path := []int{0}
	for i := 1; i <= n; i++ {
		up := r.below(uint64(len(path)), "a depth")
		path = path[:len(path)-up]
		nodes[i].parent = path[len(path)-1]
		path = append(path, i)
	}
	for i := 1; i <= n; i++ {
		nodes[i].function = r.below(uint64(len(t.FunctionName)), "a function")
	}
	for i := 1; i <= n && r.err == nil; i++ {
		v, size := binary.Varint(r.b[r.at:])
		if size <= 0 {
			r.fail("no number where a line should be")
			break
		}
		r.at += size
		if start := t.FunctionLine[nodes[i].function]; v != 0 || start != 0 {
			nodes[i].line = clampInt(int64(start) + v)
		}
	}
	return nodes
}

// places puts inlined functions and those that they are inlined into together.
func (r *pageReader) places(t *flameTables, nodes []pageFrame) {
	lines := 0
	for i := 1; i < len(nodes) && r.err == nil; i++ {
		n := &nodes[i]
		f := n.function
		ln := Line{Function: t.FunctionName[f], File: t.Files[t.FunctionFile[f]], StartLine: t.FunctionLine[f], Line: n.line, Kind: Kind(t.FunctionKind[f])}
		if ln.byAddress = ln.Kind != Marker && addressName(ln.Function); ln.byAddress && ln.Kind == Unknown {
			ln.Kind = kindOfPath(t.Modules[t.FunctionModule[f]])
		}
		n.lines, n.caller = []Line{ln}, n.parent
		if parent := &nodes[n.parent]; t.FunctionFlags[f]&1 != 0 && n.parent != 0 && t.FunctionFlags[parent.function]&2 == 0 && len(parent.lines) <= maxInlined {
			n.lines[0].Inlined = true
			n.lines, n.caller = append(n.lines, parent.lines...), parent.caller
		}
		if lines += len(n.lines); lines > maxPlaceLines {
			r.fail("%s", tooInlined())
		}
	}
}

func (r *pageReader) labels(t *flameTables, a *assembler) []uint32 {
	ids := make([]uint32, len(t.LabelSets))
	for i, set := range t.LabelSets {
		var labels []Label
		for _, l := range set {
			if r.err == nil {
				labels = append(labels, Label{t.LabelKeys[l], t.LabelValues[l]})
			}
		}
		ids[i] = a.b.Labels(labels...)
	}
	return ids
}

// modules makes those of the tables. One with a function of Go is of Go.
func (r *pageReader) modules(t *flameTables, a *assembler) []uint32 {
	ids := make([]uint32, len(t.Modules))
	if r.err != nil {
		return ids
	}
	golang := make([]bool, len(t.Modules))
	for f, module := range t.FunctionModule {
		golang[module] = golang[module] || Kind(t.FunctionKind[f]) == Go
	}
	for i, path := range t.Modules {
		kind := kindOfPath(path)
		if golang[i] && strings.HasPrefix(path, "/") {
			kind = Go
		}
		if path != "" {
			ids[i] = a.b.Module(Module{Path: path, Kind: kind})
		}
	}
	return ids
}
