package oracle

import (
	"fmt"
	"io"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
)

// probes are uretprobes on functions of the target, and what they have
// replaced on its stack. The truth stays the same: in a stack's frames are the
// addresses to which functions return in the end.
type probes struct {
	reader *loader.ProbeReader
	points []io.Closer
	state  procstate.UserProbes // of the stopped thread
}

// openProbes puts uretprobes on functions of a file, in one process.
func openProbes(pid int, file string, functions []string) (*probes, error) {
	p := &probes{}
	for _, f := range functions {
		event, err := loader.ParseEvent(fmt.Sprintf("uretprobe:%s:%s", file, f))
		if err == nil {
			var point io.Closer
			if point, err = loader.PutProbe(event, pid); err == nil {
				p.points = append(p.points, point)
			}
		}
		if err != nil {
			p.close()
			return nil, err
		}
	}
	var err error
	if p.reader, err = loader.OpenProbeReader(pid); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// close takes the probes away.
func (p *probes) close() {
	for _, point := range p.points {
		_ = point.Close()
	}
	if p.reader != nil {
		_ = p.reader.Close()
	}
}

// read asks the kernel about a stopped thread.
func (p *probes) read(tid int) error {
	of, err := p.reader.Read()
	p.state = of[procstate.ThreadID(tid)]
	return err
}

// UserProbes implements procstate.ProbedState.
func (t *target) UserProbes() *procstate.UserProbes { return &t.probes.state }

// isBreakpoint reports whether code begins with a breakpoint. In a target
// under probes it is one of them: what is executed is the instruction in the
// file.
func (t *target) isBreakpoint(code []byte) bool {
	return t.probes.reader != nil && len(code) > 0 && code[0] == 0xcc
}

// original replaces the start of code, read at pc, by what the file has.
func (t *target) original(code []byte, pc uint64) {
	m := t.space.MappingAt(pc)
	if m != nil && m.Image != nil {
		_ = m.Image.ReadVaddr(code[:1], pc-m.Bias)
	}
}

// trampolineCode is what functions under a uretprobe return to, from Linux
// 6.11 on. Nobody can read it where it is.
var trampolineCode = []byte{ // read only
	0x50,       // push %rax
	0x51,       // push %rcx
	0x41, 0x53, // push %r11
	0x48, 0xc7, 0xc0, 0x4f, 0x01, 0x00, 0x00, // mov $335,%rax
	0x0f, 0x05, // syscall
	0x41, 0x5b, // pop %r11
	0x59, // pop %rcx
	0xc3, // ret
}
