package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/swbpf/swbpf/loader"
)

// eventOptions are the flags about one event.
type eventOptions struct {
	event     string
	weight    string
	filter    string
	frequency hertzValue // 0 when not given
	period    countValue // 0 when not given
}

// eventsOptions are the flags about events. Those that are not -e belong to the -e before them. What
// comes before the first one is for all that it can be for; where there is one event, the order of flags does
// not matter.
type eventsOptions struct {
	eventOptions                // that comes before the first -e; from settle on, of the first event
	events       []eventOptions // from the first -e on
	also         []eventOptions // from settle on: of further events
}

// latest returns what a flag that comes next is about.
func (o *eventsOptions) latest() *eventOptions {
	if n := len(o.events); n > 0 {
		return &o.events[n-1]
	}
	return &o.eventOptions
}

// settle gives each event its flags, when all have been read.
func (o *eventsOptions) settle() error {
	all := o.eventOptions
	switch {
	case len(o.events) == 0:
		return nil
	case len(o.events) > 1 && all.weight != "":
		return errors.New("--weight is for the -e before it, and there are several events: give it after one")
	case len(o.events) > 1 && all.filter != "":
		return errors.New("--filter is for the -e before it, and there are several events: give it after one")
	}
	for i := range o.events {
		e := &o.events[i]
		if e.frequency != 0 && e.period != 0 {
			return errors.New("-F and -c exclude each other")
		}
		e.weight, e.filter = cmp.Or(e.weight, all.weight), cmp.Or(e.filter, all.filter)
		switch {
		case len(o.events) == 1:
			e.frequency, e.period = cmp.Or(e.frequency, all.frequency), cmp.Or(e.period, all.period)
		case e.frequency == 0 && e.period == 0:
			if all.period != 0 {
				e.period = all.period
			} else if parsed, err := loader.ParseEvent(e.event); err == nil && parsed.HasDefaultFrequency() {
				e.frequency = all.frequency
			}
		}
	}
	o.eventOptions, o.also = o.events[0], o.events[1:]
	return nil
}

// eventNames are what the events are called, in order.
func (o *eventsOptions) eventNames() []string {
	var names []string
	for _, e := range o.allEvents() {
		names = append(names, e.event)
	}
	return names
}

// allEvents are the options of all events, in order.
func (o *eventsOptions) allEvents() []eventOptions {
	return append([]eventOptions{o.eventOptions}, o.also...)
}

// sampling looks up what is asked for, in the files of some processes.
func (o *eventOptions) sampling(pids []int) (m loader.Sampling, err error) {
	m.Frequency, m.Period = int(o.frequency), uint64(o.period)
	if m.Event, err = loader.ParseEventOf(o.event, pids); err != nil {
		return m, err
	}
	if m.Weight, err = loader.ParseWeight(m.Event, o.weight); err != nil {
		return m, err
	}
	m.Filter, err = loader.ParseFilter(m.Event, o.filter)
	return m, err
}

// sendsChanges reports whether samples are so frequent that only changes of stacks are sent.
func (o *eventOptions) sendsChanges(event loader.Event) bool {
	return o.frequency >= changesFrom || o.frequency == 0 && (o.period > 0 || !event.HasDefaultFrequency())
}

// eventValue is -e: each names one event or, as perf has it, several with commas between them.
type eventValue struct{ o *eventsOptions }

func (v eventValue) String() string { return "" }
func (v eventValue) Type() string   { return "event" }

func (v eventValue) Set(s string) error {
	names := splitEvents(s)
	if len(names) == 0 {
		return errors.New("no event is named")
	}
	for _, name := range names {
		if len(v.o.events) == loader.MaxEvents {
			return fmt.Errorf("a recording is of %d events at most", loader.MaxEvents)
		}
		v.o.events = append(v.o.events, eventOptions{event: name})
	}
	return nil
}

// splitEvents splits a list of events. Fields of a PMU, which are between slashes, have commas too, and
// so may names of files.
func splitEvents(s string) []string {
	source, _, _ := strings.Cut(s, ":")
	switch source {
	case "uprobe", "uretprobe", "usdt":
		return []string{s}
	}
	within := false
	return strings.FieldsFunc(s, func(r rune) bool {
		if r == '/' {
			within = !within
		}
		return r == ',' && !within
	})
}

// eventFlag is a flag about the latest event.
type eventFlag struct {
	o  *eventsOptions
	of func(*eventOptions) pflag.Value
}

func (v eventFlag) String() string     { return v.of(&eventOptions{}).String() }
func (v eventFlag) Type() string       { return v.of(&eventOptions{}).Type() }
func (v eventFlag) Set(s string) error { return v.of(v.o.latest()).Set(s) }

// textValue is a text as a flag's value.
type textValue string

func (v *textValue) String() string     { return string(*v) }
func (v *textValue) Set(s string) error { *v = textValue(s); return nil }
func (v *textValue) Type() string       { return "string" }
