package profile

import (
	"cmp"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

const firefoxFormat = "Firefox profile"

// firefoxRead is a file as it is read: in older versions threads have tables
// of their own.
type firefoxRead struct {
	firefoxFile
	Threads []firefoxReadThread `json:"threads"`
}

type firefoxReadThread struct {
	firefoxThread
	firefoxTables
}

// readFirefox reads the processed format of the Firefox Profiler, in its
// versions with one set of tables and with one for each thread.
func readFirefox(data []byte, o ReadOptions) (*Profile, error) {
	var file firefoxRead
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, jsonError(firefoxFormat, data, err)
	}
	f := firefoxReader{data: data, file: &file, a: newAssembler()}
	if o.Times {
		f.a.b.KeepTimes()
	}
	shared := cmp.Or(file.Shared, &firefoxTables{})
	if err := f.checkLengths(shared, []any{"shared"}); err != nil {
		return nil, err
	}
	if err := f.setFrames(shared, []any{"shared"}); err != nil {
		return nil, err
	}
	for i := range file.Threads {
		if t := &file.Threads[i].firefoxTables; len(shared.FrameTable.Func) == 0 {
			// Strings and sources were shared before the others.
			if t.StringArray == nil {
				t.StringArray = shared.StringArray
			}
			if t.Sources.Filename == nil {
				t.Sources = shared.Sources
			}
			if err := f.checkLengths(t, []any{"threads", i}); err != nil {
				return nil, err
			}
			if err := f.setFrames(t, []any{"threads", i}); err != nil {
				return nil, err
			}
		}
		if err := f.checkColumns(file.Threads[i].Samples, []any{"threads", i, "samples"}); err != nil {
			return nil, err
		}
		if err := f.thread(i); err != nil {
			return nil, err
		}
	}
	if f.a.count == 0 && !slices.ContainsFunc(file.Threads, func(t firefoxReadThread) bool { return t.Samples.Stack != nil }) {
		return nil, jsonErrorAt(firefoxFormat, data, []any{"threads"}, "no samples")
	}
	m := f.meta(o)
	p := f.a.b.Finish(m, nil)
	p.Format, p.Types = firefoxFormat, typesOf(&m)
	return p, o.checkType(p)
}

type firefoxReader struct {
	data       []byte
	file       *firefoxRead
	a          *assembler
	path       []any  // to the tables
	stacks     []Loc  // frame of each stack
	prefix     []int  // of each stack, or -1
	weightType string // of samples
	stack      []Loc
}

func (f *firefoxReader) meta(o ReadOptions) Meta {
	fm := &f.file.Meta
	m := Meta{Target: cmp.Or(fm.Product, o.Name), Kernel: fm.OSCPU, CPUs: fm.LogicalCPUs}
	if fm.StartTime > 0 && fm.StartTime < 1<<52 {
		m.Start = time.UnixMicro(int64(fm.StartTime * 1e3))
	}
	switch f.weightType {
	case "tracing-ms":
		m.Value, m.ByValue = ValueType{"time", "nanoseconds"}, true
	case "bytes":
		m.Value, m.ByValue = ValueType{"space", "bytes"}, true
	default:
		if fm.Interval > 0 && fm.Interval < 1e6 {
			m.Value, m.Period = ValueType{"time", "nanoseconds"}, int64(fm.Interval*1e6)
		}
	}
	return m
}

// checkLengths refuses tables whose columns are of other lengths than they say.
func (f *firefoxReader) checkLengths(t *firefoxTables, path []any) error {
	for _, table := range []struct {
		name    string
		columns any
	}{{"stackTable", t.StackTable}, {"frameTable", t.FrameTable}, {"funcTable", t.FuncTable}, {"resourceTable", t.ResourceTable}, {"sources", t.Sources}} {
		if err := f.checkColumns(table.columns, append(path[:len(path):len(path)], table.name)); err != nil {
			return err
		}
	}
	return nil
}

// checkColumns is checkLengths for one table. Versions of the format differ in
// which columns there are.
func (f *firefoxReader) checkColumns(table any, path []any) error {
	v := reflect.ValueOf(table)
	length := int(v.FieldByName("Length").Int())
	for i := range v.NumField() {
		if column := v.Field(i); column.Kind() == reflect.Slice && !column.IsNil() && column.Len() != length {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return jsonErrorAt(firefoxFormat, f.data, append(path, name), "%d values, where the table's length is %d", column.Len(), length)
		}
	}
	return nil
}

