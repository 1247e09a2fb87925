package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// keeperVerb makes this program a keeper. It is not for users.
const keeperVerb = "keep-terminal"

// keeper is a process that gives the terminal back when this one ends without
// having done so: killed, or by a fault of which the runtime lets nobody
// recover. It is told by a pipe what to restore, and then of each change. What the
// runtime says of a fault goes through it, for the other screen shows it in vain.
//
// A shell may be faster. It sets its own modes when a program is ended by a
// signal, and so the runtime is to end by one.
type keeper struct{ pipe *os.File }

// maxCrash is how much of what the runtime says is kept.
const maxCrash = 64 << 10

const (
	keeperTaken    = 't'
	keeperRestored = 'r'
)

// keeperModes are the terminal's modes as they were, and as they are while it
// is taken: when they are neither, somebody else has set them.
type keeperModes struct{ saved, taken unix.Termios }

func (m *keeperModes) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}

// startKeeper starts a keeper. Without one, which an error means, the rest works.
func startKeeper(in, out *os.File, modes *keeperModes) (*keeper, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	readCrash, writeCrash, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	defer readCrash.Close()
	defer writeCrash.Close() // the runtime has its own
	cmd := exec.Command(program, keeperVerb)
	cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = read, out, []*os.File{in, readCrash}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keys are not for it
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	if _, err := write.Write(modes.bytes()); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	debug.SetTraceback("crash")
	return &keeper{write}, debug.SetCrashOutput(writeCrash, debug.CrashOptions{})
}

// tell tells the keeper what has become of the terminal. k may be nil.
func (k *keeper) tell(what byte) {
	if k != nil {
		_, _ = k.pipe.Write([]byte{what})
	}
}

// keepTerminal is the keeper. Its standard input is the pipe, its output the
// screen, descriptor 3 the keyboard and 4 the pipe of what is said of a fault.
func keepTerminal() int {
	// It belongs to the terminal's background, which may not change the terminal
	// unless it ignores that.
	signal.Ignore(unix.SIGTTOU, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGTSTP)
	var modes keeperModes
	if _, err := io.ReadFull(os.Stdin, modes.bytes()); err != nil {
		return exitFailure
	}
	crash := make(chan []byte, 1)
	go func() {
		pipe := os.NewFile(4, "crash")
		text, _ := io.ReadAll(io.LimitReader(pipe, maxCrash))
		_, _ = io.Copy(io.Discard, pipe)
		crash <- text
	}()
	told := make([]byte, 1)
	last := byte(keeperRestored)
	for {
		if _, err := os.Stdin.Read(told); err != nil {
			break
		}
		last = told[0]
	}
	if last == keeperRestored {
		return exitOK
	}
	if now, err := unix.IoctlGetTermios(3, unix.TCGETS); err == nil && *now == modes.taken {
		_ = unix.IoctlSetTermios(3, unix.TCSETSF, &modes.saved)
	}
	_, _ = os.Stdout.WriteString(leaveScreen)
	_, _ = os.Stdout.Write(bytes.ReplaceAll(<-crash, []byte("\n"), []byte("\r\n")))
	return exitOK
}
