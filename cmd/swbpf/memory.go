package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/procstate"
)

// allowedGarbage is how much garbage a recorder lets gather beyond an eighth of what is
// live, in bytes.
const allowedGarbage = 4 << 20

// ampleHeap is how much may be live, with its garbage, for garbage to be as much as
// that: with the rings and the program, some 60 MB are taken then. Beyond it the
// collector runs more often, up to twice as often.
const ampleHeap = 24 << 20

// garbageIsLimited says that limitGarbage rules.
var garbageIsLimited atomic.Bool

// collectLater has the garbage collector run for the first time at 16 MB, and not
// at 4: a walk of a program of usual size makes less, as does the start of a recorder, and
// collecting it took a tenth of the time. GOGC in the environment counts more.
func collectLater() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(400)
	afterCollection(func() {
		if !garbageIsLimited.Load() {
			debug.SetGCPercent(100)
		}
	})
}

// limitGarbage bounds what a recorder takes: its memory is missed by what it records.
// Garbage in proportion to what is live, Go's usual rule, is too little where little
// is live, and the collector runs for every few processes or stacks that are new, and
// too much where much is. So it is an amount and an eighth of what is live, whatever
// that comes to: the percentage is set anew after each collection. A limit on all
// memory would do the same, but where memory is lost between objects, which nobody
// can foretell, the collector would run without end. GOGC in the environment counts
// more.
func limitGarbage() {
	if os.Getenv("GOGC") != "" {
		return
	}
	garbageIsLimited.Store(true)
	const least = 4 << 20 // of what is live; Go has a heap grow to as much anyway
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	var limit func()
	limit = func() {
		metrics.Read(live)
		n := int64(live[0].Value.Uint64())
		debug.SetGCPercent(int(100 * garbageBeside(n) / max(n, least)))
		afterCollection(limit)
	}
	limit()
}

// garbageBeside returns how much garbage may gather beside so many bytes that are live.
func garbageBeside(live int64) int64 {
	ample := allowedGarbage + live/8
	return min(ample, max(ample/2, ampleHeap-live))
}

// afterCollection calls f once, after the next garbage collection.
func afterCollection(f func()) {
	garbage := new([64]byte)
	runtime.AddCleanup(garbage, func(f func()) { f() }, f)
}

// leaveProgram takes the pages of our program's file out of our memory. What is still
// needed comes back from the page cache, 64 KB at a time; what has been needed for the
// last time does not, as the code and the data of the start.
func leaveProgram() {
	maps, err := procstate.ReadMaps("/proc/self/maps", false)
	if err != nil {
		return
	}
	pc, _, _, _ := runtime.Caller(0)
	var program procstate.MapsEntry
	for _, m := range maps {
		if uint64(pc) >= m.Start && uint64(pc) < m.End {
			program = m
		}
	}
	for _, m := range maps {
		if m.Prot&procstate.ProtWrite == 0 && m.Inode == program.Inode && m.Major == program.Major && m.Minor == program.Minor {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(m.Start), uintptr(m.End-m.Start), unix.MADV_DONTNEED)
		}
	}
}
