package steppers

// codeReader returns what there is of the code at [start, end), which holds addr,
// and where that begins.
type codeReader func(start, addr, end uint64) (code []byte, from uint64)

// codeWindow is a piece of code that was read.
type codeWindow struct {
	start  uint64
	bytes  []byte
	isLast bool // nothing follows it
}

// codeWindows is the code that is met on a way through it, which is read piece by piece.
type codeWindows struct {
	most    int // pieces that may be read
	read    codeReader
	windows []codeWindow
}

// How much is read before and behind an address that is met, in bytes, and how often.
const (
	windowBefore = 512
	windowBehind = 2 << 10

	maxWindows     = 8
	maxMadeWindows = 32 // the same of code that is in no file
)

// begin makes c ready for another way, on which so many pieces may be read.
func (c *codeWindows) begin(read codeReader, most int) {
	c.most, c.read, c.windows = most, read, c.windows[:0]
}

// at returns the code at an address, nil when it cannot be read.
func (c *codeWindows) at(addr uint64) []byte {
	const longest = 16 // bytes of an instruction
	for i := range c.windows {
		w := &c.windows[i]
		if o := addr - w.start; addr >= w.start && o < uint64(len(w.bytes)) && (o+longest <= uint64(len(w.bytes)) || w.isLast) {
			return w.bytes[o:]
		}
	}
	if len(c.windows) >= c.most {
		return nil
	}
	b, start := c.read(addr-min(addr, windowBefore), addr, addr+windowBehind)
	if addr < start || addr-start >= uint64(len(b)) {
		return nil
	}
	c.windows = append(c.windows, codeWindow{start, b, start+uint64(len(b)) < addr+windowBehind})
	return b[addr-start:]
}

// last returns the piece that was read last.
func (c *codeWindows) last() *codeWindow { return &c.windows[len(c.windows)-1] }

// pieces returns how many pieces were read.
func (c *codeWindows) pieces() int { return len(c.windows) }
