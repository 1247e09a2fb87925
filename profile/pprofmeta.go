package profile

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"time"

	pprof "github.com/google/pprof/profile"
)

// metaField is a field of the pprof message that only this package knows; others skip it,
// and those that write what they have read leave it out. It has Meta in JSON. The
// comments, for people, tell the most of it.
const metaField = 1002

// fieldOfPprof returns the first field of this number, of bytes, in a valid message; nil
// where there is none.
func fieldOfPprof(data []byte, number uint64) []byte {
	for len(data) > 0 {
		key, k := binary.Uvarint(data)
		if k <= 0 {
			return nil
		}
		data = data[k:]
		size, body := uint64(0), 0
		switch key & 7 {
		case 0:
			_, body = binary.Uvarint(data)
		case 1:
			size = 8
		case wireBytes:
			size, body = binary.Uvarint(data)
		case 5:
			size = 4
		}
		if body < 0 || size > uint64(len(data)-body) || uint64(body)+size == 0 {
			return nil
		}
		field := data[body:][:size]
		data = data[uint64(body)+size:]
		if key == number<<3|wireBytes {
			return field
		}
	}
	return nil
}

// maxEvents is how many Thread.Event has room for.
const maxEvents = math.MaxUint8 + 1

// metaOfPprof returns what metaField tells, if that is of a profile with these types of values.
func metaOfPprof(data []byte, types []ValueType) *Meta {
	var m Meta
	field := fieldOfPprof(data, metaField)
	if field == nil || json.Unmarshal(field, &m) != nil || len(m.Also) >= maxEvents || !slices.Equal(m.pprofTypes(), types) {
		return nil
	}
	return &m
}

// describedMeta is what a profile tells otherwise: its fields, and its comments, which those who
// write pprof's format keep. Of several events it tells if there are the values of each.
func describedMeta(src *pprof.Profile, o ReadOptions) Meta {
	m := Meta{Target: o.Name, Period: max(src.Period, 0), Duration: time.Duration(max(src.DurationNanos, 0))}
	if src.TimeNanos > 0 {
		m.Start = time.Unix(0, src.TimeNanos)
	}
	if !parseDescription(&m, src.Comments) {
		if t := src.PeriodType; t != nil && t.Type != "" {
			m.Event = t.Type
		}
		if m.Event == "cpu" && m.Period > 0 {
			m.FrequencyHz = int((1e9 + m.Period/2) / m.Period)
		}
		m.Notes = append(m.Notes, src.Comments...)
	}
	types := pprofTypes(src)
	if !areOfEvents(types, 1+len(m.Also)) {
		m.Also = nil
	}
	for i := range m.Also {
		switch e := &m.Also[i]; {
		case e.FrequencyHz > 0 && types[2*i+3].Unit == "nanoseconds":
			e.Period = int64(time.Second) / int64(e.FrequencyHz)
		case e.FrequencyHz == 0:
			e.Period = max(e.Period, 1)
		}
	}
	return m
}

// areOfEvents reports whether types are those of so many events: see Meta.typesByEvent.
func areOfEvents(types []ValueType, events int) bool {
	if events < 2 || events > maxEvents || len(types) != 2*events {
		return false
	}
	for i := range events {
		if types[2*i].Type != types[2*i+1].Type+samplesSuffix {
			return false
		}
	}
	return true
}

// pprofTypes are the types of values of a profile that was read.
func pprofTypes(src *pprof.Profile) (types []ValueType) {
	for _, t := range src.SampleType {
		types = append(types, ValueType{t.Type, t.Unit})
	}
	return types
}
