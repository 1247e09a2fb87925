package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// terminal is the screen that top has taken over.
type terminal struct {
	in, out *os.File
	saved   unix.Termios // as it was
	taken   bool
	last    string  // what was drawn
	keeper  *keeper // nil where it cannot be had
}

// The sequences of ANSI X3.64, ECMA-48 and xterm that all terminals of today
// know.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J" // other screen, no cursor, no wrapping
	// Where a screen that has changed its size is not empty, tmux moves lines of
	// it to the first one.
	leaveScreen = "\x1b[0m\x1b[H\x1b[2J\x1b[?7h\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K" // to its end
	clearBelow  = "\x1b[J"
)

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// openTerminal checks that there is a screen and a keyboard. Nothing changes
// before take.
func openTerminal(in, out *os.File) (*terminal, error) {
	if !isTerminal(out) || !isTerminal(in) {
		return nil, errors.New("top needs a terminal to show itself on; 'swbpf record' writes to files")
	}
	if name := os.Getenv("TERM"); name == "" || name == "dumb" {
		return nil, fmt.Errorf("top needs a terminal that can move its cursor, and TERM is %q; 'swbpf record' writes to files", name)
	}
	t := &terminal{in: in, out: out}
	saved, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	t.saved = *saved
	return t, nil
}

// take shows the other screen and has keys reported as they are pressed. The
// keys that send signals go on doing so, but for Ctrl-\.
func (t *terminal) take() error {
	raw := t.saved
	raw.Lflag &^= unix.ICANON | unix.ECHO
	raw.Iflag &^= unix.ICRNL | unix.IXON
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME], raw.Cc[unix.VQUIT] = 1, 0, 0
	if t.keeper == nil {
		t.keeper, _ = startKeeper(t.in, t.out, &keeperModes{saved: t.saved, taken: raw})
	}
	t.keeper.tell(keeperTaken)
	if err := unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETS, &raw); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.taken, t.last = true, ""
	_, err := t.out.WriteString(enterScreen)
	return err
}

// restore gives the terminal back as it was. Calling it again does nothing.
func (t *terminal) restore() {
	if !t.taken {
		return
	}
	t.taken = false
	_ = unix.IoctlSetTermios(int(t.in.Fd()), unix.TCSETSF, &t.saved)
	_, _ = t.out.WriteString(leaveScreen)
	t.keeper.tell(keeperRestored)
}

// suspend gives the terminal back and stops this process, as Ctrl-Z does, until
// it is continued. signals must bring SIGCONT: the process may run on for a
// moment after it has stopped itself.
func (t *terminal) suspend(signals <-chan os.Signal) error {
	t.restore()
	// SIGTSTP would come to us again; nothing can be done about SIGSTOP.
	if err := unix.Kill(unix.Getpid(), unix.SIGSTOP); err != nil {
		return err
	}
	for s := range signals {
		if s == unix.SIGCONT {
			break
		}
	}
	return t.take()
}

// The screen's size where the terminal does not tell it.
const defaultWidth, defaultHeight = 80, 24

// size returns the columns and lines of the screen.
func (t *terminal) size() (width, height int) {
	ws, err := unix.IoctlGetWinsize(int(t.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return defaultWidth, defaultHeight
	}
	return int(ws.Col), int(ws.Row)
}

// draw shows lines, from the top of the screen on, unless they are there.
func (t *terminal) draw(lines []string) error {
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString(clearLine)
	}
	b.WriteString(clearBelow)
	if b.String() == t.last {
		return nil
	}
	t.last = b.String()
	_, err := t.out.WriteString(t.last)
	return err
}

// forget has the next draw show its lines whatever is thought to be there.
func (t *terminal) forget() { t.last = "" }

// key is a key that was pressed: a printable rune, or one of those below.
type key rune

