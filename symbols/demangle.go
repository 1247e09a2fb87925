package symbols

import (
	"math/bits"
	"strconv"
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

// Demangle makes a name of C++, Rust, D, OCaml, Free Pascal, Swift or Haskell readable, the latter five without
// parameters in any mode. Names of other languages, and damaged ones, are returned
// unchanged, but for LLVM's number of a module.
func Demangle(name string, mode DemangleMode) string {
	if mode == DemangleNone || len(name) > maxMangled {
		return name
	}
	name = withoutModule(name)
	if !mangled(name) {
		for _, demangle := range []func(string) (string, bool){demangleD, demangleOCaml, demanglePascal, demangleSwift, demangleHaskell} {
			if out, ok := demangle(name); ok {
				return out
			}
		}
		return name
	}
	base, at, _ := strings.Cut(name, "@") // a PLT entry or a version
	if at != "" {
		at = "@" + at
	}
	limit := demangle.MaxLength(demangledLimit)
	separated := separateRust(base)
	if mode == DemangleFull {
		if out, err := demangle.ToString(separated, limit); err == nil {
			return out + at
		}
		return name
	}
	out, err := demangle.ToString(separated, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams, limit)
	if err != nil {
		return name
	}
	if strings.HasPrefix(name, "_R") { // empty brackets stay of what was left out
		out = emptyBrackets.Replace(out)
	}
	return out + cloneSuffix(base) + at
}

// withoutModule leaves out ".llvm." with the number of a module, which LLVM gives local
// functions that it calls from another one. It is another with each change of the source: as
// in the kernel's table of symbols, a function has one name before and after.
func withoutModule(name string) string {
	before, number, ok := strings.Cut(name, ".llvm.")
	if !ok {
		return name
	}
	rest := strings.TrimLeft(number, "0123456789")
	if rest == number || rest != "" && rest[0] != '.' && rest[0] != '@' {
		return name
	}
	return before + rest
}

var emptyBrackets = strings.NewReplacer("::<>", "", "<>", "")

func mangled(name string) bool {
	return strings.HasPrefix(name, "_Z") || strings.HasPrefix(name, "_R") || strings.HasPrefix(name, "___Z")
}

// separateRust puts an underscore before identifiers of Rust's legacy mangling that
// begin with one: the package demangle takes that for the separator of the newer
// mangling, and drops it.
func separateRust(name string) string {
	end := strings.LastIndex(name, "17h")
	if !strings.HasPrefix(name, "_ZN") || end < 0 || len(name) < end+20 || name[end+19] != 'E' || !isRustHash(name[end+3:end+19]) {
		return name
	}
	out := []byte("_ZN")
	for rest := name[3:end]; rest != ""; {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n > len(rest)-digits || n == 0 {
			return name
		}
		id := rest[digits : digits+n]
		if id[0] == '_' {
			id = "_" + id
		}
		out = append(strconv.AppendInt(out, int64(len(id)), 10), id...)
		rest = rest[digits+n:]
	}
	return string(append(out, name[end:]...))
}

// isRustHash reports whether 16 characters are what the package demangle takes for
// the hash that ends Rust's legacy names.
func isRustHash(s string) bool {
	seen := 0
	for _, c := range s {
		i := strings.IndexRune("0123456789abcdef", c)
		if i < 0 {
			return false
		}
		seen |= 1 << i
	}
	return bits.OnesCount(uint(seen)) >= 5
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

// goFunction is the display name of a function in Go's table, which has also that of C++
// which Go's linker has put in.
func goFunction(f *procstate.GoFunc, name string, mode DemangleMode) string {
	if !f.HasSPDeltas() {
		return Demangle(name, mode)
	}
	if mode != DemangleSimple {
		return name
	}
	return procstate.GoName(name)
}
