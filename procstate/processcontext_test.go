package procstate

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"
)

// message appends a field of protobuf.
func message(to []byte, field int, b []byte) []byte {
	to = binary.AppendUvarint(append(to, byte(field<<3|2)), uint64(len(b)))
	return append(to, b...)
}

func keyValueMessage(key string, value []byte) []byte {
	return message(message(nil, 1, []byte(key)), 2, value)
}

func anyTextMessage(s string) []byte { return message(nil, anyString, []byte(s)) }

// contextPayload is a ProcessContext with values of all kinds.
func contextPayload() []byte {
	var resource []byte
	double := binary.LittleEndian.AppendUint64([]byte{anyDouble<<3 | 1}, 0x3ff8000000000000)
	array := message(nil, anyArray, message(message(nil, 1, anyTextMessage("a")), 1, []byte{anyInt << 3, 7}))
	list := message(nil, anyList, message(nil, 1, keyValueMessage("k", anyTextMessage("v"))))
	for _, kv := range []struct {
		key   string
		value []byte
	}{
		{"service.name", anyTextMessage("shop")}, {"bool", []byte{anyBool << 3, 1}}, {"int", []byte{anyInt << 3, 42}}, {"double", double},
		{"bytes", message(nil, anyBytes, []byte{1, 0xfe})}, {"array", array}, {"list", list}, {"empty", nil}, {"invalid", anyTextMessage("\xff")},
	} {
		resource = message(resource, 1, keyValueMessage(kv.key, kv.value))
	}
	payload := message(nil, 1, resource)
	keys := message(nil, anyArray, message(message(nil, 1, anyTextMessage("http.route")), 1, anyTextMessage("tenant")))
	payload = message(payload, 2, keyValueMessage("threadlocal.attribute_key_map", keys))
	payload = message(payload, 2, keyValueMessage("threadlocal.schema_version", anyTextMessage("tls_v1")))
	payload = message(payload, 2, keyValueMessage("further", anyTextMessage("x")))
	return append(payload, 3<<3|5, 1, 2, 3, 4) // a field that is not known
}

func TestParseProcessContext(t *testing.T) {
	c := parseProcessContext(contextPayload())
	got := map[string]string{}
	for _, a := range c.Resource {
		got[a.Key] = a.Value
	}
	want := map[string]string{
		"service.name": "shop", "bool": "true", "int": "42", "double": "1.5", "bytes": "01fe", "array": `["a",7]`, "list": `{"k":"v"}`,
		"empty": "", "invalid": "\ufffd", "further": "x",
	}
	if !maps.Equal(got, want) {
		t.Errorf("resource %q, want %q", got, want)
	}
	if !slices.Equal(c.ThreadKeys, []string{"http.route", "tenant"}) {
		t.Errorf("keys %q", c.ThreadKeys)
	}
	deep := anyTextMessage("x")
	for range 100 {
		deep = message(nil, anyArray, message(nil, 1, deep))
	}
	c = parseProcessContext(message(nil, 2, keyValueMessage("deep", deep)))
	if len(c.Resource) != 1 || c.Resource[0].Value != "[[[[[[[[[...]]]]]]]]]" {
		t.Errorf("%q", c.Resource)
	}
}

func TestReadProcessContext(t *testing.T) {
	const base = 0x10000
	payload := contextPayload()
	region := func(version, size uint32, published, at uint64) []byte {
		b := binary.LittleEndian.AppendUint32([]byte(contextSignature), version)
		b = binary.LittleEndian.AppendUint32(b, size)
		b = binary.LittleEndian.AppendUint64(b, published)
		b = binary.LittleEndian.AppendUint64(b, at)
		return append(b, payload...)
	}
	size := uint32(len(payload))
	reads := 0
	for name, c := range map[string]struct {
		memory []byte
		while  func([]byte) // at each read
		want   bool
	}{
		"there":           {memory: region(2, size, 9, base+contextHead), want: true},
		"another version": {memory: region(3, size, 9, base+contextHead)},
		"another thing":   {memory: append([]byte("NOT"), region(2, size, 9, base+contextHead)...)},
		"being written":   {memory: region(2, size, 0, base+contextHead)},
		"too large":       {memory: region(2, maxContext+1, 9, base+contextHead)},
		"cut":             {memory: region(2, size+1, 9, base+contextHead)},
		"nowhere":         {memory: region(2, size, 9, 1<<60)},
		"no head":         {memory: region(2, size, 9, base+contextHead)[:contextHead-1]},
		"written again":   {memory: region(2, size, 9, base+contextHead), while: func(b []byte) { b[16] = 10 + byte(min(reads, 4)) }, want: true},
		"always written":  {memory: region(2, size, 9, base+contextHead), while: func(b []byte) { b[16]++ }},
	} {
		reads = 0
		got, ok := ReadProcessContext(func(addr uint64, buf []byte) int {
			if reads++; c.while != nil {
				c.while(c.memory)
			}
			if addr < base || addr-base > uint64(len(c.memory)) {
				return 0
			}
			return copy(buf, c.memory[addr-base:])
		}, base)
		if ok != c.want || ok && (len(got.Resource) != 10 || got.Published == 0) {
			t.Errorf("%s: %v, %+v", name, ok, got)
		}
	}
}

