package profile

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// otlpMessage is a message of protobuf by its fields.
type otlpMessage map[uint64][]otlpField

type otlpField struct {
	number uint64
	bytes  []byte
}

func (f otlpField) message(t *testing.T) otlpMessage {
	t.Helper()
	m := otlpMessage{}
	for b := f.bytes; len(b) > 0; {
		uvarint := func() uint64 {
			v, n := binary.Uvarint(b)
			if n <= 0 {
				t.Fatalf("no number in % x", b)
			}
			b = b[n:]
			return v
		}
		key := uvarint()
		var got otlpField
		switch key & 7 {
		case 0:
			got.number = uvarint()
		case 1:
			got.number = binary.LittleEndian.Uint64(b)
			b = b[8:]
		case 2:
			n := uvarint()
			got.bytes, b = b[:n], b[n:]
		default:
			t.Fatalf("field of type %d", key&7)
		}
		m[key>>3] = append(m[key>>3], got)
	}
	return m
}

// numbers are those of packed ones.
func (m otlpMessage) numbers(t *testing.T, field uint64) (out []uint64) {
	t.Helper()
	for _, f := range m[field] {
		for b := f.bytes; len(b) > 0; {
			v, n := binary.Uvarint(b)
			if n <= 0 {
				t.Fatalf("no number in % x", b)
			}
			out, b = append(out, v), b[n:]
		}
	}
	return out
}

func (m otlpMessage) number(field uint64) uint64 {
	if len(m[field]) == 0 {
		return 0
	}
	return m[field][0].number
}

func (m otlpMessage) text(field uint64) string {
	if len(m[field]) == 0 {
		return ""
	}
	return string(m[field][0].bytes)
}

// otlpRequest is what a server makes of a request.
type otlpRequest struct {
	t        *testing.T
	body     otlpMessage
	tables   otlpMessage
	resource []map[string]string // attributes by resource
	profiles []otlpMessage       // of all resources, one of each event
}

func readOTLP(t *testing.T, p *Profile, resource ...Label) *otlpRequest {
	t.Helper()
	data := written(t, func(w io.Writer) error { return p.WriteOTLP(w, resource) })
	r := &otlpRequest{t: t, body: otlpField{bytes: data}.message(t)}
	r.tables = r.body[2][0].message(t)
	for table := uint64(otlpMappings); table < otlpTables; table++ {
		if len(r.tables[table]) == 0 || len(r.tables[table][0].bytes) != 0 {
			t.Errorf("table %d does not begin with one that is none", table)
		}
	}
	for _, f := range r.body[1] {
		rp := f.message(t)
		attributes := map[string]string{}
		for _, kv := range rp[1][0].message(t)[1] {
			attributes[kv.message(t).text(1)] = kv.message(t)[2][0].message(t).text(1)
		}
		r.resource = append(r.resource, attributes)
		for _, f := range rp[2][0].message(t)[2] {
			r.profiles = append(r.profiles, f.message(t))
		}
	}
	return r
}

func (r *otlpRequest) string(i uint64) string { return string(r.tables[otlpStrings][i].bytes) }

func (r *otlpRequest) entry(table, i uint64) otlpMessage {
	return r.tables[table][i].message(r.t)
}

func (r *otlpRequest) valueType(m otlpMessage, field uint64) ValueType {
	if len(m[field]) == 0 {
		return ValueType{}
	}
	v := m[field][0].message(r.t)
	return ValueType{r.string(v.number(1)), r.string(v.number(2))}
}

// attributes are those at indexes in a field.
func (r *otlpRequest) attributes(m otlpMessage, field uint64) map[string]any {
	out := map[string]any{}
	for _, i := range m.numbers(r.t, field) {
		kv := r.entry(otlpAttributes, i)
		value := kv[2][0].message(r.t)
		if len(value[3]) > 0 {
			out[r.string(kv.number(1))] = int64(value.number(3))
		} else {
			out[r.string(kv.number(1))] = value.text(1)
		}
	}
	return out
}

