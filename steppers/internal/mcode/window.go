package mcode

// Reader returns what there is of the code at [start, end), which holds addr,
// and where that begins.
type Reader func(start, addr, end uint64) (code []byte, from uint64)

// Window is a piece of code that was read.
type Window struct {
	Start  uint64
	Bytes  []byte
	isLast bool // nothing follows it
}

// Windows is the code that is met on a way through it, which is read piece by piece.
type Windows struct {
	Most    int // pieces that may be read
	read    Reader
	windows []Window
}

// How much is read before and behind an address that is met, in bytes, and how often.
const (
	WindowBefore = 512
	WindowBehind = 2 << 10

	MaxWindows     = 8
	MaxMadeWindows = 32 // the same of code that is in no file
)

// Begin makes c ready for another way, on which so many pieces may be read.
func (c *Windows) Begin(read Reader, most int) {
	c.Most, c.read, c.windows = most, read, c.windows[:0]
}

// At returns the code at an address, nil when it cannot be read.
func (c *Windows) At(addr uint64) []byte {
	const longest = 16 // bytes of an instruction
	for i := range c.windows {
		w := &c.windows[i]
		if o := addr - w.Start; addr >= w.Start && o < uint64(len(w.Bytes)) && (o+longest <= uint64(len(w.Bytes)) || w.isLast) {
			return w.Bytes[o:]
		}
	}
	if len(c.windows) >= c.Most {
		return nil
	}
	b, start := c.read(addr-min(addr, WindowBefore), addr, addr+WindowBehind)
	if addr < start || addr-start >= uint64(len(b)) {
		return nil
	}
	c.windows = append(c.windows, Window{start, b, start+uint64(len(b)) < addr+WindowBehind})
	return b[addr-start:]
}

// Near returns the code at an address if it has been read, nil where it has not.
func (c *Windows) Near(addr uint64) []byte {
	for i := range c.windows {
		if w := &c.windows[i]; addr >= w.Start && addr-w.Start < uint64(len(w.Bytes)) {
			return w.Bytes[addr-w.Start:]
		}
	}
	return nil
}

// Last returns the piece that was read last.
func (c *Windows) Last() *Window { return &c.windows[len(c.windows)-1] }

// Pieces returns how many pieces were read.
func (c *Windows) Pieces() int { return len(c.windows) }
