package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// readJSON reads the formats that are JSON: speedscope's and that of the
// Firefox Profiler.
func readJSON(data []byte, o ReadOptions) (*Profile, error) {
	if i := invalidUTF8(string(data)); i >= 0 {
		return nil, &FormatError{"JSON", int64(i), 0, "the text is not UTF-8"}
	}
	var head struct {
		Schema string `json:"$schema"`
		Meta   *struct {
			Preprocessed *int `json:"preprocessedProfileVersion"`
			Version      *int `json:"version"`
		}
		TraceEvents, Nodes json.RawMessage
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, jsonError("JSON", data, err)
	}
	switch {
	case head.Schema == speedscopeSchema:
		return readSpeedscope(data, o)
	case head.Meta != nil && head.Meta.Preprocessed != nil:
		return readFirefox(data, o)
	case head.Meta != nil && head.Meta.Version != nil:
		return nil, errors.New("this is a raw profile of Gecko; open it in https://profiler.firefox.com, save it from there, and read that")
	case head.TraceEvents != nil || head.Nodes != nil:
		return nil, errors.New("this is a trace or profile of Chrome, which is not read here")
	}
	return nil, errors.New("this JSON is neither a speedscope file nor a profile of the Firefox Profiler")
}

// jsonError says where decoding failed.
func jsonError(format string, data []byte, err error) error {
	offset := int64(len(data))
	var syntax *json.SyntaxError
	var typed *json.UnmarshalTypeError
	if errors.As(err, &syntax) {
		offset = syntax.Offset
	} else if errors.As(err, &typed) {
		offset = typed.Offset
	}
	return &FormatError{format, offset, 0, err.Error()}
}

// jsonErrorAt says what is wrong with a value, which path leads to: names of
// fields and indices of lists.
func jsonErrorAt(format string, data []byte, path []any, text string, args ...any) error {
	where := ""
	for _, step := range path {
		if name, ok := step.(string); ok && where != "" {
			where += "." + name
		} else if ok {
			where = name
		} else {
			where += fmt.Sprintf("[%d]", step)
		}
	}
	return &FormatError{format, jsonOffset(data, path), 0, where + ": " + fmt.Sprintf(text, args...)}
}

// jsonOffset returns where the value is that path leads to, or the value
// nearest to it that there is.
func jsonOffset(data []byte, path []any) int64 {
	d := json.NewDecoder(bytes.NewReader(data))
	at := func() int64 {
		offset := d.InputOffset()
		for offset < int64(len(data)) && bytes.IndexByte([]byte(" \t\r\n:,"), data[offset]) >= 0 {
			offset++
		}
		return offset
	}
	var skipped json.RawMessage
	for _, step := range path {
		before := at()
		if _, err := d.Token(); err != nil {
			return before
		}
		name, isName := step.(string)
		index, _ := step.(int)
		found := false
		for i := 0; d.More() && !found; i++ {
			if isName {
				key, err := d.Token()
				if err != nil {
					return before
				}
				found = key == name
			} else {
				found = i == index
			}
			if !found && d.Decode(&skipped) != nil {
				return before
			}
		}
		if !found {
			return before
		}
	}
	return at()
}
