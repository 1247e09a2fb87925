package main

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
)

// bytesValue is a flag for a number of bytes: 65536, 64K, 64KiB, 1M.
type bytesValue int

func (v *bytesValue) String() string {
	switch n := int(*v); {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	default:
		return strconv.Itoa(n)
	}
}

func (v *bytesValue) Set(s string) error {
	num, shift := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(s), "B"), "I"), 0
	for suffix, sh := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if rest, ok := strings.CutSuffix(num, suffix); ok {
			num, shift = rest, sh
			break
		}
	}
	n, err := strconv.ParseUint(num, 10, 31)
	if err != nil || n == 0 || n<<shift > math.MaxInt32 {
		return errors.New("not a number of bytes such as 65536, 64K or 1M")
	}
	*v = bytesValue(n << shift)
	return nil
}

func (v *bytesValue) Type() string { return "bytes" }

// durationValue is a flag for a time: Go's notation, or plain seconds.
type durationValue time.Duration

func (v *durationValue) String() string {
	if *v == 0 {
		return ""
	}
	return time.Duration(*v).String()
}

func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		secs, ferr := strconv.ParseFloat(s, 64)
		if ferr != nil || math.IsNaN(secs) {
			return errors.New("not a duration such as 10, 1.5s or 2m")
		}
		const longest = 1<<63 - 1<<10 // of those that a float64 can be
		d = time.Duration(min(secs*float64(time.Second), longest))
	}
	if d <= 0 {
		return errors.New("a duration is longer than nothing")
	}
	*v = durationValue(d)
	return nil
}

func (v *durationValue) Type() string { return "duration" }

// delayValue is a durationValue that needs a unit: perf has a number of ms where others
// would have seconds.
type delayValue durationValue

func (v *delayValue) String() string { return (*durationValue)(v).String() }
func (v *delayValue) Type() string   { return (*durationValue)(v).Type() }

func (v *delayValue) Set(s string) error {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 {
		return fmt.Errorf("in which unit: %sms or %ss?", s, s)
	}
	return (*durationValue)(v).Set(s)
}

// userValue is a flag for a user, by name or number.
type userValue struct {
	name string
	id   *uint32 // nil when not given
}

func (v *userValue) String() string { return v.name }
func (v *userValue) Type() string   { return "user" }

func (v *userValue) Set(s string) error {
	number := s
	if u, err := user.Lookup(s); err == nil {
		number = u.Uid
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil || n == math.MaxUint32 {
		return errors.New("no such user, and not the number of one")
	}
	id := uint32(n)
	v.name, v.id = s, &id
	return nil
}

// pidsValue is a flag for process IDs, separated by commas or repeated.
type pidsValue []int

func (v *pidsValue) String() string     { return joinIDs(*v) }
func (v *pidsValue) Set(s string) error { return appendIDs((*[]int)(v), s, "process") }
func (v *pidsValue) Type() string       { return "pid[,pid...]" }

// tidsValue is pidsValue for threads.
type tidsValue []procstate.ThreadID

func (v *tidsValue) String() string     { return joinIDs(*v) }
func (v *tidsValue) Set(s string) error { return appendIDs((*[]procstate.ThreadID)(v), s, "thread") }
func (v *tidsValue) Type() string       { return "tid[,tid...]" }

// threadsValue is tidsValue where threads are plain numbers.
type threadsValue []int

func (v *threadsValue) String() string     { return joinIDs(*v) }
func (v *threadsValue) Set(s string) error { return appendIDs((*[]int)(v), s, "thread") }
func (v *threadsValue) Type() string       { return "tid[,tid...]" }

// cpusValue is a flag for CPUs, as a list of numbers and ranges.
type cpusValue []int

func (v *cpusValue) String() string { return loader.FormatCPUs(*v) }
func (v *cpusValue) Type() string   { return "cpu[-cpu][,...]" }

func (v *cpusValue) Set(s string) (err error) {
	*v, err = loader.ParseCPUs(s)
	return err
}

func joinIDs[ID any](ids []ID) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

// appendIDs appends the IDs of a list, of what they are, each once.
func appendIDs[ID int | procstate.ThreadID](ids *[]ID, list, what string) error {
	for _, f := range strings.Split(list, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(f), 10, 32)
		if err != nil || n <= 0 {
			return fmt.Errorf("%q is not a %s ID", f, what)
		}
		if !slices.Contains(*ids, ID(n)) {
			*ids = append(*ids, ID(n))
		}
	}
	return nil
}

// hertzValue is a flag for a frequency in Hz.
type hertzValue int

func (v *hertzValue) String() string { return strconv.Itoa(int(*v)) }

func (v *hertzValue) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return fmt.Errorf("not a frequency: whole Hz, from 1 to %s (kernel.perf_event_max_sample_rate)", maxFrequency())
	}
	*v = hertzValue(n)
	return nil
}

// maxFrequency is what the kernel allows, in words.
func maxFrequency() string {
	if hz, ok := loader.MaxFrequency(); ok {
		return strconv.Itoa(hz)
	}
	return "what the kernel allows"
}

func (v *hertzValue) Type() string { return "Hz" }

// countValue is a flag for a number of things, which an int has room for, as the kernel's
// periods do.
type countValue uint64

func (v *countValue) String() string { return strconv.FormatUint(uint64(*v), 10) }

func (v *countValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil || n < 1 {
		return errors.New("not a whole number, from 1 to 9223372036854775807")
	}
	*v = countValue(n)
	return nil
}

func (v *countValue) Type() string { return "n" }

// rowsValue is a flag for a number of lines, of which there may be none.
type rowsValue int

func (v *rowsValue) String() string { return strconv.Itoa(int(*v)) }

func (v *rowsValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return errors.New("not a whole number, from 0 on")
	}
	*v = rowsValue(n)
	return nil
}

func (v *rowsValue) Type() string { return "number" }
