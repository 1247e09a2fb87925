package profile

import "time"

// Meta says how a profile came to be. The formats show it to whoever opens
// them, so it must hold nothing that is not meant to be shared: no host name,
// no environment, no secrets from command lines.
type Meta struct {
	Tool   string // what recorded: "swbpf 0.1.0"
	Target string // what was sampled: "whole machine", "pid 1234", "redis-server"
	Event  string // perf's name of the event: "cpu-clock", "sched:sched_switch"

	// FrequencyHz is the wanted number of samples per second of each CPU;
	// 0 when samples are taken every Period events instead.
	FrequencyHz int

	// Counted is what the first number of a sample counts, in the plural:
	// "objects", "contentions". When it is empty, samples.
	Counted string

	// Value names the second number of a sample, beside the count of
	// samples: {"cpu", "nanoseconds"}, {"page-faults", "count"}. When its
	// Type is empty, samples are only counted.
	Value ValueType
	// Period is how much of Value one sample stands for; 0 when that is not
	// known or differs from sample to sample.
	Period int64
	// Wall says that Value is time both on and off the CPU; the label "state" is
	// "running" for the former. Formats with several values to a sample have
	// both besides: "cpu" and "off-cpu".
	Wall bool
	// ByValue says that the width of a stack is its Value and not its number
	// of samples, which is right when samples stand for different amounts.
	ByValue bool

	// Also are further events of the recording, which Thread.Event numbers from 1 on; what is
	// above is of the first. A Profile then holds the samples of all: see Profile.Events.
	Also []Event `json:",omitempty"`

	Start    time.Time     // of the recording
	Clock    int64         // what Builder.SetTime's clock showed at Start
	Duration time.Duration // of the recording
	CPUs     int           // that were sampled; 0 when not known
	Kernel   string        // release and machine of the kernel: "6.12.3 x86_64"; may be empty

	Lost  []Tally           // events that left no sample, by reason
	Help  map[string]string // a line of explanation for the reasons of Lost and of truncated stacks
	Notes []string          // further facts for the details, a line each
}

// ValueType is a quantity and its unit, in pprof's words.
type ValueType struct{ Type, Unit string }

// Tally is how often something happened.
type Tally struct {
	Name string
	N    int64
}
