package loader

import (
	"fmt"
	"os"
	"strings"
)

// playRole does what a test wants done in another process: the test binary
// started with SWBPF_TEST_ROLE, a name and its arguments.
func playRole(role string) int {
	name, arg, _ := strings.Cut(role, " ")
	err := fmt.Errorf("unknown role %q", role)
	switch name {
	case "sample":
		err = sampleMyself()
	case "sideband":
		err = openSidebandUnlocked()
	case "examine":
		err = printFindings()
	case "event":
		err = openEvent(arg)
	case "files":
		err = openWithFiles(arg)
	case "namespace":
		err = sampleInNamespace(arg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
