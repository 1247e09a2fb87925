package profile

import (
	"regexp"
	"sync"
)

// pattern returns a regular expression that is compiled when it is asked for
// first: those who read no profile do not wait for it when they start.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
