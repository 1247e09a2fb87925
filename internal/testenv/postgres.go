package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Postgres is a server of PostgreSQL with an empty database.
type Postgres struct {
	Program
	data string // its directory, as it sees that
}

// nobody is who a server runs as: it refuses to as root.
const nobody = 65534

// Command is a process of the server by itself that executes the statements of a file, each of which ends with a semicolon
// and an empty line.
func (p Postgres) Command(statements string) []string {
	return append([]string{"sh", "-c", `exec "$@" <"$0"`, statements}, p.asNobody(p.Path, "--single", "-j", "-D", p.data, "postgres")...)
}

// asNobody is a program beside it with arguments, as who runs the test where that is not root.
func (p Postgres) asNobody(path string, args ...string) []string {
	id := strconv.Itoa(nobody)
	command := Program{path, p.Root}.Command(args...)
	switch {
	case os.Geteuid() != 0:
		return command
	case p.Root == "":
		return append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups"}, command...)
	}
	return append([]string{command[0], "--setuid=" + id, "--setgid=" + id}, command[1:]...)
}

// EachPostgres runs a test with each PostgreSQL that there is.
func EachPostgres(t *testing.T, test func(t *testing.T, server Postgres)) {
	t.Helper()
	const pattern = "usr/lib/postgresql/*/bin/postgres" // mostly in no directory of PATH
	all := Programs("", pattern)
	paths, _ := filepath.Glob("/" + pattern)
	for _, path := range paths {
		all = append(all, Program{Path: path})
	}
	if len(all) == 0 {
		Lacks(t, "no PostgreSQL here")
	}
	for _, program := range all {
		t.Run(program.Name(), func(t *testing.T) {
			dir, seen := program.TempDir(t)
			server := Postgres{program, filepath.Join(seen, "data")}
			if err := os.Chmod(dir, 0o777); err != nil { // nobody makes a directory there
				t.Fatal(err)
			}
			if program.Root == "" {
				if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			command := server.asNobody(strings.TrimSuffix(program.Path, "postgres")+"initdb", "-D", server.data, "-U", "postgres", "--no-sync", "--no-locale")
			Run(t, exec.Command(command[0], command[1:]...))
			test(t, server)
		})
	}
}