const (
	keyUp key = -1 - iota
	keyDown
	keyLeft
	keyRight
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
	keyEnter
	keyTab
	keyBackTab
	keyBackspace
	keyEscape
	keyRedraw    // Ctrl-L
	keyInterrupt // Ctrl-C where it sends no signal
	keyUnknown
)

// keySequences are what terminals send for keys after ESC.
var keySequences = map[string]key{
	"[A": keyUp, "[B": keyDown, "[C": keyRight, "[D": keyLeft,
	"OA": keyUp, "OB": keyDown, "OC": keyRight, "OD": keyLeft,
	"[5~": keyPageUp, "[6~": keyPageDown,
	"[H": keyHome, "[F": keyEnd, "OH": keyHome, "OF": keyEnd,
	"[1~": keyHome, "[4~": keyEnd, "[7~": keyHome, "[8~": keyEnd,
	"[Z": keyBackTab, "OM": keyEnter,
}

// decodeKey takes the first key off b. n is 0 when b may be the beginning of
// a longer one; final says that nothing more comes.
func decodeKey(b []byte, final bool) (k key, n int) {
	switch c := b[0]; {
	case c == 0x1b:
		return decodeSequence(b, final)
	case c == '\r' || c == '\n':
		return keyEnter, 1
	case c == '\t':
		return keyTab, 1
	case c == 0x7f || c == 0x08:
		return keyBackspace, 1
	case c == 0x03 || c == 0x1c: // Ctrl-C, Ctrl-\
		return keyInterrupt, 1
	case c == 0x0c:
		return keyRedraw, 1
	case c < ' ':
		return keyUnknown, 1
	}
	if !utf8.FullRune(b) && !final {
		return 0, 0
	}
	r, n := utf8.DecodeRune(b)
	if r == utf8.RuneError {
		return keyUnknown, n
	}
	return key(r), n
}

// maxSequence bounds what is waited for of a sequence.
const maxSequence = 32

func decodeSequence(b []byte, final bool) (k key, n int) {
	end := 0
	switch {
	case len(b) == 1:
	case b[1] == '[': // parameters, and then a letter or ~
		for i := 2; i < min(len(b), maxSequence); i++ {
			if b[i] >= 0x40 && b[i] <= 0x7e {
				end = i + 1
				break
			}
		}
		if len(b) >= maxSequence && end == 0 {
			return keyUnknown, maxSequence
		}
	case b[1] == 'O':
		if len(b) > 2 {
			end = 3
		}
	default: // ESC by itself, and another key
		return keyEscape, 1
	}
	if end == 0 {
		if !final {
			return 0, 0
		}
		if len(b) == 1 {
			return keyEscape, 1
		}
		return keyUnknown, len(b)
	}
	if k, ok := keySequences[string(b[1:end])]; ok {
		return k, end
	}
	return keyUnknown, end
}

// escapeDelay is the time after which ESC is taken for the key of that name,
// and not for the beginning of a sequence.
const escapeDelay = 50 * time.Millisecond

// readKeys sends keys until the terminal is gone, and then closes the channel.
func (t *terminal) readKeys(keys chan<- key) {
	defer close(keys)
	var pending []byte
	buf := make([]byte, 256)
	fd := int32(t.in.Fd())
	for {
		timeout := -1
		if len(pending) > 0 {
			timeout = int(escapeDelay / time.Millisecond)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return
		}
		if n > 0 {
			n, err := unix.Read(int(fd), buf)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			pending = append(pending, buf[:n]...)
		}
		for len(pending) > 0 {
			k, used := decodeKey(pending, n == 0)
			if used == 0 {
				break
			}
			pending = pending[used:]
			keys <- k
		}
	}
}

// terminalSignals are those that a program with a screen must answer. SIGQUIT is left
// to the runtime, which has it go round among threads when one of them faults: where it
// does not, that takes 20 s.
func terminalSignals() chan os.Signal {
	c := make(chan os.Signal, 8)
	signal.Notify(c, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
	return c
}
