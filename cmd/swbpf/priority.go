package main

import (
	"fmt"
	"os"
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
// changes. A command to record must have been started before.
func raisePriority() {
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
