package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// TestWalkJavaThreads compares what walk says that threads of Java do and wait for with what Java says.
func TestWalkJavaThreads(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("Java is known on amd64 alone")
	}
	testenv.EachJava(t, func(t *testing.T, java testenv.Program) {
		classes := testenv.CompileJava(t, java, walkSource("Locks.java"))
		for name, flags := range map[string][]string{
			"default": nil,
			"wide":    {"-XX:+UseSerialGC", "-XX:-UseCompressedOops", "-Xint"},
			"compact": {"-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UseCompactObjectHeaders"}, // of JDK 25, which has monitors in a table then
			// Of JDK 21 to 25, which keep locks otherwise by default.
			"light": {"-XX:+IgnoreUnrecognizedVMOptions", "-XX:+UnlockExperimentalVMOptions", "-XX:LockingMode=2", "-XX:+UseParallelGC"},
		} {
			if name != "default" && !strings.Contains(java.Path, "-25-") && !testenv.Long() {
				continue // differs little
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				command := java.Command(slices.Concat(flags, []string{"-Djdk.virtualThreadScheduler.parallelism=8", "-cp", classes, "Locks", "500"})...)
				cmd := exec.Command(command[0], command[1:]...)
				_, stdout := testenv.Start(t, cmd)
				said := readJavaThreads(t, bufio.NewReader(stdout))
				pid := strconv.Itoa(cmd.Process.Pid)
				for _, flag := range []string{"--symbols=yes", "--args"} { // which reads it while it stands
					out, stderr, code := runWalk(t, "--json", flag, pid)
					var p jsonProcess
					if err := json.Unmarshal([]byte(out), &p); code != exitOK || err != nil {
						t.Fatalf("%s: exit %d, %v: %s", flag, code, err, stderr)
					}
					said.check(t, &p)
				}
				text, _, _ := runWalk(t, pid)
				const (
					holds = `  thread \d+ "holds monitor of-a-long-name" \[blocked for int\[\], which thread \d+ has\]\n`
					wants = `  thread \d+ "wants monitor" \[blocked for java\.lang\.Object, which thread \d+ has\]\n`
				)
				for _, want := range []string{
					"\\n\\ndeadlock of 2 threads:\\n(?:" + holds + wants + "|" + wants + holds + ")\\n", // in order of their numbers, which may begin anew
					`\nthread \d+ "wants class" sleeping in futex\(\w+\) \[blocked for Locks\.class, which thread \d+ has\]: complete\n`,
					`\nthread \d+ "joins" sleeping in futex\(\w+\) \[waiting for java\.lang\.Thread, which is thread \d+\]: complete\n`,
					`\nthread \d+ "sleeps" sleeping in futex\(\w+\) \[sleeping\]: complete\n`,
					`\nthread \d+ "busy" running: complete\n`,
				} {
					if !regexp.MustCompile(want).MatchString(text) {
						t.Errorf("no %s in\n%s", want, text)
					}
				}
				watch := exec.Command(swbpf(t), "walk", "--watch", "100ms", pid)
				_, lines := testenv.Start(t, watch)
				want := regexp.MustCompile(`^ +1 x sleeping   wants class in futex\(\w+\) \[blocked for Locks\.class, which thread \d+ has\]: `)
				scan := bufio.NewScanner(lines)
				for n := 0; ; n++ {
					if n == 1000 || !scan.Scan() {
						t.Fatalf("--watch: no %s", want)
					}
					if want.MatchString(scan.Text()) {
						break
					}
				}
			})
		}
	})
}

// javaThreads are what Locks.java says of its threads.
type javaThreads struct {
	threads    map[int64]javaThreadSaid
	deadlocked []int64
	virtual    [][2]int64 // the IDs of such as are in a deadlock
	classes    []string   // for which the first of these waits
	owners     map[string]int64
}

type javaThreadSaid struct {
	name, state, blocker string
	owner                int64 // -1: none
}

func readJavaThreads(t *testing.T, out *bufio.Reader) *javaThreads {
	t.Helper()
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	said := &javaThreads{threads: map[int64]javaThreadSaid{}, owners: map[string]int64{}}
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch f := strings.Split(strings.TrimSpace(line), "|"); f[0] {
		case "thread":
			said.threads[number(f[1])] = javaThreadSaid{f[2], f[3], f[4], number(f[5])}
		case "virtual":
			said.virtual = append(said.virtual, [2]int64{number(f[1]), number(f[2])})
			said.classes = append(said.classes, f[3])
		case "owner":
			said.owners[f[1]] = number(f[2])
		case "deadlocked":
			for _, id := range f[1:] {
				said.deadlocked = append(said.deadlocked, number(id))
			}
		case "done":
			return said
		}
	}
}

