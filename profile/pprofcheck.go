package profile

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// checkPprof walks the messages of an uncompressed pprof file, by
// https://github.com/google/pprof/blob/main/proto/profile.proto, and reports
// the first thing that is wrong with the byte at which it is: what is cut off,
// of a wrong type, or refers to what is not there.
func checkPprof(data []byte) error {
	c := pprofChecker{mappings: idSet{}, functions: idSet{}, locations: idSet{}}
	if err := c.message(data, 0, profileFields, nil); err != nil {
		return err
	}
	switch {
	case c.strings == 0:
		return c.errorf(int64(len(data)), "no table of strings")
	case c.firstString != 0:
		return c.errorf(0, "the first string is not empty")
	case c.sampleTypes == 0:
		return c.errorf(int64(len(data)), "no types of samples")
	}
	// What refers to the tables may come before them.
	c.tablesRead = true
	return c.message(data, 0, profileFields, nil)
}

// refKind is the table that a number refers to.
type refKind uint8

const (
	noRef refKind = iota
	stringRef
	mappingRef
	functionRef
	locationRef
	mappingID
	functionID
	locationID
)

type idSet map[uint64]struct{}

// pprofChecker goes through a file twice: for what is in its tables, and for what refers to that.
type pprofChecker struct {
	tablesRead                     bool
	strings                        int
	firstString                    int // its length
	sampleTypes                    int
	mappings, functions, locations idSet
}

// pprofField says what a field of a message is.
type pprofField struct {
	name    string
	message map[uint64]pprofField // of a field that is a message
	text    bool                  // a field of bytes that is text
	ref     refKind
	counted int // 1 counts sample types, 2 values of a sample
}

var (
	valueTypeFields = map[uint64]pprofField{1: {name: "type", ref: stringRef}, 2: {name: "unit", ref: stringRef}}
	labelFields     = map[uint64]pprofField{
		1: {name: "key", ref: stringRef}, 2: {name: "str", ref: stringRef}, 3: {name: "num"}, 4: {name: "num_unit", ref: stringRef}}
	sampleFields = map[uint64]pprofField{
		1: {name: "location_id", ref: locationRef}, 2: {name: "value", counted: 2}, 3: {name: "label", message: labelFields}}
	mappingFields = map[uint64]pprofField{
		1: {name: "id", ref: mappingID}, 2: {name: "memory_start"}, 3: {name: "memory_limit"}, 4: {name: "file_offset"},
		5: {name: "filename", ref: stringRef}, 6: {name: "build_id", ref: stringRef},
		7: {name: "has_functions"}, 8: {name: "has_filenames"}, 9: {name: "has_line_numbers"}, 10: {name: "has_inline_frames"}}
	lineFields = map[uint64]pprofField{
		1: {name: "function_id", ref: functionRef}, 2: {name: "line"}, 3: {name: "column"}}
	locationFields = map[uint64]pprofField{
		1: {name: "id", ref: locationID}, 2: {name: "mapping_id", ref: mappingRef}, 3: {name: "address"},
		4: {name: "line", message: lineFields}, 5: {name: "is_folded"}}
	functionFields = map[uint64]pprofField{
		1: {name: "id", ref: functionID}, 2: {name: "name", ref: stringRef}, 3: {name: "system_name", ref: stringRef},
		4: {name: "filename", ref: stringRef}, 5: {name: "start_line"}}
	profileFields = map[uint64]pprofField{
		1: {name: "sample_type", message: valueTypeFields, counted: 1}, 2: {name: "sample", message: sampleFields},
		3: {name: "mapping", message: mappingFields}, 4: {name: "location", message: locationFields},
		5: {name: "function", message: functionFields}, 6: {name: "string_table", text: true},
		7: {name: "drop_frames", ref: stringRef}, 8: {name: "keep_frames", ref: stringRef}, 9: {name: "time_nanos"},
		10: {name: "duration_nanos"}, 11: {name: "period_type", message: valueTypeFields}, 12: {name: "period"},
		13: {name: "comment", ref: stringRef}, 14: {name: "default_sample_type", ref: stringRef}, 15: {name: "doc_url", ref: stringRef}}
)

func (c *pprofChecker) errorf(at int64, format string, args ...any) error {
	return pprofErrorf(at, format, args...)
}

func pprofErrorf(at int64, format string, args ...any) error {
	return &FormatError{"pprof", at, 0, fmt.Sprintf(format, args...)}
}

// pprofTag reads the tag of n bytes with which a field begins, at a byte of the file.
func pprofTag(data []byte, at int64) (number, wire uint64, n int, err error) {
	tag, n := binary.Uvarint(data)
	number, wire = tag>>3, tag&7
	switch {
	case n <= 0:
		err = pprofErrorf(at, "a field's tag is cut off or no number")
	case number == 0:
		err = pprofErrorf(at, "field 0: this is no pprof file, or damaged")
	}
	return number, wire, n, err
}

