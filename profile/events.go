package profile

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// Event says of a further event of a recording what Meta says of the first.
type Event struct {
	Name        string
	FrequencyHz int
	Value       ValueType
	Period      int64
	ByValue     bool
}

// ofEvent describes the samples of an event by its number: 0 is the first.
func (m *Meta) ofEvent(number int) Meta {
	out := *m
	out.setEvents(m.events()[number:][:1])
	return out
}

// events describes the events of a recording, in order.
func (m *Meta) events() []Event {
	return append([]Event{{m.Event, m.FrequencyHz, m.Value, m.Period, m.ByValue}}, m.Also...)
}

// setEvents makes m be of these events.
func (m *Meta) setEvents(events []Event) {
	e := &events[0]
	m.Event, m.FrequencyHz, m.Value, m.Period, m.ByValue = e.Name, e.FrequencyHz, e.Value, e.Period, e.ByValue
	m.Also = slices.Clone(events[1:])
}

// uniqueNames are the names of events, of which the same one twice has two.
func uniqueNames(events []Event) (names []string) {
	for i := range events {
		name := cmp.Or(events[i].Name, "samples")
		for slices.Contains(names, name) {
			name += "'"
		}
		names = append(names, name)
	}
	return names
}

// samplesSuffix ends the name of the type that counts the samples of an event, of several.
const samplesSuffix = "_samples"

// typesByEvent are the types of values of several events: of each how many samples there are, and what
// they come to. They are called after what is counted, or after the event where that does not tell
// which it is.
func (m *Meta) typesByEvent() (types []ValueType) {
	events := m.events()
	named := map[string]int{}
	for i := range events {
		named[events[i].Value.Type]++
	}
	for i := range events {
		name := events[i].Value.Type
		if named[name] > 1 || name == "" || events[i].ByValue {
			name = events[i].Name
		}
		for slices.ContainsFunc(types, func(t ValueType) bool { return t.Type == name }) { // the same event twice
			name += "'"
		}
		types = append(types, ValueType{name + samplesSuffix, "count"}, ValueType{name, events[i].Value.Unit})
	}
	return types
}

// CountsAnother reports whether a type counts the samples of an event of which another one of a
// profile's types has what they come to: "cpu_samples" beside "cpu".
func (t ValueType) CountsAnother(types []ValueType) bool {
	name, ok := strings.CutSuffix(t.Type, samplesSuffix)
	return ok && slices.ContainsFunc(types, func(o ValueType) bool { return o.Type == name })
}

// HasEvents reports whether the Types of a profile that was read are events. Else they are values of the same
// samples, of which the first mostly is their number.
func (p *Profile) HasEvents() bool {
	return len(p.Types) > 0 && slices.ContainsFunc(p.Types, func(t ValueType) bool { return t.Type == p.Meta.Event }) &&
		!slices.ContainsFunc(p.Types, func(t ValueType) bool { return t.Unit != "count" || t.Type == "samples" })
}

// anyByValue reports whether samples of any event have values of their own.
func (m *Meta) anyByValue() bool {
	return m.ByValue || slices.ContainsFunc(m.Also, func(e Event) bool { return e.ByValue })
}

// Events are the profiles of each of the events of a recording (Meta.Also), in order; that
// of one event is its own. What was lost and the notes are those of all.
func (p *Profile) Events() []*Profile {
	if len(p.Meta.Also) == 0 {
		return []*Profile{p}
	}
	var all []*Profile
	for i := range 1 + len(p.Meta.Also) {
		all = append(all, p.ofEvent(i))
	}
	return all
}

// unused is the number of what a selection of samples does not need.
const unused = math.MaxUint32

// renumber numbers those that are used, in order. It puts the numbers in place of used.
func renumber(used []uint32) (n int) {
	for i, u := range used {
		if u != unused {
			used[i] = uint32(n)
			n++
		}
	}
	return n
}

// unusedNumbers are so many of those.
func unusedNumbers(n int) []uint32 { return slices.Repeat([]uint32{unused}, n) }

