// Package endsignals catches the signals that end a recording from when the
// program starts: a Ctrl-C while the other packages are initialised, and while
// the kernel side is loaded, still leaves a file. It imports little, for Go to
// initialise it early.
package endsignals

import (
	"os"
	"os/signal"
	"syscall"
)

// verb is the verb that is to end in order; other verbs end by the signals.
const verb = "record"

var caught = atStart()

func atStart() chan os.Signal {
	if len(os.Args) < 2 || os.Args[1] != verb {
		return nil
	}
	return notify()
}

func notify() chan os.Signal {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return signals
}

// Channel returns a channel of the signals that end a recording, with those
// that came since the program has started with the verb record.
func Channel() chan os.Signal {
	if caught == nil {
		caught = notify()
	}
	return caught
}
