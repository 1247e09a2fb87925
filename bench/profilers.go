package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// job is one run of a program under one profiler.
type job struct {
	dir     string // for files of this run
	swbpf   string
	hz      int
	comm    string   // name of the program whose stacks are judged
	command []string // the program, within bench/testdata/timed.c
	judge   judge
}

// textFile is where a job's stacks end up as text.
const textFile = "text.folded"

func (j *job) file(name string) string { return filepath.Join(j.dir, name) }

// outcome is what a profiler says itself of a run.
type outcome struct {
	samples, lost, bytes, bpfNS float64 // -1: not told
	verdict                     verdict
}

// profiler is one of those that are compared.
type profiler struct {
	name string
	// record runs the job's command under the profiler.
	record func(j *job) []string
	// post turns the recording into text, which goes to textFile. nil
	// where record does so itself.
	post func(j *job) []string
	// read reads the result; nil for what records nothing.
	read func(j *job) (outcome, error)
	// around, if set, is in force while the command runs by itself.
	around func(hz int) (*timerProgram, error)
}

func profilers() []profiler {
	return []profiler{
		{name: "nothing", record: func(j *job) []string { return j.command }},
		{
			name:   "empty program",
			record: func(j *job) []string { return j.command },
			around: startEmptyProgram,
		},
		{
			name:   "copy alone",
			record: func(j *job) []string { return j.command },
			around: startCopyProgram,
		},
		{name: "swbpf", record: swbpfRecord, read: swbpfRead},
		perfDwarf(8 << 10),
		perfDwarf(65528),
		{name: "bpftrace", record: bpftraceRecord, read: bpftraceRead},
	}
}

func swbpfRecord(j *job) []string {
	args := []string{j.swbpf, "record", "-F", strconv.Itoa(j.hz), "--stats", j.file("stats.json"), "--stats-detail",
		"-o", j.file(textFile), "-o", j.file("graph.html")}
	return append(append(args, "--"), j.command...)
}

// recordStats are the figures that swbpf record --stats writes.
type recordStats struct {
	Duration                float64 `json:"duration_seconds"`
	Samples, Complete, Lost uint64
	Frames                  uint64
	User                    uint64  `json:"user_samples"`
	Copied                  uint64  `json:"bytes_copied"`
	Sent                    uint64  `json:"bytes_sent"`
	RunNS                   uint64  `json:"bpf_run_ns"`
	Runs                    uint64  `json:"bpf_runs"`
	Unwind                  uint64  `json:"unwind_ns"`
	Live                    uint64  `json:"live_bytes"`
	LiveCopied              uint64  `json:"live_bytes_copied"`
	CPURecording            float64 `json:"recording_cpu_seconds"`
	CPUUser                 float64 `json:"cpu_user_seconds"`
	CPUSystem               float64 `json:"cpu_system_seconds"`
	RSS                     uint64  `json:"max_rss_bytes"`
	Processes               int
}

func readRecordStats(path string) (recordStats, error) {
	var s recordStats
	b, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

func swbpfRead(j *job) (outcome, error) {
	s, err := readRecordStats(j.file("stats.json"))
	if err != nil {
		return outcome{}, err
	}
	v, err := judgeFolded(j.file(textFile), j.comm, j.judge)
	return outcome{
		samples: float64(s.Samples), lost: float64(s.Lost), bytes: float64(s.Sent),
		bpfNS: float64(s.RunNS), verdict: v,
	}, err
}

// perfDwarf records copies of stacks, of a fixed size each, for libunwind or
// libdw to walk afterwards. Inlined functions are left out: with them, perf
// script takes minutes for large programs.
func perfDwarf(stackBytes int) profiler {
	return profiler{
		name: fmt.Sprintf("perf dwarf %dK", (stackBytes+1023)>>10),
		record: func(j *job) []string {
			args := []string{"perf", "record", "-q", "-e", "cpu-clock", "-F", strconv.Itoa(j.hz),
				"--call-graph", fmt.Sprintf("dwarf,%d", stackBytes), "-o", j.file("perf.data"), "--"}
			return append(args, j.command...)
		},
		post: func(j *job) []string {
			return []string{"perf", "script", "--no-inline", "--max-stack", "1024", "-F", "comm,tid,ip,sym",
				"--show-lost-events", "-i", j.file("perf.data")}
		},
		read: func(j *job) (outcome, error) {
			out := outcome{bpfNS: -1}
			fi, err := os.Stat(j.file("perf.data"))
			if err != nil {
				return out, err
			}
			out.bytes = float64(fi.Size())
			err = eachLine(j.file(textFile), func(line string) {
				if _, n, ok := cutLast(line, "lost "); ok && strings.Contains(line, "PERF_RECORD_LOST") {
					if v, err := strconv.ParseFloat(strings.TrimSpace(n), 64); err == nil {
						out.lost += v
					}
				}
				if line != "" && line[0] != ' ' && line[0] != '\t' && !strings.Contains(line, "PERF_RECORD_LOST") {
					out.samples++
				}
			})
			if err != nil {
				return out, err
			}
			out.verdict, err = judgePerfScript(j.file(textFile), j.comm, j.judge)
			return out, err
		},
	}
}

// bpftraceRecord samples by name of the program: bpftrace cannot follow
// children.
func bpftraceRecord(j *job) []string {
	prog := fmt.Sprintf(`profile:hz:%d /comm == "%s"/ { @[ustack(perf, 127)] = count(); }`, j.hz, j.comm)
	return []string{"bpftrace", "-o", j.file(textFile), "-c", strings.Join(j.command, " "), "-e", prog}
}

func bpftraceRead(j *job) (outcome, error) {
	v, err := judgeBpftrace(j.file(textFile), j.judge)
	return outcome{samples: float64(v.stacks), lost: -1, bytes: -1, bpfNS: -1, verdict: v}, err
}
