package loader

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/swbpf/swbpf/gen"
)

// numbers is where the programs of an event find a whole number that it carries.
type numbers struct {
	operands []operand // each once
	at       []int     // index in operands, by place of the event; nil: it is the same for all
}

// add says where the number is at the next place.
func (n *numbers) add(o operand) {
	i := slices.Index(n.operands, o)
	if i < 0 {
		i = len(n.operands)
		n.operands = append(n.operands, o)
	}
	n.at = append(n.at, i)
}

// operandAt is where the number is at a place of the event.
func (n *numbers) operandAt(place int) *operand {
	if n.at == nil {
		return &n.operands[0]
	}
	return &n.operands[n.at[place]]
}

// everywhere is a number that is at the same operand at all places.
func everywhere(o operand) numbers { return numbers{operands: []operand{o}} }

// findNumber looks up where the programs of a tracepoint or probe find a number.
func findNumber(e Event, name string) (numbers, error) {
	switch {
	case e.IsTracepoint():
		return fieldOf(e, name)
	case e.isStaticProbe():
		return probeArgumentOf(e, name)
	}
	return argumentOf(e, name)
}

// reading is how a program finds all numbers that are wanted of an event. Places where they are the same have the
// same program.
type reading struct {
	weight     gen.SamplerNumber
	conditions [maxConditions]gen.SamplerCondition
	count      uint32 // of the conditions
	event      uint8  // which of the Session's it is
	period     uint64 // after how much of the weights there is a sample
}

// maxReadings bounds how many programs there are for the places of an event.
const maxReadings = 64

// readingAt is how numbers are found at a place of the event.
func (s *source) readingAt(place int) (r reading) {
	weight := &operand{constant: 1}
	if !s.Weight.isZero() {
		weight = s.Weight.operandAt(place)
	}
	r.weight = weight.number()
	for i := range s.Filter.conditions {
		f := &s.Filter.conditions[i]
		r.conditions[i] = f.condition
		r.conditions[i].Number = f.operandAt(place).number()
	}
	r.count = uint32(len(s.Filter.conditions))
	r.event, r.period = uint8(s.number), 1
	if s.Event.isPoint() {
		r.period = s.Period
	}
	return r
}

// allReadings are all that there are, each once; the first is that of the first place.
func (s *source) allReadings() (all []reading, err error) {
	for place := range max(1, len(s.Event.places)) {
		if r := s.readingAt(place); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	if len(all) > maxReadings {
		return nil, fmt.Errorf("event %s: what --weight and --filter ask for is in %d different places, more than %d", s.Event.Name, len(all), maxReadings)
	}
	return all, nil
}

// put makes it that of the programs (bpf/config.h).
func (r *reading) put(spec *ebpf.CollectionSpec) error {
	for name, value := range map[string]any{
		gen.SamplerVarWeightNumber:   r.weight,
		gen.SamplerVarConditions:     r.conditions,
		gen.SamplerVarConditionCount: r.count,
		gen.SamplerVarEventNumber:    r.event,
		gen.SamplerVarPointPeriod:    r.period,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
