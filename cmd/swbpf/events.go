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
// comes before the first one is for all; where there is one event, the order of flags does not matter.
type eventsOptions struct {
	eventOptions                // that comes before the first -e; from settle on, of the first event
	groups       []eventGroup   // by -e
	also         []eventOptions // from settle on: of further events
}

// eventGroup is a -e, and the flags behind it.
type eventGroup struct {
	eventOptions
	names []string
}

// latest returns what a flag that comes next is about.
func (o *eventsOptions) latest() *eventOptions {
	if n := len(o.groups); n > 0 {
		return &o.groups[n-1].eventOptions
	}
	return &o.eventOptions
}

// settle gives each event its flags, when all have been read.
func (o *eventsOptions) settle() error {
	if len(o.groups) == 0 {
		return nil
	}
	all, g := o.eventOptions, &o.groups[0]
	if len(o.groups) == 1 && len(g.names) == 1 {
		o.eventOptions = eventOptions{
			g.names[0], cmp.Or(g.weight, all.weight), cmp.Or(g.filter, all.filter), cmp.Or(g.frequency, all.frequency), cmp.Or(g.period, all.period),
		}
		return nil
	}
	if err := all.mayBeShared(); err != nil {
		return err
	}
	var events []eventOptions
	for _, g := range o.groups {
		if len(g.names) == 1 {
			e := g.eventOptions
			e.event = g.names[0]
			e.share(&all)
			events = append(events, e)
			continue
		}
		if err := g.mayBeShared(); err != nil {
			return err
		}
		for _, name := range g.names {
			e := eventOptions{event: name}
			e.share(&g.eventOptions)
			e.share(&all)
			events = append(events, e)
		}
	}
	for _, e := range events {
		if e.frequency != 0 && e.period != 0 {
			return errFrequencyAndPeriod
		}
	}
	o.eventOptions, o.also = events[0], events[1:]
	return nil
}

var errFrequencyAndPeriod = errors.New("-F and -c exclude each other")

// mayBeShared reports flags that are for one event, of which there are several.
func (o *eventOptions) mayBeShared() error {
	flag := ""
	switch {
	case o.frequency != 0 && o.period != 0:
		return errFrequencyAndPeriod
	case o.weight != "":
		flag = "--weight"
	case o.filter != "":
		flag = "--filter"
	default:
		return nil
	}
	return fmt.Errorf("%s is for one event, and there are several: give it after an -e of its own", flag)
}

// share gives an event that has neither -F nor -c what there is for several: -F is for those that are
// sampled by frequency anyway.
func (o *eventOptions) share(of *eventOptions) {
	switch {
	case o.frequency != 0 || o.period != 0:
	case of.period != 0:
		o.period = of.period
	case of.frequency != 0:
		if e, err := loader.ParseEvent(o.event); err == nil && e.HasDefaultFrequency() {
			o.frequency = of.frequency
		}
	}
}

// eventNames are what the events are called, in order.
func (o *eventsOptions) eventNames() []string {
	if o.event == loader.Heap.Name {
		return heapEvents[:]
	}
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
	v.o.groups = append(v.o.groups, eventGroup{names: names})
	n := 0
	for _, g := range v.o.groups {
		n += len(g.names)
	}
	if n > loader.MaxEvents {
		return fmt.Errorf("a recording is of %d events at most", loader.MaxEvents)
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
