package oracle

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
)

// limits are what a configuration must reach in every short case of a table:
// percent of instructions exact, at least, and wrong, at most.
type limits struct{ exact, wrong float64 }

// The processor's truth against the steppers, in the short form of the
// accuracy table: docs/ACCURACY.md has the long one, and why the figures that
// are not 100 are not.
func TestAccuracy(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the oracle knows x86-64 only")
	}
	want := map[string]limits{
		"all":         {100, 0},
		"debug":       {0, 0}, // what has no CFI is short
		"stripped":    {99.9, 0.02},
		"analysis":    {99.9, 0.02},
		"frame":       {99.9, 0},
		"debug+frame": {99.9, 0},
		"go":          {99.9, 0},
	}
	sources, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	cases := Cases()
	for i := range cases {
		c := &cases[i]
		if !c.Short {
			continue
		}
		t.Run(c.Table+"/"+c.Name, func(t *testing.T) {
			if !c.Available() {
				testenv.Lacks(t, "no %s", c.Needs)
			}
			t.Parallel()
			switch { // the long form judges more
			case testenv.Long():
			case c.Table == tableARM64, c.Table == tableFramesARM:
				c.Steps = 6000 // an emulator takes longer
			case c.Table == tableTold:
				c.Steps = 15000
			case c.Marked && c.Steps == 0:
				c.Steps = 18000 // of those that end by themselves
			default:
				c.Steps = min(c.Steps, 6000)
			}
			r, err := RunCase(c, sources+"/testdata", t.TempDir())
			var missing *loader.MissingError
			if len(c.Probes) > 0 && errors.As(err, &missing) {
				testenv.Lacks(t, "%v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Steps-r.Unjudged < 100 || r.BadSeeds > 0 {
				t.Fatalf("%d instructions, %d unjudged, %d not seeded", r.Steps, r.Unjudged, r.BadSeeds)
			}
			for i := range r.Results {
				res := &r.Results[i]
				l, ok := want[res.Config]
				if !ok {
					t.Errorf("no limits of %s", res.Config)
				}
				n := float64(res.Checked())
				if n < 1000 {
					l.exact = min(l.exact, 98) // a few instructions of a thread's start weigh much
				}
				if c.Table == tableARM64 {
					l.exact = min(l.exact, 99.7) // longjmp has no copy of its return address
				}
				if exact := 100 * float64(res.Count[Exact]) / n; exact < l.exact {
					t.Errorf("%s: %.3f %% exact of %.0f, want %v", res.Config, exact, n, l.exact)
				}
				if wrong := 100 * float64(res.Count[Wrong]) / n; wrong > l.wrong {
					t.Errorf("%s: %.3f %% wrong of %.0f, want at most %v", res.Config, wrong, n, l.wrong)
				}
			}
			if t.Failed() {
				r.Print(testWriter{t}, 2)
			}
		})
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) { w.t.Logf("%s", b); return len(b), nil }