func TestFindProcessContext(t *testing.T) {
	for path, want := range map[string]bool{
		"/memfd:OTEL_CTX (deleted)": true, "[anon_shmem:OTEL_CTX]": true, "[anon:OTEL_CTX]": true,
		"/tmp/memfd:OTEL_CTX": false, "": false, "[anon:OTEL]": false,
	} {
		at := FindProcessContext([]MapsEntry{{Start: 0x1000, Path: "/x"}, {Start: 0x2000, Path: path}})
		if (at == 0x2000) != want {
			t.Errorf("%q: %#x", path, at)
		}
	}
}

func TestParseThreadContext(t *testing.T) {
	record := func(valid byte, size uint16, attributes string) []byte {
		b := append(bytes.Repeat([]byte{0xa1}, 16), bytes.Repeat([]byte{0xb2}, 8)...)
		b = binary.LittleEndian.AppendUint16(append(b, valid, 1), size)
		return append(b, attributes...)
	}
	type attributes map[uint8]string
	for name, c := range map[string]struct {
		record []byte
		want   attributes // nil: there is no context
	}{
		"none":             {record(1, 0, ""), attributes{}},
		"two":              {record(1, 8, "\x00\x02ab\x05\x02cd"), attributes{0: "ab", 5: "cd"}},
		"the last counts":  {record(1, 9, "\x00\x01a\x01\x01b\x00\x01c"), attributes{0: "c", 1: "b"}},
		"empty":            {record(1, 2, "\x03\x00"), attributes{3: ""}},
		"not valid":        {record(0, 0, ""), nil},
		"another validity": {record(2, 0, ""), nil},
		"short":            {record(1, 0, "")[:ThreadContextHead-1], nil},
		"longer than told": {record(1, 3, "\x00\x01a\x01\x01b"), attributes{0: "a"}},
		"an end is cut":    {record(1, 7, "\x00\x01a\x01\x09b"), attributes{0: "a"}},
		"was cut":          {record(1, 600, "\x00\x01a\x01"), attributes{0: "a"}},
	} {
		got, ok := ParseThreadContext(c.record)
		if ok != (c.want != nil) {
			t.Errorf("%s: %v", name, ok)
			continue
		}
		if ok && (!got.HasTrace() || got.TraceID[15] != 0xa1 || got.SpanID[7] != 0xb2 || got.Flags != 1) {
			t.Errorf("%s: %+v", name, got)
		}
		all := attributes{}
		for key, value := range got.Attributes() {
			if _, twice := all[key]; twice {
				t.Errorf("%s: %d comes twice", name, key)
			}
			all[key] = string(value)
		}
		if ok && !maps.Equal(all, c.want) {
			t.Errorf("%s: %q, want %q", name, all, c.want)
		}
	}
}

// No bytes make a parser panic, and all that it tells is in them.
func FuzzContexts(f *testing.F) {
	f.Add(contextPayload())
	f.Add(append(bytes.Repeat([]byte{1}, 26), 8, 0, 0, 2, 'a', 'b', 5, 2, 'c', 'd'))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := parseProcessContext(b)
		for _, a := range c.Resource {
			if a.Key == "" {
				t.Error("an attribute without a name")
			}
		}
		thread, _ := ParseThreadContext(b)
		total := 0
		for _, value := range thread.Attributes() {
			total += len(value)
		}
		if total > len(b) {
			t.Errorf("%d bytes of values in %d", total, len(b))
		}
	})
}
