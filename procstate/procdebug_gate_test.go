package procstate

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// TestWalkGateTurns: walks that follow each other at once leave room for who has something
// to tell, who comes before the next of them; one within another walk does not wait.
func TestWalkGateTurns(t *testing.T) {
	var g walkGate
	g.init()
	wanted := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.wanted > 0
	}
	for range 100 {
		var told atomic.Bool
		g.enter()
		go g.tell(func() { told.Store(true) })
		for !wanted() {
			runtime.Gosched()
		}
		g.enter()
		if told.Load() {
			t.Fatal("told in the middle of a walk")
		}
		g.leave()
		g.leave()
		g.enter()
		if !told.Load() {
			t.Fatal("the next walk came before")
		}
		g.leave()
	}
}
