package profile

import "encoding/binary"

// threadTable numbers threads. Machines have many short-lived ones, all of which
// are kept to the end: so it takes little more than they do themselves.
type threadTable struct {
	all   []Thread
	index []uint32 // hash table of all; 0 is free, else index + 1
	last  uint32   // the one asked for last
}

// number returns the number of a thread.
func (tt *threadTable) number(t *Thread) uint32 {
	if n := tt.last; int(n) < len(tt.all) && tt.all[n] == *t {
		return n
	}
	if len(tt.all) >= len(tt.index)/4*3 {
		tt.rehash(max(64, 2*len(tt.index)))
	}
	i := tt.slot(t)
	if tt.index[i] == 0 {
		tt.all = append(tt.all, *t)
		tt.index[i] = uint32(len(tt.all))
	}
	tt.last = tt.index[i] - 1
	return tt.last
}

// slot returns where a thread is in the index, or where it belongs.
func (tt *threadTable) slot(t *Thread) uint32 {
	mask := uint32(len(tt.index) - 1)
	i := t.hash() & mask
	for tt.index[i] != 0 && tt.all[tt.index[i]-1] != *t {
		i = (i + 1) & mask
	}
	return i
}

// rehash makes the index anew, of a length that is a power of two.
func (tt *threadTable) rehash(length int) {
	tt.index = make([]uint32, length)
	for n := range tt.all {
		tt.index[tt.slot(&tt.all[n])] = uint32(n + 1)
	}
}

func (t *Thread) hash() uint32 {
	ids := mix(uint64(uint32(t.PID))<<32|uint64(uint32(t.TID)), uint64(t.Labels)|uint64(t.Event)<<32)
	name := mix(binary.LittleEndian.Uint64(t.Comm[:8]), binary.LittleEndian.Uint64(t.Comm[8:]))
	return uint32(mix(ids, name))
}
