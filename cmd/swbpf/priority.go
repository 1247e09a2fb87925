package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// recorderNice is the nice value of a recorder: on a machine where everything
// is busy, it must still get round to emptying the ring. What it uses is
// little, and reported.
const recorderNice = -10

// timerSlack is how late a timer of a recorder may be. Go's runtime has a thread
// that looks for work every 20 us for as long as there has lately been some:
// with the usual slack of 50 us that costs more than what there is to do.
const timerSlack = 5 * time.Millisecond

// raisePriority gives all threads of this program the recorder's nice value and
// timer slack; threads born later inherit both. Without the privilege nothing
// changes. A command to record must have been started before. Two threads may
// run, on one CPU, too: files are to be opened while a poll of the rings takes long.
func raisePriority() {
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, recorderNice)
			_ = os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", tid), strconv.AppendInt(nil, int64(timerSlack), 10), 0)
		}
	}
}

// idleHeap is memory that is reserved and never touched, so that none is there.
// The garbage collector takes it for used, and lets garbage gather accordingly:
// the rest of the heap of a recorder is so small that it would run for every few
// processes or stacks that are new.
var idleHeap []byte

const idleHeapBytes = 8 << 20

// collectLater has the garbage collector run for the first time at 16 MB, and not
// at 4: a walk of a program of usual size makes less, and collecting it took a
// tenth of the time. GOGC in the environment counts more.
func collectLater() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(400)
	garbage := new([64]byte)
	runtime.AddCleanup(garbage, func(usual int) { debug.SetGCPercent(usual) }, 100)
}

// limitGarbage has the garbage collector run when there is half as much garbage
// as there is in use, and not as much: a recorder allocates little but when it
// reads names, and its memory is missed by what it records. GOGC in the
// environment counts more.
func limitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
		idleHeap = make([]byte, idleHeapBytes)
	}
}

// releaseIdleHeap ends the reservation for naming: names are read and given
// back file by file, which makes much garbage of little. What the recording has
// used is collected first, so that names take its place.
func releaseIdleHeap() {
	runtime.KeepAlive(idleHeap)
	idleHeap = nil
	runtime.GC()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(100)
	}
}