// message checks the fields of a message that begins at a byte of the file.
// values counts the values of the sample that the message is, if it is one.
func (c *pprofChecker) message(data []byte, at int64, fields map[uint64]pprofField, values *int) error {
	for i := 0; i < len(data); {
		start := at + int64(i)
		number, wire, n, err := pprofTag(data[i:], start)
		if err != nil {
			return err
		}
		i += n
		field, known := fields[number]
		switch wire {
		case 0:
			v, n := binary.Uvarint(data[i:])
			if n <= 0 {
				return c.errorf(at+int64(i), "the number of field %s is cut off or too large", fieldName(field, number))
			}
			i += n
			if known && (field.message != nil || field.text) {
				return c.errorf(start, "field %s is a number, and should not be", field.name)
			}
			if err := c.number(field, v, start, values); err != nil {
				return err
			}
		case 1, 5:
			size := 8
			if wire == 5 {
				size = 4
			}
			if len(data)-i < size {
				return c.errorf(start, "field %s is cut off", fieldName(field, number))
			}
			i += size
			if known {
				return c.errorf(start, "field %s is of fixed size, and should not be", field.name)
			}
		case 2:
			length, n := binary.Uvarint(data[i:])
			if n <= 0 || length > uint64(len(data)-i-n) {
				return c.errorf(at+int64(i), "field %s is said to be %d bytes long, and %d are left", fieldName(field, number), length, max(len(data)-i-max(n, 0), 0))
			}
			i += n
			body := data[i : i+int(length)]
			if known {
				if err := c.bytes(field, body, at+int64(i), start, values); err != nil {
					return err
				}
			}
			i += int(length)
		default:
			return c.errorf(start, "field %s is of wire type %d, which pprof does not have", fieldName(field, number), wire)
		}
	}
	return nil
}

func fieldName(f pprofField, number uint64) string {
	if f.name == "" {
		return fmt.Sprint(number)
	}
	return f.name
}

// number takes a number.
func (c *pprofChecker) number(f pprofField, v uint64, at int64, values *int) error {
	if f.counted == 2 && values != nil {
		*values++
	}
	switch f.ref {
	case noRef:
		return nil
	case mappingID:
		return c.declare(c.mappings, "mapping", v, at)
	case functionID:
		return c.declare(c.functions, "function", v, at)
	case locationID:
		return c.declare(c.locations, "location", v, at)
	}
	return c.checkRef(f.ref, v, at)
}

// declare notes an ID of an entry of a table.
func (c *pprofChecker) declare(ids idSet, what string, v uint64, at int64) error {
	if c.tablesRead {
		return nil
	}
	if v == 0 {
		return c.errorf(at, "a %s's ID is 0", what)
	}
	if _, again := ids[v]; again {
		return c.errorf(at, "there are several %ss with ID %d", what, v)
	}
	ids[v] = struct{}{}
	return nil
}

// bytes takes a field with a length: text, a message, or packed numbers.
func (c *pprofChecker) bytes(f pprofField, body []byte, at, tagAt int64, values *int) error {
	switch {
	case f.text:
		if c.tablesRead {
			return nil
		}
		if !utf8.Valid(body) {
			return c.errorf(at, "string %d is not UTF-8", c.strings)
		}
		if c.strings == 0 {
			c.firstString = len(body)
		}
		c.strings++
	case f.message != nil:
		if f.counted == 1 && !c.tablesRead {
			c.sampleTypes++
		}
		n := 0
		if err := c.message(body, at, f.message, &n); err != nil {
			return err
		}
		if f.name == "sample" && c.tablesRead && n != c.sampleTypes {
			return c.errorf(tagAt, "a sample has %d values, where the profile has %d types of samples", n, c.sampleTypes)
		}
	default:
		for i := 0; i < len(body); {
			v, n := binary.Uvarint(body[i:])
			if n <= 0 {
				return c.errorf(at+int64(i), "a number in field %s is cut off or too large", f.name)
			}
			if err := c.number(f, v, at+int64(i), values); err != nil {
				return err
			}
			i += n
		}
	}
	return nil
}

// checkRef checks a number that refers to an entry of a table.
func (c *pprofChecker) checkRef(kind refKind, v uint64, at int64) error {
	if !c.tablesRead {
		return nil
	}
	var ids idSet
	what := ""
	switch kind {
	case stringRef:
		if v >= uint64(c.strings) {
			return c.errorf(at, "string %d of %d", int64(v), c.strings)
		}
		return nil
	case mappingRef:
		ids, what = c.mappings, "mapping"
		if v == 0 {
			return nil
		}
	case functionRef:
		ids, what = c.functions, "function"
	case locationRef:
		ids, what = c.locations, "location"
	}
	if _, ok := ids[v]; !ok {
		return c.errorf(at, "there is no %s with ID %d", what, v)
	}
	return nil
}
