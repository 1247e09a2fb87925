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

// goLabel is a label of a goroutine (internal/runtime/pprof/label.Label), two strings.
const goLabel = 32

// GoLabels yields the labels, key and value, that the goroutine which ran had by runtime/pprof, up to MaxGoLabels, cut to
// MaxGoLabelBytes. They point into the sample.
func (s *Sample) GoLabels() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		if s.LabelRegions == 0 {
			return
		}
		regions := s.Regions[len(s.Regions)-s.LabelRegions:]
		text := func(b []byte) (text []byte, ok bool) {
			addr, n := binary.LittleEndian.Uint64(b), min(binary.LittleEndian.Uint64(b[8:]), uint64(MaxGoLabelBytes))
			for _, r := range regions[1:] {
				if r.Addr == addr && uint64(len(r.Data)) == n {
					return r.Data, true
				}
			}
			return nil, n == 0
		}
		for list := regions[0].Data; len(list) >= goLabel; list = list[goLabel:] {
			key, ok1 := text(list)
			value, ok2 := text(list[goLabel/2:])
			if ok1 && ok2 && !yield(key, value) {
				return
			}
		}
	}
}
