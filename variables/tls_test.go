package variables_test

import (
	"strings"
	"testing"

	swbpf "github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/unwind"
	"github.com/swbpf/swbpf/variables"
)

// TestThreadLocalOfLibrary reads thread-local variables of a library that was
// loaded late, of all kinds: at a distance from the thread pointer, through
// the thread's vector, and by descriptors.
func TestThreadLocalOfLibrary(t *testing.T) {
	for _, c := range []struct{ compiler, model string }{
		{"gcc", "-ftls-model=global-dynamic"}, {"gcc", "-ftls-model=local-dynamic"}, {"gcc", "-ftls-model=initial-exec"},
		{"g++ -x c++", "-ftls-model=global-dynamic"}, {"g++ -x c++", "-ftls-model=initial-exec"},
		{"gcc", "-mtls-dialect=gnu2"}, {"g++ -x c++", "-mtls-dialect=gnu2"}, {"clang-19", "-mtls-dialect=gnu2"},
		{"gcc -m32", "-ftls-model=global-dynamic"}, {"gcc -m32", "-ftls-model=local-dynamic"}, {"gcc -m32", "-ftls-model=initial-exec"},
		{"g++ -x c++ -m32", "-ftls-model=global-dynamic"}, {"g++ -x c++ -m32", "-ftls-model=initial-exec"}, {"gcc -m32", "-mtls-dialect=gnu2"},
		{"musl-gcc", "-ftls-model=global-dynamic"}, {"musl-gcc", "-mtls-dialect=gnu2"},
	} {
		if strings.Contains(c.compiler, "-m32") && !testenv.Runs32Bit(t) {
			continue
		}
		lib := compile(t, "tlslib.c", c.compiler+" -g -O0 -shared -fPIC "+c.model)
		path := compile(t, "tlslib.c", strings.Replace(c.compiler, "g++ -x c++", "gcc", 1)+" -g -DLIB="+lib)
		stopped(t, path, func(w *unwind.Walker, walk []unwind.Frame) {
			r := swbpf.Variables(w)
			for name, want := range map[string]string{"mine": "24", "zero": "-7"} {
				i, v := find(t, r, walk, "waiting", name, false)
				value, err := r.Value(walk, i, v)
				if err != nil {
					t.Errorf("%s %s: %s: %v", c.compiler, c.model, name, err)
					continue
				}
				if got := value.Format(variables.Format{}); got != want {
					t.Errorf("%s %s: %s is %s, want %s", c.compiler, c.model, name, got, want)
				}
			}
		})
	}
}
