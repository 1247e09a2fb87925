package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxSourceFile bounds the source files that are read.
const maxSourceFile = 16 << 20

// sourceExtensions are those of files that are shown. A profile comes from
// others and names files as it likes: what does not look like source is not
// read for it.
var sourceExtensions = []string{
	".c", ".h", ".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tcc", ".cu",
	".go", ".s", ".asm", ".rs", ".zig", ".d", ".f", ".f90", ".pas", ".adb", ".ads", ".nim", ".v", ".odin", ".swift", ".m", ".mm",
	".java", ".kt", ".scala", ".clj", ".groovy", ".cs", ".fs", ".ml", ".mli", ".hs", ".erl", ".ex", ".exs", ".lisp", ".scm",
	".js", ".mjs", ".cjs", ".ts", ".tsx", ".jsx", ".py", ".pyx", ".rb", ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".y", ".l",
}

// sources reads the source files that a profile names.
type sources struct {
	named map[string]bool
}

var errNotHere = errors.New("the file is not on this machine")

// lines returns the lines of a file, without their ends.
func (s *sources) lines(path string) ([]string, error) {
	ext := strings.ToLower(filepath.Ext(path))
	if !s.named[path] || !filepath.IsAbs(path) || !slices.Contains(sourceExtensions, ext) && !isHeader(path) {
		return nil, errNotHere
	}
	// A file that is none, such as a FIFO, must not make the page hang.
	st, err := os.Stat(path)
	if err != nil || !st.Mode().IsRegular() {
		return nil, errNotHere
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSourceFile+1))
	switch {
	case err != nil:
		return nil, errors.New("the file cannot be read")
	case len(text) > maxSourceFile:
		return nil, fmt.Errorf("the file is larger than %d MiB", maxSourceFile>>20)
	case !utf8.Valid(text):
		text = []byte(strings.ToValidUTF8(string(text), "\uFFFD"))
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return lines, nil
}

// isHeader reports whether a path is that of a header without extension, as
// C++ has them.
func isHeader(path string) bool {
	return filepath.Ext(path) == "" && strings.HasPrefix(path, "/usr/include/c++/")
}
