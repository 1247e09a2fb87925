package steptest

import (
	"encoding/binary"

	"github.com/swbpf/swbpf/procstate"
)

// oneMapping is a LibraryState of one executable mapping.
type oneMapping struct{ m *procstate.Mapping }

func (o oneMapping) MappingAt(addr uint64) *procstate.Mapping {
	if addr-o.m.Start < o.m.End-o.m.Start {
		return o.m
	}
	return nil
}
func (oneMapping) Libraries() []procstate.Library { return nil }
func (oneMapping) Update() error                  { return nil }
func (oneMapping) TrapAddress() uint64            { return 0 }

// MadeUp is a thread with a stack of given words at 0x7000 and a mapping.
func MadeUp(arch *procstate.Arch, m *procstate.Mapping, words ...uint64) *procstate.Snapshot {
	var stack []byte
	for _, v := range words {
		if arch.AddressWidth == 4 {
			stack = binary.LittleEndian.AppendUint32(stack, uint32(v))
		} else {
			stack = binary.LittleEndian.AppendUint64(stack, v)
		}
	}
	snap := procstate.NewSnapshot(arch, 1, "", oneMapping{m})
	var regs procstate.Regs
	snap.Reset(1, &regs, []procstate.Region{{Addr: 0x7000, Data: stack}})
	return snap
}

var NoMapping = &procstate.Mapping{}
