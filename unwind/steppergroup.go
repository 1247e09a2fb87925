package unwind

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

// StepperGroup picks the stepper for a frame by the frame's address. A caller may bring one
// of its own, as by embedding an AddressRangeGroup and replacing StepperFor; then WalkPCs asks the
// steppers for each frame, and keeps no rules. It need not be right: walks end, and their frames
// are as right as the steppers that it has named.
type StepperGroup interface {
	// AddStepper registers a stepper, which must be neither nil nor a nil pointer,
	// for all addresses, or for those that it chooses itself: see GroupMember, whose
	// JoinGroup it calls.
	AddStepper(s FrameStepper) error

	// AddStepperRange registers a stepper for the run-time addresses
	// [start, end). A stepper may have many ranges.
	AddStepperRange(s FrameStepper, start, end uint64) error

	// StepperFor returns the stepper to try for an address: the first in
	// order of priority when lastTried is nil, else the one after lastTried. Without one,
	// false or nil, there are no more; a frame is shown to no more than 256 of them.
	StepperFor(addr uint64, lastTried FrameStepper) (FrameStepper, bool)

	// Steppers returns all steppers, in the order of their StepperIDs. Of those beyond 255,
	// and of one that is not among them, Walker.Stepper knows nothing.
	Steppers() []FrameStepper
}

// StackLeaver is implemented by a FrameStepper for code that leaves its stack for each of many calls, as OCaml's does to call C:
// what is on it later tells nothing of a call that was. What it had is known where a capture has copied it, and not read from
// a process that goes on.
type StackLeaver interface {
	// LeavesStack reports whether a frame, whose caller's stack was not captured, has called so.
	LeavesStack(w *Walker, in *Frame) bool
}

// ImageForgetter is implemented by a FrameStepper that keeps what it knows of files.
type ImageForgetter interface {
	// ForgetImages lets go of what is known of files, but for those whose
	// Image.Index is kept.
	ForgetImages(isKept func(index uint32) bool)
}

// ForgetImages has all steppers of the group let go of what they know of files, but for
// those whose Image.Index is kept: of a file that comes again they learn it again.
func (g *AddressRangeGroup) ForgetImages(isKept func(index uint32) bool) {
	for _, s := range g.steppers {
		if f, ok := s.(ImageForgetter); ok {
			f.ForgetImages(isKept)
		}
	}
}

// ErrNoStepper is returned for a stepper that is nil.
var ErrNoStepper = errors.New("the stepper to add to a group is nil")

// maxSteppers is how many a StepperID can tell apart.
const maxSteppers = 255

// ErrStepperLimit is returned for more steppers than a StepperID can tell.
var ErrStepperLimit = errors.New("too many steppers in a group")

// AddressRangeGroup is the default StepperGroup: address ranges with steppers
// in order of priority.
type AddressRangeGroup struct {
	steppers []FrameStepper // by ID-1
	all      []member       // registered for every address, by priority
	ranges   []memberRange  // sorted by start, not overlapping
	ruled    *ruledFrames   // by the steppers in all; nil before the first walk that uses them
}

type member struct {
	stepper FrameStepper
	id      StepperID
}

// memberRange holds all that apply to [start, end), those of every address
// included, by priority.
type memberRange struct {
	start, end uint64
	members    []member
}

// NewGroup makes an AddressRangeGroup of steppers that cover all addresses.
// It panics on more than 255 of them, or one that is nil, a programmer's error.
func NewGroup(steppers ...FrameStepper) *AddressRangeGroup {
	g := &AddressRangeGroup{}
	for _, s := range steppers {
		if err := g.AddStepper(s); err != nil {
			panic(err)
		}
	}
	return g
}

// AddStepper implements StepperGroup. Adding a stepper twice is harmless.
func (g *AddressRangeGroup) AddStepper(s FrameStepper) error {
	m, isNew, err := g.enrol(s)
	if err != nil {
		return err
	}
	if j, ok := s.(GroupMember); ok && isNew {
		j.JoinGroup(g)
		if slices.ContainsFunc(g.ranges, func(r memberRange) bool { return slices.Contains(r.members, m) }) {
			return nil // it has chosen
		}
	}
	g.all = insertMember(g.all, m)
	g.ruled = nil
	for i := range g.ranges {
		g.ranges[i].members = insertMember(g.ranges[i].members, m)
	}
	return nil
}

