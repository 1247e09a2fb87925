package loader

import "testing"

// FuzzTexts reads what the kernel says of processes, with names that are theirs, and
// the list of libraries.
func FuzzTexts(f *testing.F) {
	f.Add([]byte("7 (a) b) S 1 7 7 0 -1 4194560 0 0"), "0-3,7")
	f.Add(append(append([]byte(ldCacheMagic), 1, 0, 0, 0), make([]byte, ldCacheHeader+ldCacheEntry)...), "/kubepods/cri-containerd-0a.scope")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if st, err := parseStat(data); err == nil && len(st.comm) > len(data) {
			t.Errorf("%q", st.comm)
		}
		if path := findInLDCache(data, text); len(path) > len(data) {
			t.Errorf("%q", path)
		}
		if cpus, err := parseCPUList(text); err == nil && len(cpus) == 0 {
			t.Errorf("%q: no CPUs", text)
		}
		ContainerOfCgroup(text)
		UnitOfCgroup(text)
		parseField(text)
	})
}