// check compares a walk with what Java says.
func (said *javaThreads) check(t *testing.T, p *jsonProcess) {
	t.Helper()
	ids, tids := map[int32]int64{}, map[string]int32{}
	for _, th := range p.Threads {
		if th.Java != nil {
			ids[th.TID], tids[th.Name] = th.Java.ID, th.TID
		}
	}
	seen := 0
	for _, th := range p.Threads {
		if th.Java == nil {
			continue
		}
		want, ok := said.threads[th.Java.ID]
		if !ok {
			continue // the compiler's
		}
		seen++
		got := *th.Java
		state := "RUNNABLE"
		switch {
		case got.State == "sleeping" || strings.HasPrefix(got.State, "timed "):
			state = "TIMED_WAITING"
		case got.State == "waiting" || got.State == "parked":
			state = "WAITING"
		case got.State == "blocked":
			state = "BLOCKED"
		}
		owner, blocker := cmpOwner(got.Owner), got.Blocker
		if blocker == "Locks.class" {
			blocker = "java.lang.Class"
		}
		switch want.name { // what Java's own account does not have
		case "gets future":
			want.owner = ids[tids["runs future"]]
		case "joins":
			want.owner = ids[tids["busy"]]
		}
		if id, ok := said.owners[want.name]; ok {
			want.owner, want.blocker, want.state = id, "java.lang.Object", "BLOCKED"
		}
		if want.blocker == "[I" {
			want.blocker = "int[]"
		}
		if strings.Contains(want.name, "-worker-") || want.name == "main" || strings.HasPrefix(want.name, "VirtualThread-") {
			continue // they have gone on
		}
		if th.Name != want.name || state != want.state || blocker != want.blocker || owner != want.owner || got.OwnerTID != 0 && ids[got.OwnerTID] != got.Owner ||
			(got.OwnerTID == 0) != (got.Owner == 0) && said.owners[want.name] == 0 || got.Joins != (want.name == "joins") {
			t.Errorf("%q: %+v, by Java %+v", th.Name, got, want)
		}
	}
	if seen != len(said.threads) {
		t.Errorf("%d of %d threads", seen, len(said.threads))
	}
	var deadlocked []int64
	var virtual [][2]int64
	for _, d := range p.Deadlocks {
		for _, one := range d {
			if one.TID != 0 {
				deadlocked = append(deadlocked, ids[one.TID])
			}
		}
		if len(d) == 2 && d[0].Virtual != 0 {
			virtual = append(virtual, [2]int64{min(d[0].Virtual, d[1].Virtual), max(d[0].Virtual, d[1].Virtual)})
		}
	}
	// JDK 8 has those that lead to one, too, and 21 carriers of those that are in one.
	all := slices.Clone(said.deadlocked)
	said.deadlocked = slices.DeleteFunc(said.deadlocked, func(id int64) bool {
		return strings.Contains(said.threads[id].name, "-worker-") || !slices.ContainsFunc(all, func(other int64) bool { return said.threads[other].owner == id })
	})
	slices.Sort(deadlocked)
	slices.Sort(said.deadlocked)
	slices.SortFunc(virtual, func(a, b [2]int64) int { return int(a[0] - b[0]) })
	if !slices.Equal(deadlocked, said.deadlocked) || !slices.Equal(virtual, said.virtual) {
		t.Errorf("deadlocks %v and %v, by Java %v and %v", deadlocked, virtual, said.deadlocked, said.virtual)
	}
	for i, pair := range said.virtual {
		if !slices.ContainsFunc(p.VirtualThreads, func(v jsonVirtualThreads) bool {
			return slices.Contains(v.IDs, uint64(pair[0])) && v.Blocker == said.classes[i] && v.Owner == pair[1]
		}) && !slices.ContainsFunc(p.Threads, func(th jsonThread) bool { // on its carrier
			return th.Virtual == pair[0] && th.Java.Blocker == said.classes[i] && th.Java.Owner == pair[1]
		}) {
			t.Errorf("virtual thread %d does not wait for %s of %d: %s", pair[0], said.classes[i], pair[1], fmt.Sprint(p.VirtualThreads))
		}
	}
}

// cmpOwner is an owner as Java writes it.
func cmpOwner(id int64) int64 {
	if id == 0 {
		return -1
	}
	return id
}