// folded are the stacks of all profiles, below the name of the thread as that of the
// process.
func (r *otlpRequest) folded() map[string]int64 {
	out := map[string]int64{}
	for _, p := range r.profiles {
		for _, f := range p[2] {
			s := f.message(r.t)
			var stack []string
			for _, i := range r.entry(otlpStacks, s.number(1)).numbers(r.t, 1) {
				for _, line := range r.entry(otlpLocations, i)[3] {
					fn := r.entry(otlpFunctions, line.message(r.t).number(1))
					stack = append(stack, r.string(fn.number(1)))
				}
			}
			comm, _ := r.attributes(s, 2)["thread.name"].(string)
			stack = append(stack, comm)
			slices.Reverse(stack)
			out[strings.Join(stack, ";")] += int64(s.numbers(r.t, 4)[0])
		}
	}
	return out
}

// A server finds the same stacks in what it is sent as are written otherwise.
func TestOTLP(t *testing.T) {
	p := fixture()
	r := readOTLP(t, p, Label{"host.name", "web1"}, Label{"empty", ""})
	// The root frames there are processes, named after their main thread.
	want := map[string]int64{}
	for _, s := range p.samples {
		var stack []string
		for n := s.node; n != 0; n = p.nodes[n].parent {
			for _, l := range p.locations[p.nodes[n].location].lines {
				stack = append(stack, p.functions[l.function].name)
			}
		}
		stack = append(stack, p.threads[s.thread].CommString())
		slices.Reverse(stack)
		want[strings.Join(stack, ";")] += s.count
	}
	wantStacks(t, "OTLP", r.folded(), want)
	profile := r.profiles[0]
	if got := r.valueType(profile, 1); got != (ValueType{"samples", "count"}) {
		t.Errorf("samples are %v", got)
	}
	if got := r.valueType(profile, 5); got != p.Meta.Value || profile.number(6) != uint64(p.Meta.Period) {
		t.Errorf("each stands for %d of %v", profile.number(6), got)
	}
	if profile.number(3) != uint64(p.Meta.Start.UnixNano()) || time.Duration(profile.number(4)) != p.Meta.Duration {
		t.Errorf("from %d for %d", profile.number(3), profile.number(4))
	}
	if want := map[string]string{"host.name": "web1", "empty": ""}; !maps.Equal(r.resource[0], want) {
		t.Errorf("resource %v, want %v", r.resource[0], want)
	}
	for i, m := range p.modules {
		got := r.entry(otlpMappings, uint64(i))
		id, _ := r.attributes(got, 5)["process.executable.build_id.gnu"].(string)
		if r.string(got.number(4)) != m.Path || id != m.BuildID || m.Limit != 0 && (got.number(1) != m.Start || got.number(2) != m.Limit || got.number(3) != m.Offset) {
			t.Errorf("module %+v: %v of %s, %s", m, got, r.string(got.number(4)), id)
		}
	}
	for i := range p.locations {
		l, got := &p.locations[i], r.entry(otlpLocations, uint64(i)+1)
		kind, _ := r.attributes(got, 4)["profile.frame.type"].(string)
		if want := l.lines[0].kind; want.String() != kind && (want == Native || want == Go || want == Kernel) {
			t.Errorf("location %d is %q, want %v", i, kind, want)
		}
		if l.module != noModule && (got.number(1) != uint64(l.module) || got.number(2) != l.addr) {
			t.Errorf("location %d is %#x in %d, want %#x in %d", i, got.number(2), got.number(1), l.addr, l.module)
		}
	}
}

