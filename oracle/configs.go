package oracle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/steppers"
	"github.com/swbpf/swbpf/steppers/clr"
	"github.com/swbpf/swbpf/steppers/jsc"
	"github.com/swbpf/swbpf/steppers/pe"
	"github.com/swbpf/swbpf/steppers/pypy"
	"github.com/swbpf/swbpf/steppers/v8"
	"github.com/swbpf/swbpf/unwind"
)

// Config is a set of steppers to judge, and what is hidden from them.
type Config struct {
	Name     string
	Steppers []string // by name, see StepperNames
	Hide     []string // names of sections
}

// makers makes steppers by name.
var makers = map[string]func() unwind.FrameStepper{
	"bottom":        func() unwind.FrameStepper { return steppers.NewBottom() },
	"uretprobe":     func() unwind.FrameStepper { return steppers.NewDynamic(nil) },
	"signal":        func() unwind.FrameStepper { return steppers.NewSigHandler() },
	"debug":         func() unwind.FrameStepper { return steppers.NewDebug(unwind.NewTables()) },
	"jit":           func() unwind.FrameStepper { return steppers.NewJIT() },
	"analysis":      func() unwind.FrameStepper { return steppers.NewAnalysis() },
	"go":            func() unwind.FrameStepper { return steppers.NewGo() },
	"haskell":       func() unwind.FrameStepper { return steppers.NewHaskell() },
	"v8":            func() unwind.FrameStepper { return v8.New() },
	"jsc":           func() unwind.FrameStepper { return jsc.New() },
	"clr":           func() unwind.FrameStepper { return clr.New() },
	"pe":            func() unwind.FrameStepper { return pe.New() },
	"pypy":          func() unwind.FrameStepper { return pypy.New(unwind.NewTables()) },
	"wanderer":      func() unwind.FrameStepper { return steppers.NewWanderer(nil, nil) },
	"frame-pointer": func() unwind.FrameStepper { return steppers.NewFrameFunc(nil) },
}

// StepperNames returns the names of the steppers that can be judged.
func StepperNames() []string {
	names := make([]string, 0, len(makers))
	for n := range makers {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Configs are the configurations that have a name.
var Configs = []Config{
	{Name: "all", Steppers: []string{"bottom", "uretprobe", "signal", "go", "v8", "jsc", "pe", "pypy", "debug", "jit", "clr", "haskell", "frame-pointer", "analysis"}},
	{Name: "debug", Steppers: []string{"bottom", "uretprobe", "signal", "debug", "jit"}},
	{Name: "analysis", Steppers: []string{"bottom", "uretprobe", "signal", "analysis"},
		Hide: append(slices.Clone(UnwindSections), SymbolSections...)},
	{Name: "stripped", Steppers: []string{"bottom", "uretprobe", "signal", "analysis"},
		Hide: append(slices.Clone(UnwindSections), ".symtab", ".gnu_debugdata", ".gnu_debuglink")},
	{Name: "frame", Steppers: []string{"bottom", "uretprobe", "signal", "frame-pointer"},
		Hide: append(slices.Clone(UnwindSections), SymbolSections...)},
	{Name: "debug+frame", Steppers: []string{"bottom", "uretprobe", "signal", "debug", "frame-pointer"}},
	// Go's own CFI is in .debug_frame alone: so Debug is for C and the vdso.
	{Name: "go", Steppers: []string{"bottom", "uretprobe", "signal", "go", "debug"}, Hide: []string{".debug_frame", ".zdebug_frame"}},
	{Name: "wanderer", Steppers: []string{"bottom", "uretprobe", "signal", "wanderer"},
		Hide: append(slices.Clone(UnwindSections), SymbolSections...)},
	{Name: "analysis+wanderer", Steppers: []string{"bottom", "uretprobe", "signal", "analysis", "wanderer"},
		Hide: append(slices.Clone(UnwindSections), SymbolSections...)},
	{Name: "debug+wanderer", Steppers: []string{"bottom", "uretprobe", "signal", "debug", "wanderer"}},
	{Name: "analysis-symbols", Steppers: []string{"bottom", "uretprobe", "signal", "analysis"}, Hide: UnwindSections},
}

// ConfigByName returns a configuration that has a name, or makes one of
// stepper names joined by "+".
func ConfigByName(name string) (Config, error) {
	for _, c := range Configs {
		if c.Name == name {
			return c, nil
		}
	}
	c := Config{Name: name, Steppers: strings.Split(name, "+")}
	for _, s := range c.Steppers {
		if makers[s] == nil {
			return c, fmt.Errorf("no stepper %q: there are %s", s, strings.Join(StepperNames(), ", "))
		}
	}
	return c, nil
}

// group makes a new group of the configuration's steppers.
func (c *Config) group() unwind.StepperGroup {
	g := unwind.NewGroup()
	for _, n := range c.Steppers {
		if err := g.AddStepper(makers[n]()); err != nil {
			panic(err) // a handful of steppers fit into any group
		}
	}
	return g
}
