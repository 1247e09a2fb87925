package unwind

import "slices"

// CodeFunction is a function that a runtime of the process, such as Java's virtual
// machine, has compiled or interprets: what no file tells of it.
type CodeFunction struct {
	Name       string // for people, without parameters
	Parameters string // in parentheses, for people; "" where there is no telling
	SystemName string // as the runtime has it, with parameters
	File       string // its source; "" when not known
	StartLine  int    // in File, 0 when not known
	Runtime    string // whose function it is: "java", "python", "ruby", "php", "perl", "lua", "r", "bash", "postgres", "javascript", "erlang", "scheme", "dotnet", "wasm"
}

// CodeLine is where a function is that a frame runs.
type CodeLine struct {
	*CodeFunction
	Line       int  // in File, 0 when not known
	IsCompiled bool // no interpreter runs in the frame, also where it is not told where its code begins
}

// Codes number what frames run by what the runtimes of their process say: steppers that
// know these add it, and Frame.Code and PC.Code refer to it. The zero value is empty. Codes
// belong to the goroutine of their Walker.
type Codes struct {
	codes  []code
	lines  []CodeLine
	bytes  int // of the names of these
	resets int
	lacks  []string
}

// code is a number's: lines[first:first+n], where the machine code begins, and the number of
// what it is called by in the same frame.
type code struct {
	start    uint64
	first, n uint32
	outer    uint32
}

// What Codes hold at most: what is added then has no number.
const (
	maxCodes     = 1 << 18
	maxCodeLines = 1 << 20
	maxCodeNames = 128 << 20 // bytes, those of each line counted
)

// Add numbers what a frame runs: the calls that were inlined, innermost first, and the
// function last. start is the run-time address at which the function's code begins, 0 where
// it has none of its own. outer is the number of what that is called by in the same frame, as
// an interpreter has several functions in one of its frames; 0 where there is none. The number
// is 0 when there are none left, no room for so many lines or such long names, no lines or one
// without a function, or when outer was not given out before.
func (c *Codes) Add(start uint64, lines []CodeLine, outer uint32) uint32 {
	if len(lines) == 0 || len(c.codes) >= maxCodes || len(lines) > maxCodeLines-len(c.lines) || outer > uint32(len(c.codes)) {
		return 0
	}
	names := 0
	for i := range lines {
		f := lines[i].CodeFunction
		if f == nil {
			return 0
		}
		names += len(f.Name) + len(f.Parameters) + len(f.File)
	}
	if names > maxCodeNames-c.bytes {
		return 0
	}
	c.bytes += names
	c.codes = append(c.codes, code{start, uint32(len(c.lines)), uint32(len(lines)), outer})
	c.lines = append(c.lines, lines...)
	return uint32(len(c.codes))
}

// Lines returns what a number stands for, as it was given to Add; nothing for 0.
// It must not be changed.
func (c *Codes) Lines(number uint32) []CodeLine {
	if number-1 >= uint32(len(c.codes)) {
		return nil
	}
	is := c.codes[number-1]
	return c.lines[is.first : is.first+is.n : is.first+is.n]
}

// Start returns the address that Add was given for a number, 0 where there is none.
func (c *Codes) Start(number uint32) uint64 {
	if number-1 >= uint32(len(c.codes)) {
		return 0
	}
	return c.codes[number-1].start
}

// Outer returns the number of what a number's function is called by in the same frame; 0
// where that is the frame's caller.
func (c *Codes) Outer(number uint32) uint32 {
	if number-1 >= uint32(len(c.codes)) {
		return 0
	}
	return c.codes[number-1].outer
}

// Len returns how many numbers are in use.
func (c *Codes) Len() int { return len(c.codes) }

// Reset makes all numbers void: they will be given anew.
func (c *Codes) Reset() {
	c.codes, c.lines, c.bytes = nil, nil, 0
	c.resets++
}

// maxCodeLacks bounds what Codes keep of reasons.
const maxCodeLacks = 16

// Lack notes, once, why functions of a runtime have no names, in words for the user.
func (c *Codes) Lack(why string) {
	if len(c.lacks) < maxCodeLacks && !slices.Contains(c.lacks, why) {
		c.lacks = append(c.lacks, why)
	}
}

// Lacks returns what was noted by Lack. It belongs to c, and outlives Reset.
func (c *Codes) Lacks() []string { return c.lacks }

// Resets returns how often Reset was called, for those that keep numbers.
func (c *Codes) Resets() int { return c.resets }
