package swbpf_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// TestPostgres compares what functions a server runs with what it says itself.
func TestPostgres(t *testing.T) {
	amd64Only(t)
	canTrace(t)
	testenv.EachPostgres(t, func(t *testing.T, server testenv.Postgres) {
		command := server.Command(filepath.Join("testdata", "walk", "waits.sql"))
		cmd := exec.Command(command[0], command[1:]...)
		out, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		pid := cmd.Process.Pid
		var want []string
		for lines := bufio.NewScanner(out); want == nil && lines.Scan(); {
			if _, calls, ok := strings.Cut(lines.Text(), "LOG:  calls: "); ok {
				want = postgresCalls(calls)
			} else {
				fmt.Fprintln(os.Stderr, lines.Text())
			}
		}
		if len(want) != 6 {
			t.Fatalf("it says %q", want)
		}
		eventually(t, "it waits", func() bool {
			infos, err := procstate.ProcessThreads(pid)
			return err == nil && len(infos) == 1 && infos[0].State == procstate.StateSleeping
		})
		for name, walk := range map[string]func() (*swbpf.ProcessStacks, error){
			"a copy":  func() (*swbpf.ProcessStacks, error) { return swbpf.WalkProcess(pid, swbpf.WalkOptions{}) },
			"stopped": func() (*swbpf.ProcessStacks, error) { return swbpf.WalkStopped(pid, swbpf.WalkOptions{}, nil) },
		} {
			const does = "do $$ begin insert into places values (''); end $$;" // the last statement of waits.sql
			if ps, err := walk(); err != nil {
				t.Error(err)
			} else if work := ps.Stacks[0].Work; work == nil || len(work.Attributes) != 1 || work.Attributes[0] != (procstate.ContextAttribute{Key: "db.query.text", Value: does}) {
				t.Errorf("%s: it works on %+v", name, work)
			}
		}
		threads := map[procstate.ThreadID][]string{procstate.ThreadID(pid): want}
		walkBothWays(t, pid, threads, func(w *unwind.Walker, _ procstate.ThreadID, frames []unwind.Frame) {
			t.Helper()
			var got []string
			for i := range frames {
				for _, l := range w.Codes().Lines(frames[i].Code) {
					call := l.Name + l.Parameters
					if l.Line > 0 {
						call += fmt.Sprintf(" line %d", l.Line)
					}
					got = append(got, call)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("calls\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	})
}

// postgresCalls takes apart what waits.sql says of its calls, innermost first: that waits two lines behind the
// statement which says so.
func postgresCalls(context string) (calls []string) {
	inPlpgsql := regexp.MustCompile(`^PL/pgSQL function (.*) line (\d+) at `)
	inSQL := regexp.MustCompile(`^SQL function "(.*)" statement \d+$`)
	for line := range strings.SplitSeq(context, "; ") {
		if m := inPlpgsql.FindStringSubmatch(line); m != nil {
			n := m[2]
			if len(calls) == 0 {
				var says int
				fmt.Sscan(n, &says)
				n = fmt.Sprint(says + 2)
			}
			calls = append(calls, m[1]+" line "+n)
		} else if m := inSQL.FindStringSubmatch(line); m != nil {
			calls = append(calls, m[1])
		}
	}
	return calls
}
