package symbols

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// isAda reports whether a DW_AT_language is Ada (DWARF 5, table 7.17, and later
// additions to it).
func isAda(language uint64) bool {
	switch language {
	case 0x03, 0x0d, 0x2e, 0x2f: // 83, 95, 2005, 2012
		return true
	}
	return false
}

// demangleAda returns the name that GNAT has encoded (exp_dbug.ads of its sources),
// "shapes.\"*\"" of "shapes__Omultiply__2", without what tells overloaded ones apart.
// A name of C has the same form: it is for those alone of which the debug
// information says that they are Ada. What is not encoded so is returned unchanged.
func demangleAda(name string, mode DemangleMode) string {
	rest := strings.TrimPrefix(name, "_ada_") // of a subprogram in no package
	if mode == DemangleNone || len(name) > maxMangled || rest == "" || rest[0] < 'a' || rest[0] > 'z' {
		return name
	}
	clone := ""
	if i := strings.IndexByte(rest, '.'); i >= 0 {
		rest, clone = rest[:i], rest[i:]
		if isDecimal(clone[1:]) { // tells overloaded ones apart
			clone = ""
		}
	}
	var b []byte
	for part := range strings.SplitSeq(rest, "__") {
		if at := strings.LastIndexByte(part, 'X'); at > 0 && strings.Trim(part[at:], "Xbn") == "" { // in the body of a package
			part = part[:at]
		}
		if len(b) > 0 && overload(part) {
			continue
		}
		if own, ok := adaOwn[part]; ok && len(b) > 0 {
			b = append(b, own...)
			continue
		}
		if len(b) > 0 {
			b = append(b, '.')
		}
		var ok bool
		if b, ok = adaPart(b, part); !ok {
			return name
		}
	}
	return string(b) + clone
}

// adaOwn are parts that the compiler makes.
var adaOwn = map[string]string{
	"_assign": ".\":=\"", "_size": "'Size", "_alignment": "'Alignment", "_elabb": "'Elab_Body", "_elabs": "'Elab_Spec",
}

// overload reports whether a part is a number that tells overloaded names apart, or
// several: "2", "2_3".
func overload(part string) bool {
	return part != "" && part[0] != '_' && strings.Trim(part, "0123456789_") == ""
}

// adaPart adds the name of a unit, or in it.
func adaPart(b []byte, part string) ([]byte, bool) {
	if op, ok := strings.CutPrefix(part, "O"); ok {
		op, ok := adaOperators[op]
		return append(append(append(b, '"'), op...), '"'), ok
	}
	from := len(b)
	for i := 0; i < len(part); i++ {
		c := part[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' && i > 0 || c == '_' && i > 0 && i < len(part)-1 && adaLower(part[i+1]) {
			b = append(b, c)
			continue
		}
		if width := adaWide[c]; width > 0 {
			digits := part[i:]
			if strings.HasPrefix(digits, "WW") {
				i, width = i+1, 8
			}
			if r, err := strconv.ParseUint(part[i+1:min(i+1+width, len(part))], 16, 32); err == nil && len(part)-i-1 >= width && r <= utf8.MaxRune {
				b = utf8.AppendRune(b, rune(r))
				i += width
				continue
			}
			return b, false
		}
		meaning, ok := adaSuffix(part[i:])
		return append(b, meaning...), ok && len(b) > from
	}
	return b, len(b) > from
}

func adaLower(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// adaWide has the letters before characters in hexadecimal: Latin-1, and 16 bits;
// WW is before 32 bits.
var adaWide = map[byte]int{'U': 2, 'W': 4}

// adaSuffix returns what the capitals at the end of a part add to its name: nothing
// for the body of a task (TKB) and what is declared in it (TK), an operation of a
// protected object without or with its lock (N, P), an entry (_E) and its barrier (_B).
func adaSuffix(s string) (meaning string, ok bool) {
	switch s {
	case "TKB", "TK", "N", "P", "S":
		return "", true
	case "DA":
		return ".Adjust", true
	case "DF":
		return ".Finalize", true
	case "DI":
		return ".Initialize", true
	case "SI":
		return "'Input", true
	case "SO":
		return "'Output", true
	case "SR":
		return "'Read", true
	case "SW":
		return "'Write", true
	}
	if len(s) < 3 || s[0] != '_' || s[1] != 'E' && s[1] != 'B' {
		return "", false
	}
	return "", isDecimal(strings.TrimSuffix(s[2:], "s"))
}

var adaOperators = map[string]string{
	"abs": "abs", "and": "and", "mod": "mod", "not": "not", "or": "or", "rem": "rem", "xor": "xor",
	"eq": "=", "ne": "/=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
	"add": "+", "subtract": "-", "concat": "&", "multiply": "*", "divide": "/", "expon": "**",
}
