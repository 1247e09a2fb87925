package symbols

import "strings"

// demanglePascal returns the name in a symbol of Free Pascal, in capitals as it has all names:
// "CLASSES.TSTRINGS.ADD" of "CLASSES$_$TSTRINGS_$__$$_ADD$ANSISTRING$$LONGINT", and "PROG.OUTER.INNER"
// of "P$PROG$_$OUTER$LONGINT_$$_INNER" for a procedure within another. Parameters and the
// result are left out. Where a name may be read in two ways it is none.
func demanglePascal(name string) (out string, ok bool) {
	i := strings.LastIndex(name, "_$$_")
	if i < 0 {
		return "", false
	}
	scope, procedure := strings.TrimPrefix(name[:i], "P$"), strings.TrimPrefix(name[i+len("_$$_"):], "$") // of an operator
	unit, within, _ := strings.Cut(scope, "$_$")
	if unit == "" || unit[0] >= '0' && unit[0] <= '9' || strings.Trim(unit, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != "" {
		return "", false
	}
	parts := []string{unit}
	for within != "" { // types, and a procedure, with its parameters, if it is one within
		var part string
		part, within, _ = strings.Cut(within, "_$_")
		part, parameters, _ := strings.Cut(part, "$")
		if strings.Contains(parameters, "_") { // or another procedure
			return "", false
		}
		parts = append(parts, part)
	}
	procedure, _, _ = strings.Cut(procedure, "$")
	for _, part := range append(parts, procedure)[1:] {
		if part == "" || strings.Trim(part, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return "", false
		}
	}
	return strings.Join(append(parts, procedure), "."), true
}