// column returns the value at an index, whose column may be missing.
func column[T any](c []T, i int) (v T) {
	if i >= 0 && i < len(c) {
		v = c[i]
	}
	return v
}

// errorAt says what is wrong with a value of the tables.
func (f *firefoxReader) errorAt(table, column string, i int, text string, args ...any) error {
	return jsonErrorAt(firefoxFormat, f.data, append(f.path[:len(f.path):len(f.path)], table, column, i), text, args...)
}

// setFrames makes the frames of stacks from tables, which path leads to.
func (f *firefoxReader) setFrames(t *firefoxTables, path []any) error {
	f.path = path
	texts := t.StringArray
	if len(texts) == 0 {
		texts = t.StringTable
	}
	lines, err := f.frameLines(t, texts)
	if err != nil {
		return err
	}
	f.stacks, f.prefix = f.stacks[:0], f.prefix[:0]
	modules := map[int]uint32{}
	for i, frame := range t.StackTable.Frame {
		if frame < 0 || frame >= len(lines) {
			return f.errorAt("stackTable", "frame", i, "frame %d of %d", frame, len(lines))
		}
		prefix := -1
		if p := column(t.StackTable.Prefix, i); p != nil {
			if prefix = *p; prefix < 0 || prefix >= i {
				return f.errorAt("stackTable", "prefix", i, "stack %d is none of those before it", prefix)
			}
		}
		ln := lines[frame]
		fn := t.FrameTable.Func[frame]
		module, kind := uint32(0), f.kindOf(t, frame)
		if resource := column(t.FuncTable.Resource, fn); resource >= 0 && resource < len(t.ResourceTable.Name) {
			id, ok := modules[resource]
			if !ok {
				id = f.a.b.Module(f.moduleOf(t, texts, resource, kind))
				modules[resource] = id
			}
			module = id
		}
		addr := uint64(0)
		if a := column(t.FrameTable.Address, frame); a > 0 && a < 1<<53 {
			addr = uint64(a)
		}
		if ln.byAddress = addressName(ln.Function); !ln.byAddress {
			ln.Kind = cmp.Or(kind, kindOfLine(kind, ln.File))
		}
		if ln.Function == "" {
			ln.Start = addr
		}
		f.prefix = append(f.prefix, prefix)
		if f.isMarker(t, frame) {
			f.stacks = append(f.stacks, f.a.b.Marker(ln.Function))
			continue
		}
		if depth := column(t.FrameTable.InlineDepth, frame); depth > 0 && depth <= maxInlined && prefix >= 0 && f.stacks[prefix].Module != markerModule && column(t.FrameTable.InlineDepth, t.StackTable.Frame[prefix])+1 == depth {
			// It is inlined into the frame of the stack before: both are one place.
			outer := f.a.b.places[f.stacks[prefix].Addr]
			ln.Inlined = true
			f.stacks = append(f.stacks, f.a.place(f.stacks[prefix].Module, outer.addr, append([]Line{ln}, outer.lines...)))
			f.prefix[i] = f.prefix[prefix]
			if f.a.lines > maxPlaceLines {
				return f.errorAt("stackTable", "frame", i, "%s", tooInlined())
			}
			continue
		}
		f.stacks = append(f.stacks, f.a.place(module, addr, []Line{ln}))
	}
	return nil
}

// frameLines returns the line of each frame of the tables.
func (f *firefoxReader) frameLines(t *firefoxTables, texts []string) (lines []Line, err error) {
	for i, fn := range t.FrameTable.Func {
		if fn < 0 || fn >= len(t.FuncTable.Name) {
			return nil, f.errorAt("frameTable", "func", i, "function %d of %d", fn, len(t.FuncTable.Name))
		}
		name := t.FuncTable.Name[fn]
		if name < 0 || name >= len(texts) {
			return nil, f.errorAt("funcTable", "name", fn, "string %d of %d", name, len(texts))
		}
		ln := Line{Function: texts[name], File: f.sourceOf(t, texts, fn)}
		ln.Line = deref(column(t.FrameTable.Line, i))
		ln.StartLine = deref(column(t.FuncTable.LineNumber, fn))
		lines = append(lines, ln)
	}
	return lines, nil
}

