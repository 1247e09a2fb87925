package unwind

import (
	"sync"
	"unsafe"
)

// rulePool keeps each distinct rule once for all tables: compilers make much the
// same ones for all files. The zero value is empty. It may be used by any
// goroutine.
type rulePool struct {
	mu    sync.Mutex
	free  []Rule  // room for the next ones
	rules []*Rule // hash table; nil is free
	count int     // of rules
	bytes int     // that it takes
}

const (
	ruleChunk = 32 // rules that are allocated together

	// maxPooledRules bounds the rules of a pool, in bytes. Past it, it begins anew:
	// those that are in use stay where they are.
	maxPooledRules = 1 << 20
)

// shared returns the rule of the pool that says the same as r, of which hash is the
// hash, and by how many bytes the pool has grown. The rule stays as it is.
func (p *rulePool) shared(r *Rule, hash uint32) (known *Rule, grown int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes > maxPooledRules {
		p.free, p.rules, p.count, p.bytes = nil, nil, 0, 0
	}
	before := p.bytes
	if 4*(p.count+1) > 3*len(p.rules) {
		p.grow()
	}
	at := p.slot(r, hash)
	if *at != nil {
		return *at, p.bytes - before
	}
	if len(p.free) == 0 {
		p.free = make([]Rule, ruleChunk)
		p.bytes += ruleChunk * int(unsafe.Sizeof(Rule{}))
	}
	*at, p.free = &p.free[0], p.free[1:]
	**at = *r
	p.count++
	if r.row != nil {
		p.bytes += int(unsafe.Sizeof(Row{}))
	}
	return *at, p.bytes - before
}

// slot returns where a rule is in the hash table, or where it belongs.
func (p *rulePool) slot(r *Rule, hash uint32) **Rule {
	mask := uint32(len(p.rules) - 1)
	i := hash & mask
	for p.rules[i] != nil && !p.rules[i].same(r) {
		i = (i + 1) & mask
	}
	return &p.rules[i]
}

func (p *rulePool) grow() {
	old := p.rules
	p.rules = make([]*Rule, max(64, 2*len(old)))
	p.bytes += (len(p.rules) - len(old)) * int(unsafe.Sizeof((*Rule)(nil)))
	for _, r := range old {
		if r != nil {
			*p.slot(r, r.hash()) = r
		}
	}
}
