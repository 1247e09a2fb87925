package oracle

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Class is how a walk compares with the truth.
type Class uint8

// The classes.
const (
	Exact Class = iota // every frame, and the bottom
	Short              // right as far as it goes, and not called complete
	Wrong              // a frame or a bottom that is none
	LetGo              // right up to a bottom where Go's scheduler may have let its caller go
	Moved              // right, with the frames of a stack that was left where that has been moved to

	numClasses
)

func (c Class) String() string {
	return [...]string{"exact", "short", "wrong", "let go", "moved"}[c%numClasses]
}

// Report is the outcome of a run.
type Report struct {
	Program  string
	Steps    int // instructions executed under judgement
	Unjudged int // of them, those where no chain is the truth
	Windows  int // that were opened
	BadSeeds int // windows that could not be seeded, or wrongly were
	Elapsed  time.Duration
	Results  []Result
}

// Result is the outcome for one configuration.
type Result struct {
	Config string
	Count  [numClasses]int // by Class
	Sites  []*Site

	FixtureError error // why a fixture could not be written
}

// Checked returns how many walks were judged. Those that end where a function
// changed stacks are not among them: whether the frames that it came from are
// still its callers, its own books tell, not the processor.
func (r *Result) Checked() int { return r.Count[Exact] + r.Count[Short] + r.Count[Wrong] }

// Site is a place in code at which walks go astray: the frame that could not
// be left in the right way.
type Site struct {
	Class  Class
	Module string
	Vaddr  uint64 // link-time address by which the frame is looked up
	Count  int
	First  string // the first instance, in full
}

// Print writes the report: a line for each configuration, and up to sites
// places of each class with the first instance of each.
func (r *Report) Print(w io.Writer, sites int) {
	fmt.Fprintf(w, "%s: %d instructions in %.1f s, %d unjudged", r.Program, r.Steps, r.Elapsed.Seconds(), r.Unjudged)
	if r.Windows > 0 {
		fmt.Fprintf(w, ", %d windows, %d not seeded", r.Windows, r.BadSeeds)
	}
	fmt.Fprintln(w)
	for i := range r.Results {
		s := &r.Results[i]
		n := float64(max(s.Checked(), 1))
		fmt.Fprintf(w, "  %-20s %9d checked  %8.4f %% exact  %8.4f %% short  %8.4f %% wrong\n", s.Config, s.Checked(),
			100*float64(s.Count[Exact])/n, 100*float64(s.Count[Short])/n, 100*float64(s.Count[Wrong])/n)
		if s.FixtureError != nil {
			fmt.Fprintf(w, "    a fixture is missing: %v\n", s.FixtureError)
		}
		if s.Count[LetGo] > 0 {
			fmt.Fprintf(w, "    %d more end where a function changed stacks\n", s.Count[LetGo])
		}
		if s.Count[Moved] > 0 {
			fmt.Fprintf(w, "    %d more have frames of a stack that was left where it has been moved to\n", s.Count[Moved])
		}
		slices.SortFunc(s.Sites, func(a, b *Site) int {
			if a.Class != b.Class {
				return int(b.Class) - int(a.Class)
			}
			return b.Count - a.Count
		})
		shown := [numClasses]int{}
		for _, site := range s.Sites {
			if shown[site.Class]++; shown[site.Class] > sites {
				continue
			}
			fmt.Fprintf(w, "    %s %d times at %s+%#x\n", site.Class, site.Count, site.Module, site.Vaddr)
			fmt.Fprintf(w, "      %s\n", strings.ReplaceAll(strings.TrimRight(site.First, "\n"), "\n", "\n      "))
		}
	}
}
