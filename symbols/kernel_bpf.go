package symbols

import (
	"strings"
	"sync"

	"github.com/cilium/ebpf"
)

// bpfFunctions are the functions of the BPF programs that are loaded. The
// kernel tells where the code ends of those only, and lists them only, that
// came by bpf(2): between them lie socket and seccomp filters without a name.
type bpfFunctions struct {
	once sync.Once
	size map[uint64]uint64 // by address, in bytes
}

// maxTrampoline bounds the code that leads to BPF programs, whose size is not
// told: it has a page.
const maxTrampoline = 4 << 10

// holds reports whether the function at an address reaches to an offset. It
// asks the kernel on first use.
func (b *bpfFunctions) holds(start uint64, name string, off uint64) bool {
	if !strings.HasPrefix(name, "bpf_prog_") {
		return off < maxTrampoline
	}
	b.once.Do(func() { b.size = bpfSizes() })
	return off < b.size[start]
}

// bpfSizes asks for the functions of all BPF programs. It returns those that
// it is told: none without CAP_SYS_ADMIN.
func bpfSizes() map[uint64]uint64 {
	sizes := map[uint64]uint64{}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			continue
		}
		starts, _ := info.JitedKsymAddrs()
		lens, _ := info.JitedFuncLens()
		for i := range min(len(starts), len(lens)) {
			sizes[uint64(starts[i])] = uint64(lens[i])
		}
	}
	return sizes
}
