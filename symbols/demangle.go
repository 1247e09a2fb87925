package symbols

import (
	"strings"

	"github.com/ianlancetaylor/demangle"
	"github.com/swbpf/swbpf/procstate"
)

// DemangleMode says how much of a mangled name is shown.
type DemangleMode uint8

// The modes. Simple drops what makes C++ names long: function and template
// parameters and return types, as pprof does; a clone's suffix stays.
const (
	DemangleSimple DemangleMode = iota
	DemangleFull
	DemangleNone
)

// ParseDemangleMode reads "simple", "full" or "none".
func ParseDemangleMode(s string) (DemangleMode, bool) {
	switch s {
	case "simple", "":
		return DemangleSimple, true
	case "full":
		return DemangleFull, true
	case "none":
		return DemangleNone, true
	}
	return 0, false
}

// maxMangled bounds the names that are demangled; longer ones stay as they
// are, as their demangled form can be exponentially larger.
const maxMangled = 1 << 14

// demangledLimit bounds a demangled name to 2^16 bytes.
const demangledLimit = 16

// Demangle makes a C++ or Rust name readable. Names of other languages, and
// damaged ones, are returned unchanged.
func Demangle(name string, mode DemangleMode) string {
	if mode == DemangleNone || len(name) > maxMangled || !mangled(name) {
		return name
	}
	base, at, _ := strings.Cut(name, "@") // a PLT entry or a version
	if at != "" {
		at = "@" + at
	}
	limit := demangle.MaxLength(demangledLimit)
	if mode == DemangleFull {
		return demangle.Filter(base, limit) + at
	}
	out, err := demangle.ToString(base, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams, limit)
	if err != nil {
		return name
	}
	if strings.HasPrefix(name, "_R") { // empty brackets stay of what was left out
		out = emptyBrackets.Replace(out)
	}
	return out + cloneSuffix(base) + at
}

var emptyBrackets = strings.NewReplacer("::<>", "", "<>", "")

func mangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "___Z")
}

// cloneSuffix returns what a compiler appended to a mangled name to tell
// clones of a function apart: ".cold", ".part.0", ".constprop.1.isra.0". The
// name proper has no dot but in Rust's legacy mangling, within its length.
func cloneSuffix(name string) string {
	i := strings.IndexByte(name, '.')
	if strings.HasPrefix(name, "_ZN") {
		if j := strings.LastIndex(name, "17h"); j >= 0 && len(name) > j+19 && name[j+19] == 'E' {
			return name[j+20:]
		}
	}
	if i < 0 {
		return ""
	}
	return name[i:]
}

// goFunction is the display name of a Go function.
func goFunction(name string, mode DemangleMode) string {
	if mode != DemangleSimple {
		return name
	}
	return procstate.GoName(name)
}
