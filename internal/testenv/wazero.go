package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// EachWazero runs a test with the program of steppers/wazero/testdata/program, built with flags and each of the versions of
// wazero that SWBPF_WAZERO names, separated by blanks: "v1.8.0 v1.12.0". CI has these in Go's cache of modules. Without
// SWBPF_LONG it is the last.
func EachWazero(t *testing.T, flags []string, test func(t *testing.T, program string)) {
	t.Helper()
	versions := strings.Fields(os.Getenv("SWBPF_WAZERO"))
	if len(versions) == 0 {
		t.Skip("no wazero: SWBPF_WAZERO names no version")
	}
	_, file, _, _ := runtime.Caller(0)
	source := os.DirFS(filepath.Join(filepath.Dir(file), "../../steppers/wazero/testdata/program"))
	for _, version := range Some(versions) {
		t.Run(version, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, source); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("module program\n\ngo 1.26\n\nrequire github.com/tetratelabs/wazero %s\n", version)
			if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, "program")
			build := exec.Command("go", append(append([]string{"build", "-mod=mod"}, flags...), "-o", program, ".")...)
			build.Dir = dir
			build.Env = append(build.Environ(), "CGO_ENABLED=0")
			Run(t, build)
			test(t, program)
		})
	}
}
