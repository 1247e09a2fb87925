package procstate

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ProcessContext is what a process tells profilers of itself in a mapping of its own (OTEP 4719,
// https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/profiles/4719-process-ctx.md).
type ProcessContext struct {
	Resource   []ContextAttribute // what it is: service.name
	ThreadKeys []string           // the names of its threads' attributes, by their numbers
	Published  uint64             // tells this state of it from others
}

// ContextAttribute is one of a process; values that are no text are as JSON has them.
type ContextAttribute struct{ Key, Value string }

const (
	contextSignature = "OTEL_CTX"
	contextVersion   = 2
	contextHead      = 8 + 4 + 4 + 8 + 8
	maxContext       = 64 << 10 // bytes of it
	contextTries     = 10       // while it is being written
	// keyMapAttribute has the names of threads' attributes.
	keyMapAttribute = "threadlocal.attribute_key_map"
	threadLocals    = "threadlocal." // what others of that kind begin with
)

// FindProcessContext returns where a process may have its context, by its mappings (/proc/PID/maps); 0 when it has none.
func FindProcessContext(entries []MapsEntry) uint64 {
	for i := range entries {
		if isProcessContext(entries[i].Path) {
			return entries[i].Start
		}
	}
	return 0
}

// isProcessContext reports whether a mapping is called what one with a context is.
func isProcessContext(path string) bool {
	return strings.HasPrefix(path, "/memfd:"+contextSignature) || strings.HasPrefix(path, "[anon_shmem:"+contextSignature) ||
		strings.HasPrefix(path, "[anon:"+contextSignature)
}

// ReadProcessContext reads the context of a process that begins at an address, by a function that reads its memory and returns
// how much there was.
func ReadProcessContext(read func(addr uint64, buf []byte) int, at uint64) (c ProcessContext, ok bool) {
	var head, again [contextHead]byte
	for range contextTries {
		if read(at, head[:]) < contextHead || string(head[:8]) != contextSignature || binary.LittleEndian.Uint32(head[8:]) != contextVersion {
			return c, false
		}
		size, published := binary.LittleEndian.Uint32(head[12:]), binary.LittleEndian.Uint64(head[16:])
		if published == 0 || size > maxContext {
			continue
		}
		payload := make([]byte, size)
		n := read(binary.LittleEndian.Uint64(head[24:]), payload)
		if read(at, again[:]) < contextHead || again != head {
			continue
		}
		if n < len(payload) {
			return c, false
		}
		c = parseProcessContext(payload)
		c.Published = published
		return c, true
	}
	return c, false
}

// parseProcessContext parses a ProcessContext of opentelemetry.proto.processcontext.v1development. What is not
// understood is left out.
func parseProcessContext(payload []byte) (c ProcessContext) {
	eachField(payload, func(field uint64, f protoField) {
		switch field {
		case 1: // resource
			eachField(f.bytes, func(field uint64, f protoField) {
				if field == 1 {
					key, value := parseKeyValue(f.bytes)
					if key != "" {
						c.Resource = append(c.Resource, ContextAttribute{key, anyText(value, 0)})
					}
				}
			})
		case 2: // further attributes
			switch key, value := parseKeyValue(f.bytes); {
			case key == keyMapAttribute:
				c.ThreadKeys = parseTexts(value)
			case key != "" && !strings.HasPrefix(key, threadLocals):
				c.Resource = append(c.Resource, ContextAttribute{key, anyText(value, 0)})
			}
		}
	})
	return c
}

// parseKeyValue parses a KeyValue: the value is an AnyValue.
func parseKeyValue(b []byte) (key string, value []byte) {
	eachField(b, func(field uint64, f protoField) {
		switch field {
		case 1:
			key = strings.ToValidUTF8(string(f.bytes), "\ufffd")
		case 2:
			value = f.bytes
		}
	})
	return key, value
}

// Fields of an AnyValue.
const (
	anyString = 1 + iota
	anyBool
	anyInt
	anyDouble
	anyArray
	anyList
	anyBytes
)

// maxAnyDepth bounds values within values.
const maxAnyDepth = 8

// anyText returns an AnyValue as text.
func anyText(b []byte, depth int) (text string) {
	if depth > maxAnyDepth {
		return "..."
	}
	eachField(b, func(field uint64, f protoField) {
		switch field {
		case anyString:
			text = strings.ToValidUTF8(string(f.bytes), "\ufffd")
			if depth > 0 {
				text = strconv.Quote(text)
			}
		case anyBool:
			text = strconv.FormatBool(f.number != 0)
		case anyInt:
			text = strconv.FormatInt(int64(f.number), 10)
		case anyDouble:
			text = strconv.FormatFloat(math.Float64frombits(f.number), 'g', -1, 64)
		case anyBytes:
			text = fmt.Sprintf("%x", f.bytes)
		case anyArray:
			var parts []string
			eachField(f.bytes, func(field uint64, f protoField) {
				if field == 1 {
					parts = append(parts, anyText(f.bytes, depth+1))
				}
			})
			text = "[" + strings.Join(parts, ",") + "]"
		case anyList:
			var parts []string
			eachField(f.bytes, func(field uint64, f protoField) {
				if key, value := parseKeyValue(f.bytes); field == 1 {
					parts = append(parts, strconv.Quote(key)+":"+anyText(value, depth+1))
				}
			})
			text = "{" + strings.Join(parts, ",") + "}"
		}
	})
	return text
}

// parseTexts returns the texts of an AnyValue that is an array of them.
func parseTexts(b []byte) (texts []string) {
	eachField(b, func(field uint64, f protoField) {
		if field != anyArray {
			return
		}
		eachField(f.bytes, func(field uint64, f protoField) {
			if field == 1 {
				texts = append(texts, anyText(f.bytes, 0))
			}
		})
	})
	return texts
}