// AddStepperRange implements StepperGroup.
func (g *AddressRangeGroup) AddStepperRange(s FrameStepper, start, end uint64) error {
	if !isNil(s) && end <= start {
		return fmt.Errorf("stepper %s: empty address range [%#x, %#x)", s.Name(), start, end)
	}
	m, isNew, err := g.enrol(s)
	if err != nil {
		return err
	}
	g.split(start)
	g.split(end)
	// Every existing range now lies inside or outside [start, end); the gaps
	// inside get a range of their own.
	i := sort.Search(len(g.ranges), func(i int) bool { return g.ranges[i].end > start })
	for at := start; at < end; i++ {
		next := end
		if i < len(g.ranges) {
			next = min(end, g.ranges[i].start)
		}
		if at < next {
			g.ranges = slices.Insert(g.ranges, i, memberRange{at, next, insertMember(slices.Clone(g.all), m)})
		} else {
			g.ranges[i].members = insertMember(g.ranges[i].members, m)
		}
		at = g.ranges[i].end
	}
	if j, ok := s.(GroupMember); ok && isNew {
		j.JoinGroup(g)
	}
	return nil
}

// split makes addr a border between ranges when it lies inside one.
func (g *AddressRangeGroup) split(addr uint64) {
	i := g.rangeIndex(addr)
	if i < 0 || g.ranges[i].start == addr {
		return
	}
	high := g.ranges[i]
	high.start, high.members = addr, slices.Clone(high.members)
	g.ranges[i].end = addr
	g.ranges = slices.Insert(g.ranges, i+1, high)
}

// rangeIndex returns the index of the range that holds addr, or -1.
func (g *AddressRangeGroup) rangeIndex(addr uint64) int {
	i := sort.Search(len(g.ranges), func(i int) bool { return g.ranges[i].end > addr })
	if i < len(g.ranges) && g.ranges[i].start <= addr {
		return i
	}
	return -1
}

// isNil reports whether there is no stepper: nil, or a nil pointer.
func isNil(s FrameStepper) bool {
	v := reflect.ValueOf(s)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

func (g *AddressRangeGroup) enrol(s FrameStepper) (m member, isNew bool, err error) {
	if isNil(s) {
		return member{}, false, ErrNoStepper
	}
	if !reflect.ValueOf(s).Comparable() {
		return member{}, false, fmt.Errorf("stepper %s: a %T cannot be told from another one: see FrameStepper", s.Name(), s)
	}
	if i := slices.Index(g.steppers, s); i >= 0 {
		return member{s, StepperID(i + 1)}, false, nil
	}
	if len(g.steppers) >= maxSteppers {
		return member{}, false, ErrStepperLimit
	}
	g.steppers = append(g.steppers, s)
	return member{s, StepperID(len(g.steppers))}, true, nil
}

// insertMember adds m after all members of the same or a higher priority, in a list of its own: a walk may be going
// through ms.
func insertMember(ms []member, m member) []member {
	p := m.stepper.Priority()
	at := len(ms)
	for i, o := range ms {
		if o.id == m.id {
			return ms
		}
		if at == len(ms) && o.stepper.Priority() > p {
			at = i
		}
	}
	return slices.Insert(ms[:len(ms):len(ms)], at, m)
}

// members returns the steppers for an address, in order.
func (g *AddressRangeGroup) members(addr uint64) []member {
	if len(g.ranges) > 0 {
		if i := g.rangeIndex(addr); i >= 0 {
			return g.ranges[i].members
		}
	}
	return g.all
}

// StepperFor implements StepperGroup.
func (g *AddressRangeGroup) StepperFor(addr uint64, lastTried FrameStepper) (FrameStepper, bool) {
	ms := g.members(addr)
	if lastTried == nil {
		if len(ms) == 0 {
			return nil, false
		}
		return ms[0].stepper, true
	}
	for i, m := range ms {
		if m.stepper == lastTried {
			if i+1 < len(ms) {
				return ms[i+1].stepper, true
			}
			break
		}
	}
	return nil, false
}

// Steppers implements StepperGroup.
func (g *AddressRangeGroup) Steppers() []FrameStepper { return g.steppers }

// LibraryChanged implements LibraryListener: it tells all its steppers.
func (g *AddressRangeGroup) LibraryChanged(w *Walker, lib procstate.Library, change LibraryChange) {
	for _, s := range g.steppers {
		if l, ok := s.(LibraryListener); ok {
			l.LibraryChanged(w, lib, change)
		}
	}
}
