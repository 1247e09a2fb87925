package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// maxQueued is how much waits to be sent at most, in bytes: the oldest is given up for
// what is new.
const maxQueued = 16 << 20

// sendQueue sends profiles one after the other while recording goes on.
type sendQueue struct {
	mu      sync.Mutex
	waiting []sending
	bytes   int
	lost    int  // profiles
	running bool // a goroutine that sends; it ends when nothing waits
	idle    *sync.Cond

	ctx    context.Context
	cancel context.CancelFunc
}

type sending struct {
	to   *server
	body []byte
}

func newSendQueue() *sendQueue {
	q := &sendQueue{}
	q.idle = sync.NewCond(&q.mu)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// add has a body sent.
func (q *sendQueue) add(to *server, body []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, sending{to, body})
	for q.bytes += len(body); q.bytes > maxQueued && len(q.waiting) > 1; {
		old := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.bytes -= len(old.body)
		q.lose(old.to, fmt.Errorf("more than %d MB wait", maxQueued>>20))
	}
	if !q.running {
		q.running = true
		go q.run()
	}
}

// lose counts a profile that is not sent.
func (q *sendQueue) lose(to *server, why error) {
	q.lost++
	fmt.Fprintf(os.Stderr, "swbpf: send to %s: a profile is lost: %s\n", to, printable(why.Error()))
}

// run sends what waits.
func (q *sendQueue) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.bytes -= len(next.body)
		q.mu.Unlock()
		err := next.to.send(q.ctx, next.body)
		q.mu.Lock()
		if errors.Is(err, context.Canceled) {
			err = errors.New("it was waited for long enough")
		}
		if err != nil {
			q.lose(next.to, err)
		}
	}
	q.running = false
	q.idle.Broadcast()
}

// finish waits until everything is sent, but not longer than for so long, and returns
// how many profiles were lost in all.
func (q *sendQueue) finish(wait time.Duration) (lost int) {
	defer time.AfterFunc(wait, q.cancel).Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.idle.Wait()
	}
	return q.lost
}
