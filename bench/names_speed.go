package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// speedNamers are told to print names for people.
func speedNamers(b *builder) []namer {
	return []namer{
		{name: "swbpf", command: []string{b.run("namer", "go", "build", "-o", "OUT", "./bench/namer")}},
		{name: "llvm-symbolizer", command: []string{"llvm-symbolizer-19", "-f", "-i", "-e"}},
		{name: "eu-addr2line", command: []string{"eu-addr2line", "-a", "-f", "-i", "-C", "-e"}},
		{name: "addr2line", command: []string{"addr2line", "-a", "-f", "-i", "-C", "-e"}},
	}
}

// bigProgram is a program with 100 MB of debug information: many units of
// many small functions.
func (b *builder) bigProgram() string {
	const units, functions = 100, 1000
	out := filepath.Join(b.dir, "names-big")
	if _, err := os.Stat(out); b.err != nil || err == nil {
		return out
	}
	var src strings.Builder
	src.WriteString("static inline __attribute__((always_inline)) int in(int x, int y) { return x * y + 1; }\n")
	for i := range functions {
		fmt.Fprintf(&src, `struct s%[1]d { int a, b; struct s%[1]d *next; char name[%[1]d + 1]; enum { red%[1]d, green%[1]d } colour; };
__attribute__((noinline)) int f%[1]d(struct s%[1]d *p, int n)
{
	int sum = 0;
	for (int i = 0; i < n; i++) {
		struct s%[1]d *q = p->next;
		sum += in(q->a, i) - in(sum, q->name[i]);
		if (q->colour == green%[1]d)
			p = q;
	}
	return sum;
}
`, i)
	}
	source := filepath.Join(b.dir, "names-big.c")
	if b.err = os.WriteFile(source, []byte(src.String()), 0o644); b.err != nil {
		return out
	}
	// One object, linked again and again: each copy is a unit of its own.
	object := b.run("names-big.o", "gcc", "-g", "-O1", "-c", "-o", "OUT", source)
	link := []string{"gcc", "-o", "OUT", "-Wl,-z,muldefs", "-Wl,--defsym=main=f0"}
	for i := range units {
		name := filepath.Join(b.dir, fmt.Sprintf("names-big-%d.o", i))
		if err := os.Link(object, name); err != nil && b.err == nil {
			b.err = err
		}
		link = append(link, name)
	}
	return b.run("names-big", link...)
}

// firstNames is how many addresses the first name is asked for.
const firstNames = 11

// readFor returns the files that are read for names of a file: itself, its
// debug file, and what dwz moved common entries to.
func readFor(path string) ([]string, error) {
	files := []string{path}
	for {
		f, err := elf.Open(path)
		if err != nil {
			return nil, err
		}
		id := buildID(f)
		var common []byte
		if link := f.Section(".gnu_debugaltlink"); link != nil {
			common, err = link.Data()
		}
		f.Close()
		if err != nil {
			return nil, err
		}
		if name, _, _ := strings.Cut(string(common), "\x00"); name != "" {
			return append(files, filepath.Join(filepath.Dir(path), name)), nil
		}
		if len(files) > 1 || len(id) < 3 {
			return files, nil
		}
		path = "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug"
		if _, err := os.Stat(path); err != nil {
			return files, nil
		}
		files = append(files, path)
	}
}

// dropCache has the kernel forget the contents of files that nobody maps.
func dropCache(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = errors.Join(unix.Fsync(int(f.Fd())), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// nameSpeed measures the time and memory that names take, all programs in
// turns.
func nameSpeed(r *report, b *builder, c *config) error {
	programs := speedNamers(b)
	many := 10_000
	r.printf("\nTime from the start of the program to the name of one address, of %d addresses in turns, with the file and its debug files in the page cache, and without (cold); time for %d names, from the page cache; peak memory with these.\n\n", firstNames, many)
	r.header("file", "program", "first name, ms", "cold, ms", fmt.Sprintf("%d names, ms", many), "names a second after the first", "peak MB")
	for _, file := range []struct{ name, path string }{
		{"100 MB of debug information", b.bigProgram()},
		{"python3.11-dbg", "/usr/bin/python3.11-dbg"},
		{"libc.so.6 (dwz, compressed)", "/lib/x86_64-linux-gnu/libc.so.6"},
	} {
		if b.err != nil {
			return b.err
		}
		if _, err := os.Stat(file.path); err != nil {
			r.printf("\n%s is not here.\n\n", file.path)
			continue
		}
		addrs, err := randomCode(file.path, many)
		if err != nil {
			return err
		}
		files, err := readFor(file.path)
		if err != nil {
			return err
		}
		cells, err := timeNamers(programs, file.path, addrs, files, c.runs)
		if err != nil {
			return err
		}
		for i := range programs {
			cl := &cells[i]
			rate := "-"
			if len(cl.many) > 0 {
				rate = fmt.Sprintf("%.0f", float64(many-1)/(max(cl.many.median()-cl.first.median(), 0.001)/1e3))
			}
			r.row(file.name, programs[i].name, cl.first.cell("%.1f"), cl.cold.cell("%.1f"), cl.many.cell("%.0f"), rate, cl.rss.cell("%.0f"))
		}
	}
	r.printf("\n")
	return nil
}

// namerTimes are the times of a program, in ms, and its peak memory, in MB.
type namerTimes struct{ first, cold, many, rss series }

// timeNamers has each program name the first of some addresses of a file by themselves, from the
// page cache and without (files are what is read for it), and then all at once.
func timeNamers(programs []namer, path string, addrs []uint64, files []string, runs int) ([]namerTimes, error) {
	cells := make([]namerTimes, len(programs))
	for range runs {
		for j := range 2 * firstNames {
			for i := range programs {
				to := &cells[i].first
				if j >= firstNames {
					to = &cells[i].cold
					if err := dropCache(files); err != nil {
						return nil, err
					}
				}
				took, _, err := programs[i].time(path, addrs[j%firstNames:][:1])
				if err == nil { // else it cannot read this file
					to.add(took.Seconds() * 1e3)
				}
			}
		}
		for i := range programs {
			p, cl := &programs[i], &cells[i]
			if len(cl.first) == 0 {
				continue
			}
			took, rss, err := p.time(path, addrs)
			if err != nil {
				return nil, err
			}
			cl.many.add(took.Seconds() * 1e3)
			cl.rss.add(float64(rss) / (1 << 10))
		}
	}
	return cells, nil
}

// time runs the program; rss is its peak memory in KiB.
func (p *namer) time(file string, addrs []uint64) (took time.Duration, rss int64, err error) {
	cmd := exec.Command(p.command[0], append(p.command[1:len(p.command):len(p.command)], file)...)
	cmd.Stdin = strings.NewReader(hexLines(addrs))
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return time.Since(begin), cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss, nil
}