// Each container is a resource of its own; labels are attributes.
func TestOTLPContainers(t *testing.T) {
	b := NewBuilder()
	module := b.Module(Module{Path: "/usr/bin/app", Kind: Native})
	none := b.Labels()
	inA := b.Labels(Label{"container", "a"}, Label{"cpu", "3"}, Label{"build", "42"})
	inB := b.Labels(Label{"container", "b"})
	for i, labels := range []uint32{inB, none, inA, inB} {
		thread := Thread{PID: int32(i), TID: int32(10 + i), Comm: Comm("app"), Labels: labels}
		b.Add(thread, []Loc{{module, 0x10}}, "", int64(i+1), int64(i+1)*1000)
	}
	r := readOTLP(t, b.Finish(Meta{Tool: "swbpf 1.2", Value: ValueType{"off-cpu", "nanoseconds"}, ByValue: true}, nil), Label{"host.name", "h"})
	var got []map[string]string
	var values []uint64
	for i, p := range r.profiles {
		if vt := r.valueType(p, 1); vt != (ValueType{"off-cpu", "nanoseconds"}) || len(p[5]) != 0 {
			t.Errorf("samples are %v", vt)
		}
		got = append(got, r.resource[i])
		for _, s := range p[2] {
			values = append(values, s.message(t).numbers(t, 4)...)
		}
	}
	want := []map[string]string{{"host.name": "h"}, {"host.name": "h", "container.id": "a"}, {"host.name": "h", "container.id": "b"}}
	if !slices.EqualFunc(got, want, maps.Equal) {
		t.Errorf("resources %v, want %v", got, want)
	}
	if want := []uint64{2000, 3000, 1000, 4000}; !slices.Equal(values, want) {
		t.Errorf("values %v, want %v", values, want)
	}
	attributes := r.attributes(r.profiles[1][2][0].message(t), 2)
	wantAttributes := map[string]any{"process.pid": int64(2), "thread.id": int64(12), "thread.name": "app", "cpu.logical_number": "3", "build": "42"}
	if !maps.Equal(attributes, wantAttributes) {
		t.Errorf("attributes %v, want %v", attributes, wantAttributes)
	}
	if n := len(r.tables[otlpStacks]); n != 2 {
		t.Errorf("%d stacks, want one beside the empty", n)
	}
}

// What threads worked on is a link, and the service that their process is has a resource of its own.
func TestOTLPTraces(t *testing.T) {
	const trace, span, other = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "00f067aa0ba902b8"
	b := NewBuilder()
	module := b.Module(Module{Path: "/usr/bin/app", Kind: Native})
	shop := Label{"service.name", "shop"}
	sets := [][]Label{
		{},
		{shop, {"service.version", "1.2"}, {TraceLabel, trace}, {SpanLabel, span}, {"http.route", "/pay"}},
		{shop, {"service.version", "1.2"}, {TraceLabel, trace}, {SpanLabel, other}},
		{shop, {"service.version", "1.2"}},
		{{TraceLabel, "no trace"}, {SpanLabel, span}}, // labels of a program's own
		{{TraceLabel, trace}, {SpanLabel, span}},
	}
	for i, set := range sets {
		thread := Thread{PID: 1, TID: int32(i), Comm: Comm("app"), Labels: b.Labels(set...)}
		b.Add(thread, []Loc{{module, 0x10}}, "", 1, 1)
	}
	r := readOTLP(t, b.Finish(Meta{Tool: "swbpf 1.2", Value: ValueType{"cpu", "nanoseconds"}}, nil), Label{"host.name", "h"}, Label{"service.name", "machine"})
	wantResources := []map[string]string{
		{"host.name": "h", "service.name": "machine"}, {"host.name": "h", "service.name": "shop", "service.version": "1.2"},
	}
	if !slices.EqualFunc(r.resource, wantResources, maps.Equal) {
		t.Errorf("resources %v, want %v", r.resource, wantResources)
	}
	type linked struct{ trace, span string }
	got := map[int64]linked{}
	for _, p := range r.profiles {
		for _, f := range p[2] {
			s := f.message(t)
			attributes := r.attributes(s, 2)
			link := r.entry(otlpLinks, s.number(3))
			tid := attributes["thread.id"].(int64)
			got[tid] = linked{hex.EncodeToString([]byte(link.text(1))), hex.EncodeToString([]byte(link.text(2)))}
			_, hasTrace := attributes[TraceLabel]
			if hasTrace != (tid == 4) {
				t.Errorf("thread %d has %v", tid, attributes)
			}
			if tid == 1 && attributes["http.route"] != "/pay" || attributes["service.name"] != nil {
				t.Errorf("thread %d has %v", tid, attributes)
			}
		}
	}
	want := map[int64]linked{0: {}, 1: {trace, span}, 2: {trace, other}, 3: {}, 4: {}, 5: {trace, span}}
	if !maps.Equal(got, want) {
		t.Errorf("links %v, want %v", got, want)
	}
	if n := len(r.tables[otlpLinks]); n != 3 {
		t.Errorf("%d links, want two beside the empty", n)
	}
}
