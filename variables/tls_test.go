package variables_test

import (
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// TestThreadLocalOfLibrary reads thread-local variables of a library that was
// loaded late, of both kinds: at a distance from the thread pointer, and
// through the thread's vector.
func TestThreadLocalOfLibrary(t *testing.T) {
	for _, c := range []struct{ compiler, model string }{
		{"gcc", "global-dynamic"}, {"gcc", "local-dynamic"}, {"gcc", "initial-exec"},
		{"musl-gcc", "global-dynamic"},
	} {
		model := c.compiler + " " + c.model
		lib := compile(t, "tlslib.c", c.compiler+" -g -O0 -shared -fPIC -ftls-model="+c.model)
		path := compile(t, "tlslib.c", c.compiler+" -g -DLIB="+lib)
		stopped(t, path, func(w *unwind.Walker, walk []unwind.Frame) {
			r := swbpf.Variables(w)
			for name, want := range map[string]string{"mine": "24", "zero": "-7"} {
				i, v := find(t, r, walk, "wait_here", name, false)
				value, err := r.Value(walk, i, v)
				if err != nil {
					t.Errorf("%s: %s: %v", model, name, err)
					continue
				}
				if got := value.Format(variables.Format{}); got != want {
					t.Errorf("%s: %s is %s, want %s", model, name, got, want)
				}
			}
		})
	}
}
