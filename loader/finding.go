package loader

import (
	"fmt"
	"slices"
)

// Level says how far something that a recording uses is there.
type Level uint8

// The levels.
const (
	OK      Level = iota
	Limited       // it is there, but not all of it
	Missing
)

var levelNames = [...]string{"ok", "limited", "missing"}

// String returns the name in lower case: "limited".
func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return fmt.Sprintf("Level(%d)", uint8(l))
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(text []byte) error {
	i := slices.Index(levelNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown level %q", text)
	}
	*l = Level(i)
	return nil
}

// Finding is what an examination says of one thing that a recording uses.
type Finding struct {
	Name  string `json:"name"`
	Level Level  `json:"state"`
	// Required says that nothing can be recorded while it is missing.
	Required bool   `json:"required"`
	Found    string `json:"found"`             // what there is, or what the kernel said
	Without  string `json:"without,omitempty"` // what its lack or limit costs
	Remedy   string `json:"remedy,omitempty"`
}

// found is a Finding of something that is there.
func found(name, format string, args ...any) Finding {
	return Finding{Name: name, Found: fmt.Sprintf(format, args...)}
}

// lacks makes f one of the given level, and says what that costs and what to
// do about it.
func (f Finding) lacks(level Level, without, remedy string) Finding {
	f.Level, f.Without, f.Remedy = level, without, remedy
	return f
}

// required makes f one without which nothing works.
func (f Finding) required() Finding {
	f.Required = true
	return f
}
