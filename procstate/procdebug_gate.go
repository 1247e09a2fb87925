package procstate

import "sync"

// walkGate keeps walks and the telling of library changes apart: steppers are
// not told of a change in the middle of a walk, and no walk begins while they
// are being told. Walks may nest. Who wants to tell comes before a walk that is in no
// other one: walks that follow each other at once would keep it waiting, and the target
// with it.
type walkGate struct {
	mu      sync.Mutex
	free    sync.Cond
	walks   int
	telling bool
	wanted  int // by how many it is to be told
}

func (g *walkGate) init() { g.free.L = &g.mu }

// enter begins a walk.
func (g *walkGate) enter() {
	g.mu.Lock()
	for g.telling || g.wanted > 0 && g.walks == 0 {
		g.free.Wait()
	}
	g.walks++
	g.mu.Unlock()
}

// alone reports whether the walk that has begun is in no other one.
func (g *walkGate) alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.walks == 1
}

// leave ends a walk.
func (g *walkGate) leave() {
	g.mu.Lock()
	g.walks--
	g.free.Broadcast()
	g.mu.Unlock()
}

// tell runs f between walks.
func (g *walkGate) tell(f func()) {
	g.mu.Lock()
	g.wanted++
	for g.telling || g.walks > 0 {
		g.free.Wait()
	}
	g.wanted--
	g.telling = true
	g.mu.Unlock()
	f()
	g.mu.Lock()
	g.telling = false
	g.free.Broadcast()
	g.mu.Unlock()
}