// moduleOf returns the module that a resource is: a library, or what its name says.
func (f *firefoxReader) moduleOf(t *firefoxTables, texts []string, resource int, kind Kind) Module {
	m := Module{Kind: kind}
	if lib := column(t.ResourceTable.Lib, resource); lib != nil && deref(lib) < len(f.file.Libs) {
		is := &f.file.Libs[deref(lib)]
		m.Path = is.Path
		if is.CodeID != nil {
			m.BuildID = *is.CodeID
		}
	} else {
		m.Path = column(texts, t.ResourceTable.Name[resource])
	}
	if m.Kind == Unknown {
		m.Kind = kindOfPath(m.Path)
	}
	return m
}

func deref(n *int) int {
	if n == nil || *n < 0 || *n > math.MaxInt32 {
		return 0
	}
	return *n
}

func (f *firefoxReader) sourceOf(t *firefoxTables, texts []string, fn int) string {
	if source := column(t.FuncTable.Source, fn); source != nil {
		return column(texts, column(t.Sources.Filename, *source))
	}
	if name := column(t.FuncTable.FileName, fn); name != nil {
		return column(texts, *name)
	}
	return ""
}

// kindOf tells a frame's kind by the name of its category.
func (f *firefoxReader) kindOf(t *firefoxTables, frame int) Kind {
	category := column(t.FrameTable.Category, frame)
	if category == nil {
		return Unknown
	}
	name := column(f.file.Meta.Categories, *category).Name
	for kind := range Marker {
		if firefoxCategories[kind].Name == name {
			return kind
		}
	}
	if name == "User" {
		return Native
	}
	return Unknown
}

// number returns the ID of the kernel, which may be followed by that of an
// exec: "123.1".
func (id firefoxID) number() int32 {
	text, _, _ := strings.Cut(string(id), ".")
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}

// isMarker reports whether a frame is of one of our categories for markers.
func (f *firefoxReader) isMarker(t *firefoxTables, frame int) bool {
	category := column(t.FrameTable.Category, frame)
	if category == nil {
		return false
	}
	name := column(f.file.Meta.Categories, *category).Name
	return name == firefoxCategories[Marker].Name || name == firefoxCategories[waiting].Name ||
		name == "Remark" // that had both until they were told apart
}

func (f *firefoxReader) thread(i int) error {
	t := &f.file.Threads[i]
	f.weightType = cmp.Or(t.Samples.WeightType, f.weightType)
	thread := Thread{Comm: Comm(t.Name)}
	thread.PID, thread.TID = t.PID.number(), t.TID.number()
	now := 0.0
	for j, stack := range t.Samples.Stack {
		at := func(column string) []any { return []any{"threads", i, "samples", column, j} }
		if j < len(t.Samples.Time) {
			now = t.Samples.Time[j]
		} else {
			now += column(t.Samples.TimeDeltas, j)
		}
		if stack == nil || t.Samples.Weight != nil && column(t.Samples.Weight, j) == 0 {
			continue
		}
		if *stack < 0 || *stack >= len(f.stacks) {
			return jsonErrorAt(firefoxFormat, f.data, at("stack"), "stack %d of %d", *stack, len(f.stacks))
		}
		weight := 1.0
		if t.Samples.Weight != nil {
			weight = column(t.Samples.Weight, j)
		}
		if t.Samples.WeightType == "tracing-ms" {
			weight *= 1e6
		}
		if !(weight >= 0 && weight < 1<<62) || math.Abs(now) > 1<<43 {
			return jsonErrorAt(firefoxFormat, f.data, at("weight"), "the weight %g at %g ms is none", weight, now)
		}
		f.a.b.SetTime(int64(now * 1e6))
		count, value := int64(math.Round(weight)), int64(0)
		if t.Samples.WeightType == "tracing-ms" || t.Samples.WeightType == "bytes" {
			count, value = 1, count
		} else if ns := f.file.Meta.Interval * 1e6; ns > 0 && ns < 1e12 && count < 1<<20 {
			value = count * int64(ns)
		}
		f.stack = f.stack[:0]
		truncated := ""
		for s := *stack; s >= 0; s = f.prefix[s] {
			if f.prefix[s] < 0 {
				text, _ := f.a.b.MarkerText(f.stacks[s])
				if truncated = truncatedReason(text); truncated != "" {
					break
				}
			}
			f.stack = append(f.stack, f.stacks[s])
		}
		if err := f.a.add(thread, f.stack, truncated, count, value); err != nil {
			return jsonErrorAt(firefoxFormat, f.data, at("weight"), "%v", err)
		}
	}
	return nil
}
