package profile

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
)

// flameTables is the part of a flame graph's data that is JSON. Lists with a
// common prefix in their names are columns of one table.
type flameTables struct {
	Weight  string `json:"weight"`  // what widths are: "samples" or the type of Meta.Value
	Unit    string `json:"unit"`    // of widths: "count", "nanoseconds"
	Period  int64  `json:"period"`  // nanoseconds per sample, or 0
	ByValue bool   `json:"byValue"` // samples have a value beside their count
	Counted string `json:"counted"` // what the counts are of, in the plural: "samples"

	Meta *Meta       `json:"meta"`           // for reading it back
	Diff *diffTables `json:"diff,omitempty"` // of two profiles in one; PIDs are then sides

	Kinds     []string `json:"kinds"` // names by number
	Modules   []string `json:"modules"`
	Files     []string `json:"files"`
	Processes []string `json:"processes"`

	FunctionName   []string `json:"functionName"`
	FunctionModule []int    `json:"functionModule"`
	FunctionFile   []int    `json:"functionFile"`
	FunctionLine   []int    `json:"functionLine"` // on which it begins
	FunctionKind   []int    `json:"functionKind"`
	FunctionFlags  []int    `json:"functionFlags"` // 1 inlined, 2 process

	ThreadProcess []int    `json:"threadProcess"`
	ThreadPID     []int32  `json:"threadPID"`
	ThreadTID     []int32  `json:"threadTID"`
	ThreadComm    []string `json:"threadComm"`
	ThreadLabels  []uint32 `json:"threadLabels"` // sets of labels

	LabelSets   [][]int  `json:"labelSets"` // labels by set, of which 0 is empty
	LabelKeys   []string `json:"labelKeys"` // of a label
	LabelValues []string `json:"labelValues"`
}

// columns turns strings into numbers of a list without repetitions.
type columns struct {
	list []string
	ids  map[string]int
}

func (c *columns) id(s string) int {
	id, ok := c.ids[s]
	if !ok {
		if c.ids == nil {
			c.ids = map[string]int{}
		}
		id = len(c.list)
		c.list = append(c.list, s)
		c.ids[s] = id
	}
	return id
}

// flameData returns the data that the flame graph's page decodes: base64 of
// deflated
//
//	length of JSON, JSON of flameTables,
//	number of nodes less node 0, then for each, in preorder:
//	  levels up from the previous node to its parent,
//	then the function of each,
//	then its line, less that on which the function begins, zigzag,
//	number of samples, then for each:
//	  node less that of the previous sample, thread, count, value if ByValue,
//	  and of a diff, the root of the sum of the squares of its values
//
// where all numbers are varints as of encoding/binary.
func (p *Profile) flameData() (string, error) {
	t := p.flameTree()
	head := t.tables(&p.Meta)
	head.Diff, head.Meta = p.diff, &p.Meta
	head.setLabels(p.labels)
	tables, err := json.Marshal(head)
	if err != nil {
		return "", fmt.Errorf("encoding flame graph: %w", err)
	}
	var b []byte
	b = binary.AppendUvarint(b, uint64(len(tables)))
	b = append(b, tables...)
	b = binary.AppendUvarint(b, uint64(len(t.nodes)-1))
	depth := make([]uint32, len(t.nodes))
	for i := 1; i < len(t.nodes); i++ {
		depth[i] = depth[t.nodes[i].parent] + 1
		b = binary.AppendUvarint(b, uint64(depth[i-1]+1-depth[i]))
	}
	for _, n := range t.nodes[1:] {
		b = binary.AppendUvarint(b, uint64(n.function))
	}
	for _, n := range t.nodes[1:] {
		delta := 0
		if n.line != 0 {
			delta = n.line - t.functions[n.function].startLine
		}
		b = binary.AppendVarint(b, int64(delta))
	}
	b = binary.AppendUvarint(b, uint64(len(t.samples)))
	last := uint32(0)
	for _, s := range t.samples {
		b = binary.AppendUvarint(b, uint64(s.node-last))
		b = binary.AppendUvarint(b, uint64(s.thread))
		b = binary.AppendUvarint(b, uint64(max(s.count, 0)))
		if p.Meta.ByValue {
			b = binary.AppendUvarint(b, uint64(max(s.value, 0)))
		}
		if p.diff != nil {
			b = binary.AppendUvarint(b, uint64(math.Sqrt(s.squares)+0.5))
		}
		last = s.node
	}
	var out bytes.Buffer
	z, err := flate.NewWriter(&out, flate.DefaultCompression)
	if err == nil {
		_, err = z.Write(b)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		return "", fmt.Errorf("compressing flame graph: %w", err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes()), nil
}

func (t *flameTree) tables(m *Meta) *flameTables {
	out := &flameTables{
		Weight: "samples", Unit: "count", ByValue: m.ByValue, Counted: m.counted(),
		Kinds: kindNames[:], Processes: t.processes,

		// A list without elements is not to become null.
		FunctionName: []string{}, FunctionModule: []int{}, FunctionFile: []int{}, FunctionLine: []int{},
		FunctionKind: []int{}, FunctionFlags: []int{},
		ThreadProcess: []int{}, ThreadPID: []int32{}, ThreadTID: []int32{}, ThreadComm: []string{}, ThreadLabels: []uint32{},
	}
	if m.Value.Unit == "nanoseconds" && !m.ByValue {
		out.Period = m.Period
	}
	if m.ByValue {
		out.Weight, out.Unit = m.Value.Type, m.Value.Unit
	}
	var modules, files columns
	for i := range t.functions {
		f := &t.functions[i]
		flags := 0
		if f.inlined {
			flags |= 1
		}
		if f.process {
			flags |= 2
		}
		out.FunctionName = append(out.FunctionName, f.name)
		out.FunctionModule = append(out.FunctionModule, modules.id(f.module))
		out.FunctionFile = append(out.FunctionFile, files.id(f.file))
		out.FunctionLine = append(out.FunctionLine, f.startLine)
		out.FunctionKind = append(out.FunctionKind, int(f.kind))
		out.FunctionFlags = append(out.FunctionFlags, flags)
	}
	out.Modules, out.Files = modules.list, files.list
	for i := range t.threads {
		th := &t.threads[i]
		out.ThreadProcess = append(out.ThreadProcess, th.process)
		out.ThreadPID = append(out.ThreadPID, th.PID)
		out.ThreadTID = append(out.ThreadTID, th.TID)
		out.ThreadComm = append(out.ThreadComm, th.CommString())
		out.ThreadLabels = append(out.ThreadLabels, th.Labels)
	}
	return out
}

func (t *flameTables) setLabels(sets [][]Label) {
	t.LabelSets, t.LabelKeys, t.LabelValues = [][]int{}, []string{}, []string{}
	ids := map[Label]int{}
	for _, set := range sets {
		numbers := []int{}
		for _, l := range set {
			id, ok := ids[l]
			if !ok {
				id = len(ids)
				ids[l] = id
				t.LabelKeys = append(t.LabelKeys, l.Key)
				t.LabelValues = append(t.LabelValues, l.Value)
			}
			numbers = append(numbers, id)
		}
		t.LabelSets = append(t.LabelSets, numbers)
	}
}
