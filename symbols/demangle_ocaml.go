package symbols

import (
	"strconv"
	"strings"
)

// demangleOCaml returns the name in a symbol of OCaml's native compiler:
// "Stdlib.List.map" of "camlStdlib__List__map_483", and of
// "camlStdlib__List.map_483", as it is from OCaml 5.1 on. The number that tells
// values of one name apart is left out, but not that of functions without a name.
func demangleOCaml(name string) (out string, ok bool) {
	rest, ok := strings.CutPrefix(name, "caml")
	if !ok || rest == "" || rest[0] < 'A' || rest[0] > 'Z' {
		return "", false
	}
	var b []byte
	for { // modules, which begin with a capital; a functor does, too
		i, n := strings.Index(rest, "__"), len("__")
		if dot := strings.IndexByte(rest, '.'); dot >= 0 && (i < 0 || dot < i) {
			i, n = dot, len(".")
		}
		if i < 0 && len(b) > 0 {
			break
		}
		if i <= 0 || len(rest) == i+n {
			return "", false
		}
		b = append(append(b, rest[:i]...), '.')
		if rest = rest[i+n:]; rest[0] < 'A' || rest[0] > 'Z' {
			break
		}
	}
	switch rest {
	case "entry", "code_begin", "code_end", "data_begin", "data_end", "frametable", "gc_roots":
	default:
		i := strings.LastIndexByte(rest, '_')
		if i <= 0 || !isDecimal(rest[i+1:]) {
			return "", false
		}
		if rest[:i] != "fun" {
			rest = rest[:i]
		}
	}
	for ; rest != ""; rest = rest[1:] {
		c := rest[0]
		if c == '$' { // and what cannot be in a symbol, in hexadecimal
			if len(rest) < 3 {
				return "", false
			}
			n, err := strconv.ParseUint(rest[1:3], 16, 8)
			if err != nil || n <= ' ' {
				return "", false
			}
			c, rest = byte(n), rest[2:]
		}
		b = append(b, c)
	}
	return string(b), true
}

func isDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
