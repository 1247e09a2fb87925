package loader

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// follower records what the side-band tells while a test runs programs.
type follower struct {
	t       *testing.T
	sb      *Sideband
	images  *procstate.Images
	procs   *Processes
	cancel  context.CancelFunc
	watched chan error
}

func follow(t *testing.T, pids ...int32) *follower {
	// Room for all that a test does, also when nobody comes to read it.
	return followWith(t, SidebandConfig{RingBytes: 4 << 20}, pids...)
}

func followWith(t *testing.T, cfg SidebandConfig, pids ...int32) *follower {
	t.Helper()
	sb, err := OpenSideband(cfg)
	if err != nil {
		if os.Geteuid() != 0 {
			testenv.Lacks(t, "the side-band needs root: %v", err)
		}
		t.Fatal(err)
	}
	f := &follower{t: t, sb: sb, images: procstate.NewImages(0), watched: make(chan error, 1)}
	f.procs = NewProcesses(ProcessesConfig{Sideband: sb, Images: f.images, PIDs: pids})
	if err := f.procs.Bootstrap(); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	go func() { f.watched <- f.procs.Watch(ctx) }()
	t.Cleanup(func() {
		f.cancel()
		if err := <-f.watched; err != nil {
			t.Error(err)
		}
		f.sb.Close()
		f.images.Close()
	})
	return f
}

// play applies all that was recorded until now, in order. last sees each process that
// has ended, after what was the last of it.
func (f *follower) play(last func(*Process)) {
	f.t.Helper()
	time.Sleep(5 * time.Millisecond)
	upTo := f.procs.Collect()
	queue, due := f.procs.due(upTo)
	events := make([]*SidebandEvent, len(due))
	for i, k := range due {
		events[i] = &queue[k.i]
	}
	lastOf, ended := make(map[int32]int), make(map[int32]bool)
	for i, e := range events {
		lastOf[e.PID] = i
		ended[e.PID] = ended[e.PID] || e.Kind == SidebandExit
	}
	for i, e := range events {
		f.procs.apply(e)
		if lastOf[e.PID] == i && ended[e.PID] && last != nil {
			if p := f.procs.Process(e.PID); p != nil {
				last(p)
			}
		}
	}
	f.procs.now = upTo
	if s := f.sb.Stats(); s.Lost != 0 || s.Malformed != 0 {
		f.t.Errorf("side-band: %+v", s)
	}
}

// playDumps applies all that was recorded and compares each process that
// printed its mappings, at its end, with what it printed. It returns how many
// there were.
func (f *follower) playDumps(dumps map[int32][]procstate.MapsEntry) (compared int) {
	f.t.Helper()
	f.play(func(p *Process) {
		if want, ok := dumps[p.PID]; ok {
			compareMappings(f.t, p, want)
			compared++
		}
	})
	return compared
}

// compareMappings checks that each executable mapping that a process has is
// in the table, whole, with the file behind it.
func compareMappings(t *testing.T, p *Process, want []procstate.MapsEntry) {
	t.Helper()
	for _, e := range want {
		if e.Path == "[vsyscall]" {
			continue
		}
		m := p.Space.MappingAt(e.Start)
		if m == nil {
			t.Errorf("process %d (%s): %s at %#x is not known", p.PID, p.Comm, e.Path, e.Start)
			continue
		}
		hasFile := procstate.HasFile(e.Path)
		if hasFile && (m.Start != e.Start || m.End != e.End || m.Offset != e.Offset || m.Path != e.Path) ||
			m.Start > e.Start || m.End < e.End {
			t.Errorf("process %d (%s): mapping %+v, want %+v", p.PID, p.Comm, *m, e)
		}
		if (hasFile || e.Path == "[vdso]") && m.Image == nil {
			t.Errorf("process %d (%s): %s: %v", p.PID, p.Comm, e.Path, m.ImageErr)
		}
		if hasFile && m.Image != nil && m.Image.ID.Inode != e.Inode && !sharesContents(m.Image, e) {
			t.Errorf("process %d (%s): %s: inode %d, want %d", p.PID, p.Comm, e.Path, m.Image.ID.Inode, e.Inode)
		}
	}
}

// sharesContents reports whether an Image made from another inode holds the
// bytes of the mapped file.
func sharesContents(im *procstate.Image, e procstate.MapsEntry) bool {
	b, err := os.ReadFile(e.Path)
	if err != nil || int64(len(b)) != im.Size() {
		return false
	}
	have := make([]byte, len(b))
	_, err = im.ReadAt(have, 0)
	return err == nil && bytes.Equal(b, have)
}

// parseDump reads what a victim printed: its number and its mappings.
func parseDump(t *testing.T, out []byte) (pid int32, entries []procstate.MapsEntry) {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(out))
	for sc.Scan() {
		if n, ok := strings.CutPrefix(sc.Text(), "pid "); ok {
			v, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			pid, entries = int32(v), nil
			continue
		}
		if sc.Text() == "end" {
			continue
		}
		e, err := procstate.ParseMapsLine(sc.Bytes())
		if err != nil {
			t.Fatalf("victim printed: %v\n%s", err, out)
		}
		if e.Prot&procstate.ProtExec != 0 {
			entries = append(entries, e)
		}
	}
	if pid == 0 || len(entries) == 0 {
		t.Fatalf("victim printed no mappings: %q", out)
	}
	return pid, entries
}

// buildVictim compiles testdata/victim.c. Its contents are no other file's: the
// side-band tells of the victims of other tests that run on the machine, too, and
// files of the same contents share an Image.
func buildVictim(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "victim")
	testenv.Needs(t, "cc")
	own := fmt.Sprintf("-Wl,--build-id=0x%016x", rand.Uint64())
	args := append([]string{"-O1", "-o", out, "testdata/victim.c", own}, flags...)
	testenv.Run(t, exec.Command("cc", append(args, "-ldl", "-lpthread")...))
	return out
}

// uniqueVictim is the victim under a name that no other process has.
func uniqueVictim(t *testing.T) (path, name string) {
	t.Helper()
	victim := buildVictim(t)
	name = "victim" + strconv.Itoa(os.Getpid())
	path = filepath.Join(filepath.Dir(victim), name)
	if err := os.Rename(victim, path); err != nil {
		t.Fatal(err)
	}
	return path, name
}

// run runs a program that prints its mappings.
func run(t *testing.T, name string, args ...string) (pid int32, entries []procstate.MapsEntry) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return parseDump(t, out)
}

// waiting is a program that has printed its mappings and waits.
type waiting struct {
	pid     int32
	entries []procstate.MapsEntry
	stdin   io.Closer
	cmd     *exec.Cmd
}

// start runs a program until it waits for the end of its input.
func start(t *testing.T, name string, args ...string) *waiting {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	stdin, stdout := testenv.Start(t, cmd)
	w := &waiting{stdin: stdin, cmd: cmd}
	var out []byte
	buf := make([]byte, 64<<10)
	for !bytes.Contains(out, []byte("\nend\n")) {
		n, err := stdout.Read(buf)
		out = append(out, buf[:n]...)
		if err != nil {
			break
		}
	}
	w.pid, w.entries = parseDump(t, out)
	return w
}

func (w *waiting) stop() {
	w.stdin.Close()
	w.cmd.Wait()
}
