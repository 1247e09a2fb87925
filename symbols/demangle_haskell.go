package symbols

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// demangleHaskell returns the qualified name in a symbol of GHC's code, "Data.Map.Internal.link"
// of "containerszm0zi7_DataziMapziInternal_link_info", without the package. So that names of
// C that look alike stay what they are, the module is Main or has a dot, and what the symbol
// is of is code. The encoding is GHC.Utils.Encoding's of GHC, of each part of its own.
func demangleHaskell(name string) (out string, ok bool) {
	base := name
	for _, kind := range []string{"_con_info", "_info", "_slow", "_fast", "_entry", "_ret"} {
		if base, ok = strings.CutSuffix(name, kind); ok {
			break
		}
	}
	parts := strings.Split(base, "_")
	if !ok || len(parts) < 2 || len(parts) > 3 {
		return "", false
	}
	module, of := parts[len(parts)-2], parts[len(parts)-1]
	if of == "" || module == "" || module[0] < 'A' || module[0] > 'Z' || module != "Main" && !strings.Contains(module, "zi") {
		return "", false
	}
	if module, ok = decodeZ(module); !ok {
		return "", false
	}
	of, ok = decodeZ(of)
	return module + "." + of, ok
}

// What two letters stand for, in the order of the second ones.
const (
	zLower = "abcdeghilmnpqrstuvz"
	zSigns = "&|^$=>#.<-!+'\\/*_%z"
	zUpper = "CLMNRZ"
	zMarks = ":([])Z"
)

// decodeZ undoes GHC's encoding of names.
func decodeZ(s string) (out string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != 'z' && s[i] != 'Z' {
			b.WriteByte(s[i])
			continue
		}
		letters, signs := zLower, zSigns
		if s[i] == 'Z' {
			letters, signs = zUpper, zMarks
		}
		if i++; i == len(s) {
			return "", false
		}
		if at := strings.IndexByte(letters, s[i]); at >= 0 {
			b.WriteByte(signs[at])
			continue
		}
		end := i
		for end < len(s) && (s[end] >= '0' && s[end] <= '9' || s[i-1] == 'z' && s[end] >= 'a' && s[end] <= 'f') {
			end++
		}
		if end == len(s) || s[i] < '0' || s[i] > '9' {
			return "", false
		}
		if s[i-1] == 'z' { // a character
			n, err := strconv.ParseUint(s[i:end], 16, 32)
			if err != nil || n <= ' ' || n > utf8.MaxRune || s[end] != 'U' {
				return "", false
			}
			b.WriteRune(rune(n))
		} else { // a tuple
			n, err := strconv.Atoi(s[i:end])
			if err != nil || n > 64 {
				return "", false
			}
			commas := strings.Repeat(",", max(n-1, 0))
			switch s[end] {
			case 'T':
				b.WriteString("(" + commas + ")")
			case 'H':
				b.WriteString("(#" + commas + "#)")
			default:
				return "", false
			}
		}
		i = end
	}
	return b.String(), true
}
