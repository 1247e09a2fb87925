package loader

import (
	"encoding/binary"
	"iter"

	"github.com/swbpf/swbpf/gen"
)

// What is copied of a goroutine's labels.
const (
	MaxGoLabels     = int(gen.SamplerLimitsMAX_LABELS)
	MaxGoLabelBytes = int(gen.SamplerLimitsMAX_LABEL) // of a key or a value
)

// GoLabel is a label that a goroutine has given itself by runtime/pprof. It points into the sample.
type GoLabel struct {
	Key, Value []byte
	IsCut      bool // the value is longer
}

// goLabelBytes is the size of a label, two strings.
const goLabelBytes = 32

// GoLabels yields the labels that the goroutine which ran had, up to MaxGoLabels.
func (s *Sample) GoLabels() iter.Seq[GoLabel] {
	return func(yield func(GoLabel) bool) {
		if s.LabelRegions == 0 {
			return
		}
		regions := s.Regions[len(s.Regions)-s.LabelRegions:]
		text := func(b []byte) (text []byte, isCut, ok bool) {
			addr, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
			isCut = n > uint64(MaxGoLabelBytes)
			n = min(n, uint64(MaxGoLabelBytes))
			for _, r := range regions[1:] {
				if r.Addr == addr && uint64(len(r.Data)) == n {
					return r.Data, isCut, true
				}
			}
			return nil, false, n == 0
		}
		for list := regions[0].Data; len(list) >= goLabelBytes; list = list[goLabelBytes:] {
			key, _, ok1 := text(list)
			value, isCut, ok2 := text(list[goLabelBytes/2:])
			if ok1 && ok2 && len(key) > 0 && !yield(GoLabel{key, value, isCut}) {
				return
			}
		}
	}
}
