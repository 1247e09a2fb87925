package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// verdict counts the user stacks of a program, as the text says them that a
// profiler ends with.
type verdict struct {
	stacks   int
	complete int // reach the function that a thread starts with
	correct  int // complete, and with the functions that are known to call each other
}

// judge decides about stacks by the names of their functions, in the same way
// for all profilers.
type judge struct {
	// chain is the function that calls itself, directly below main, links
	// times before it calls anything else. Empty where that is not known.
	chain string
	links int
}

// starts are the functions that threads start with, and those at which the Go
// runtime's own tracebacks end (its topofstack).
var starts = map[string]bool{
	"_start": true, "_dl_start_user": true, "clone": true, "__clone": true, "__clone3": true, "clone3": true,
	"__GI___clone": true, "__GI___clone3": true, "thread_start": true,
	"runtime.goexit": true, "runtime.goexit.abi0": true, "runtime.mstart": true, "runtime.mstart.abi0": true,
	"runtime.mcall": true, "runtime.mcall.abi0": true, "runtime.morestack": true, "runtime.morestack.abi0": true,
	"runtime.clone": true, "runtime.clone.abi0": true, "runtime.rt0_go": true, "runtime.rt0_go.abi0": true, "_rt0_amd64_linux": true, "_rt0_arm64_linux": true,
}

// add judges a stack of user functions, outermost first, that occurred n times.
func (v *verdict) add(j judge, frames []string, n int) {
	if len(frames) == 0 {
		return
	}
	v.stacks += n
	if !complete(frames) {
		return
	}
	v.complete += n
	if j.correct(frames) {
		v.correct += n
	}
}

// complete accepts a nameless function as _start when it calls
// __libc_start_main: that of a stripped program.
func complete(frames []string) bool {
	return starts[frames[0]] || len(frames) > 1 && strings.HasPrefix(frames[1], "__libc_start_main")
}

func (j judge) correct(frames []string) bool {
	at := -1
	for i, f := range frames {
		if f == "main" {
			at = i + 1
			break
		}
	}
	links := 0
	if at >= 0 {
		for at+links < len(frames) && j.isLink(frames[at+links]) {
			links++
		}
		frames = frames[at+links:]
	}
	for _, f := range frames {
		if j.isLink(f) {
			return false
		}
	}
	// A sample within a link, or in what main itself calls, is right with
	// fewer links.
	return links == j.links || links < j.links && (len(frames) == 0 || links == 0)
}

// isLink accepts "chain<17>::level(long)" and "chain::level" alike.
func (j judge) isLink(name string) bool {
	name, _, _ = strings.Cut(name, "(")
	if open := strings.IndexByte(name, '<'); open >= 0 {
		if end := strings.IndexByte(name, '>'); end > open {
			name = name[:open] + name[end+1:]
		}
	}
	return name == j.chain
}

// judgeFolded reads folded stacks of swbpf; comm chooses a program, "" all.
func judgeFolded(path, comm string, j judge) (verdict, error) {
	var v verdict
	err := eachLine(path, func(line string) {
		stack, count, ok := cutLast(line, " ")
		n, err := strconv.Atoi(count)
		if !ok || err != nil {
			return
		}
		name, rest, _ := strings.Cut(stack, ";")
		if comm != "" && name != comm {
			return
		}
		var frames []string
		for f := range strings.SplitSeq(rest, ";") {
			if strings.HasSuffix(f, "_[k]") {
				break
			}
			frames = append(frames, strings.TrimSuffix(strings.TrimSuffix(f, "_[i]"), "_[j]"))
		}
		v.add(j, frames, n)
	})
	return v, err
}

// judgePerfScript reads the output of perf script -F comm,tid,ip,sym.
func judgePerfScript(path, comm string, j judge) (verdict, error) {
	var v verdict
	var frames []string
	wanted := false
	end := func() {
		if wanted {
			v.add(j, reversed(frames), 1)
		}
		frames, wanted = frames[:0], false
	}
	err := eachLine(path, func(line string) {
		switch {
		case line == "":
			end()
		case line[0] == ' ' || line[0] == '\t':
			addr, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			if ip, err := strconv.ParseUint(addr, 16, 64); err == nil && ip < 1<<63 {
				frames = append(frames, strings.TrimSuffix(name, " (inlined)"))
			}
		default:
			end()
			wanted = comm == "" || strings.HasPrefix(line, comm+" ")
		}
	})
	end()
	return v, err
}

// judgeBpftrace reads a map of stacks as bpftrace prints it:
// "@[", a line per function, "]: COUNT".
func judgeBpftrace(path string, j judge) (verdict, error) {
	var v verdict
	var frames []string
	err := eachLine(path, func(line string) {
		switch {
		case strings.HasPrefix(line, "@["):
			frames = frames[:0]
		case strings.HasPrefix(line, "]: "):
			if n, err := strconv.Atoi(line[3:]); err == nil {
				v.add(j, reversed(frames), n)
			}
		case line != "" && (line[0] == ' ' || line[0] == '\t'):
			_, name, _ := strings.Cut(strings.TrimSpace(line), " ")
			name, _, _ = strings.Cut(name, "+")
			frames = append(frames, name)
		}
	})
	return v, err
}

func reversed(frames []string) []string {
	out := make([]string, len(frames))
	for i, f := range frames {
		out[len(frames)-1-i] = f
	}
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func eachLine(path string, fn func(string)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		fn(lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
