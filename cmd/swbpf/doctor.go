package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/swbpf/swbpf/loader"
)

func newDoctorCommand() *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this kernel and these privileges allow",
		Long: `Doctor tries, one by one, what a recording uses: events are opened, programs
and maps made and given back, and at the end this process itself is recorded
for a moment. Each line is ok, limited or missing; what is not ok tells what
that costs, and what to do about it.

Run it as the user and in the container in which you want to record.

Exit status: 0 when recording works, 2 when it cannot; 1 when something went
wrong on the way.`,
		Example: `  swbpf doctor             what is missing here?
  sudo swbpf doctor        and what as root?
  swbpf doctor --json      for a bug report`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			d := examine()
			write := d.writeText
			if asJSON {
				write = d.writeJSON
			}
			if err := write(os.Stdout); err != nil {
				return err
			}
			if !d.Recording.Works {
				return withCode(exitCannot, nil)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	return c
}

// noArguments refuses what is no flag, for verbs that take nothing else.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return withCode(exitCannot, fmt.Errorf("unexpected argument %q", args[0]))
	}
	return nil
}

// diagnosis is all that doctor finds out.
type diagnosis struct {
	Version   string           `json:"version"`
	Go        string           `json:"go"`
	Arch      string           `json:"arch"`
	CPUs      int              `json:"cpus"`
	UID       int              `json:"uid"`
	Groups    []diagnosisGroup `json:"groups"`
	Recording diagnosisOutcome `json:"recording"`
}

type diagnosisGroup struct {
	Name     string           `json:"name"`
	Findings []loader.Finding `json:"findings"`
}

// diagnosisOutcome tells whether recording works, by having tried it.
type diagnosisOutcome struct {
	Works   bool   `json:"works"`
	Samples int    `json:"samples"`
	Error   string `json:"error,omitempty"`
}

func examine() *diagnosis {
	d := &diagnosis{
		Version: version(), Go: runtime.Version(), Arch: runtime.GOARCH, CPUs: loader.CPUs(), UID: os.Geteuid(),
		Groups: []diagnosisGroup{
			{"system", loader.ExamineSystem()},
			{"sampling", loader.ExamineSampling()},
			{"processes", examineProcesses()},
			{"names", examineNames()},
		},
	}
	n, err := loader.Rehearse()
	d.Recording = diagnosisOutcome{Works: err == nil, Samples: n}
	if err != nil {
		d.Recording.Error = err.Error()
	}
	return d
}

func (d *diagnosis) writeJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// doctorWidth is the width of a usual terminal, to which text is broken.
const doctorWidth = 79

func (d *diagnosis) writeText(w io.Writer) error {
	out := &errWriter{w: w}
	out.printf("swbpf %s, %s, %d CPUs, user %d\n", d.Version, d.Arch, d.CPUs, d.UID)
	for _, g := range d.Groups {
		out.printf("\n%s\n", g.Name)
		for _, f := range g.Findings {
			out.printf("  %-7s  %-21s", f.Level, f.Name)
			out.text(32, f.Found)
			if f.Without != "" {
				label := "without it: "
				if f.Level == loader.Limited {
					label = "so: "
				}
				out.printf("%11s", "")
				out.text(11, label+f.Without)
			}
			if f.Remedy != "" {
				out.printf("%11s", "")
				out.text(11, "remedy: "+f.Remedy)
			}
		}
	}
	if d.Recording.Works {
		out.printf("\nRecording works: this process was sampled %d times for a trial.\n", d.Recording.Samples)
	} else {
		out.printf("\nRecording does not work: ")
		out.text(0, d.Recording.Error)
	}
	return out.err
}
