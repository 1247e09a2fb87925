package profile

import "strings"

// Kind says what sort of code a frame runs.
type Kind uint8

// The kinds.
const (
	Unknown Kind = iota // in no known module, or of a kind that is not known
	Native              // compiled to machine code ahead of time
	Go                  // compiled by the Go tool chain
	Kernel              // the kernel and its modules
	JIT                 // generated at run time
	Marker              // no code: says something about the stack
	numKinds
)

var kindNames = [numKinds]string{"unknown", "native", "go", "kernel", "jit", "marker"}

// String returns the name in lower case: "native".
func (k Kind) String() string {
	if k >= numKinds {
		return kindNames[Unknown]
	}
	return kindNames[k]
}

// userBrackets are names in brackets that perf and /proc/PID/maps have for
// memory of user space; others are modules of the kernel.
var userBrackets = map[string]Kind{
	"[unknown]": Unknown, "[vdso]": Native, "[vsyscall]": Native, "[uprobes]": Native,
	"[heap]": JIT, "[stack]": JIT, "[jit]": JIT, "[anon]": JIT,
	"[java]": JIT, "[python]": JIT, "[ruby]": JIT, "[php]": JIT, "[perl]": JIT, "[lua]": JIT, "[r]": JIT, "[javascript]": JIT, "[erlang]": JIT, "[dotnet]": JIT, "[scheme]": JIT,
}

// kindOfPath tells from a module's path what code is in it.
func kindOfPath(path string) Kind {
	base := baseName(path)
	switch {
	case path == "":
		return Unknown
	case path[0] == '[':
		if kind, ok := userBrackets[path]; ok {
			return kind
		}
		if strings.HasPrefix(path, "[anon:") || strings.HasPrefix(path, "[stack:") || strings.HasPrefix(path, "[jit of ") {
			return JIT
		}
		return Kernel
	case path == "vmlinux" || base == "vmlinux" || strings.HasSuffix(path, ".ko") ||
		strings.HasPrefix(path, "bpf_prog_") || strings.Contains(base, ".ko."):
		return Kernel
	case strings.HasPrefix(path, "//anon") || strings.HasPrefix(path, "/memfd:") || strings.HasPrefix(path, "/dev/zero") ||
		strings.HasPrefix(base, "perf-") && strings.HasSuffix(base, ".map") ||
		strings.HasPrefix(base, "jitted-"):
		return JIT
	}
	return Native
}

// kindOfLine tells what a named function is, in a module of a kind: where the
// module does not say, the source file may.
func kindOfLine(module Kind, file string) Kind {
	switch {
	case module != Unknown && module != Go:
		return module
	case strings.HasSuffix(file, ".go"):
		return Go
	case module == Go && !cSource(file):
		return Go
	}
	return Native
}

// cSource reports whether a file is of C or C++, as cgo brings into programs
// in Go.
func cSource(file string) bool {
	for _, ext := range []string{".c", ".h", ".cc", ".cpp", ".cxx", ".hpp"} {
		if strings.HasSuffix(file, ext) {
			return true
		}
	}
	return false
}

// addressName reports whether a function's name only is a module and an
// address, "app+0x2345" or "[jit of 12]+0x7f00", or says that there is none.
func addressName(name string) bool {
	if name == "" || name == "[unknown]" {
		return true
	}
	i := strings.LastIndex(name, "+0x")
	if i < 1 || name[0] != '[' && strings.ContainsAny(name[:i], " (<") {
		return false
	}
	digits := name[i+3:]
	return digits != "" && strings.Trim(digits, "0123456789abcdef") == ""
}