// ofNamedEvent returns the profile of the event of which Types has the name.
func (p *Profile) ofNamedEvent(name string) (*Profile, error) {
	for i, t := range p.Types {
		if t.Type == name && i <= len(p.Meta.Also) {
			return p.ofEvent(i), nil
		}
	}
	return nil, noSuchType(name, typeNames(p.Types))
}

// ofEvent returns the profile of an event alone.
func (p *Profile) ofEvent(number int) *Profile {
	q := &Profile{Meta: p.Meta.ofEvent(number), Format: p.Format, Types: p.Types, reread: p.reread, program: p.program, modules: p.modules, labels: p.labels, squaresKnown: p.squaresKnown}
	if number < len(q.Types) {
		q.Type = q.Types[number].Type
	}
	isIn := func(thread uint32) bool { return int(p.threads[thread].Event) == number }
	nodes, threads := unusedNumbers(len(p.nodes)), unusedNumbers(len(p.threads))
	locations, functions := unusedNumbers(len(p.locations)), unusedNumbers(len(p.functions))
	nodes[0] = 0
	for i := range p.samples {
		s := &p.samples[i]
		if !isIn(s.thread) {
			continue
		}
		threads[s.thread] = 0
		for n := s.node; nodes[n] == unused; n = p.nodes[n].parent {
			nodes[n], locations[p.nodes[n].location] = 0, 0
			for _, l := range p.locations[p.nodes[n].location].lines {
				functions[l.function] = 0
			}
		}
	}
	renumber(nodes)
	renumber(threads)
	renumber(locations)
	renumber(functions)
	for i, f := range p.functions {
		if functions[i] != unused {
			q.functions = append(q.functions, f)
		}
	}
	for i, l := range p.locations {
		if locations[i] == unused {
			continue
		}
		l.lines = slices.Clone(l.lines)
		for j := range l.lines {
			l.lines[j].function = functions[l.lines[j].function]
		}
		q.locations = append(q.locations, l)
	}
	for i, n := range p.nodes {
		switch {
		case i == 0:
			q.nodes = append(q.nodes, n)
		case nodes[i] != unused:
			q.nodes = append(q.nodes, pathNode{nodes[n.parent], locations[n.location]})
		}
	}
	for i, t := range p.threads {
		if threads[i] != unused {
			t.Event = 0
			q.threads = append(q.threads, t)
		}
	}
	for _, s := range p.samples {
		if isIn(s.thread) {
			s.node, s.thread = nodes[s.node], threads[s.thread]
			q.samples = append(q.samples, s)
		}
	}
	for _, m := range p.times {
		if isIn(m.thread) {
			m.node, m.thread = nodes[m.node], threads[m.thread]
			q.times = append(q.times, m)
		}
	}
	q.recount()
	return q
}

// recount counts the samples, and of those that were truncated how many for each reason.
func (p *Profile) recount() {
	roots := make([]uint32, len(p.nodes)) // parents come before children
	for i := 1; i < len(p.nodes); i++ {
		if roots[i] = uint32(i); p.nodes[i].parent != 0 {
			roots[i] = roots[p.nodes[i].parent]
		}
	}
	p.Samples, p.Value, p.Truncated = 0, 0, nil
	byRoot := map[uint32]int64{}
	for i := range p.samples {
		s := &p.samples[i]
		p.Samples += s.count
		p.Value += s.value
		byRoot[roots[s.node]] += s.count
	}
	p.Complete = p.Samples
	for root, n := range byRoot {
		if reason := p.truncatedBelow(root); reason != "" && n != 0 {
			p.Truncated = append(p.Truncated, Tally{reason, n})
			p.Complete -= n
		}
	}
	sortTallies(p.Truncated)
}

// truncatedBelow returns for what reason the stacks below a frame at the root are truncated, "" if
// they are not.
func (p *Profile) truncatedBelow(root uint32) string {
	if root == 0 {
		return ""
	}
	l := &p.locations[p.nodes[root].location]
	if l.module != noModule || len(l.lines) == 0 {
		return ""
	}
	return truncatedReason(p.functions[l.lines[0].function].name)
}
