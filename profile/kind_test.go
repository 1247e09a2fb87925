package profile

import "testing"

// What of a runtime has been written is read as such, and not as a module of the kernel, which
// is in brackets too.
func TestKindOfPath(t *testing.T) {
	for path, want := range map[string]Kind{
		"[java]": JIT, "[python]": JIT, "[ruby]": JIT, "[php]": JIT, "[perl]": JIT, "[lua]": JIT, "[r]": JIT, "[javascript]": JIT, "[erlang]": JIT, "[dotnet]": JIT, "[scheme]": JIT,
		"[jit of 4711]": JIT, "[vdso]": Native, "[kernel.kallsyms]": Kernel, "[nf_tables]": Kernel,
	} {
		if got := kindOfPath(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}
