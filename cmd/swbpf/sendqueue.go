package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// maxQueued is how much waits for a server at most, in bytes: the oldest is given up for
// what is new.
const maxQueued = 16 << 20

// sendQueue sends profiles to a server, one after the other, while recording goes on.
type sendQueue struct {
	mu      sync.Mutex
	to      *server
	waiting [][]byte
	bytes   int
	lost    int  // profiles
	running bool // a goroutine that sends; it ends when nothing waits
	idle    *sync.Cond

	ctx    context.Context
	cancel context.CancelFunc
}

func newSendQueue(to *server) *sendQueue {
	q := &sendQueue{to: to}
	q.idle = sync.NewCond(&q.mu)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

// add has a body sent.
func (q *sendQueue) add(body []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, body)
	for q.bytes += len(body); q.bytes > maxQueued && len(q.waiting) > 1; {
		q.next()
		q.lose(fmt.Errorf("more than %d MB wait", maxQueued>>20))
	}
	if !q.running {
		q.running = true
		go q.run()
	}
}

// next takes out what has waited longest, of which nothing is kept.
func (q *sendQueue) next() (body []byte) {
	body, q.waiting[0] = q.waiting[0], nil
	q.waiting = q.waiting[1:]
	q.bytes -= len(body)
	return body
}

// lose counts a profile that is not sent.
func (q *sendQueue) lose(why error) {
	q.lost++
	fmt.Fprintf(os.Stderr, "swbpf: send to %s: a profile is lost: %s\n", q.to, printable(why.Error()))
}

// run sends what waits.
func (q *sendQueue) run() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		body := q.next()
		q.mu.Unlock()
		err := q.to.send(q.ctx, body)
		q.mu.Lock()
		if errors.Is(err, context.Canceled) {
			err = errors.New("it was waited for long enough")
		}
		if err != nil {
			q.lose(err)
		}
	}
	q.running = false
	q.idle.Broadcast()
}

// finish waits until everything is sent, but not beyond the deadline, and returns how
// many profiles were lost in all.
func (q *sendQueue) finish(deadline time.Time) (lost int) {
	defer time.AfterFunc(time.Until(deadline), q.cancel).Stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.running {
		q.idle.Wait()
	}
	return q.lost
}
