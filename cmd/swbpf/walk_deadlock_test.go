package main

import (
	"reflect"
	"testing"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/hotspot"
)

// Deadlocks are circles of those that wait, and not what leads into one or ends.
func TestFindDeadlocks(t *testing.T) {
	holder := func(tid procstate.ThreadID) *wait { return &wait{call: "futex", holder: tid} }
	java := func(state string, tid procstate.ThreadID, virtual int64) *hotspot.Thread {
		return &hotspot.Thread{State: state, Owner: virtual, OwnerThread: tid}
	}
	timed := holder(1)
	timed.args[3] = 0x7000
	group := func(state string, tid procstate.ThreadID, owner int64, ids ...uint64) *virtualGroup {
		return &virtualGroup{first: hotspot.VirtualThread{Thread: *java(state, tid, owner)}, ids: ids, names: make([]string, len(ids))}
	}
	virtual := func(id int64) *hotspot.VirtualThread {
		return &hotspot.VirtualThread{Thread: hotspot.Thread{ID: id}}
	}
	for name, c := range map[string]struct {
		threads []threadWalk
		groups  []*virtualGroup
		want    []deadlock
	}{
		"none":       {[]threadWalk{{tid: 1, wait: holder(2)}, {tid: 2, wait: holder(3)}, {tid: 3}}, nil, nil},
		"no thread":  {[]threadWalk{{tid: 1, wait: holder(9)}}, nil, nil},
		"two":        {[]threadWalk{{tid: 1, wait: holder(2)}, {tid: 2, wait: holder(1)}}, nil, []deadlock{{{tid: 1}, {tid: 2}}}},
		"led to":     {[]threadWalk{{tid: 7, wait: holder(2)}, {tid: 1, wait: holder(2)}, {tid: 2, wait: holder(1)}, {tid: 8, wait: holder(7)}}, nil, []deadlock{{{tid: 2}, {tid: 1}}}},
		"two of two": {[]threadWalk{{tid: 1, wait: holder(2)}, {tid: 2, wait: holder(1)}, {tid: 3, wait: holder(4)}, {tid: 4, wait: holder(3)}}, nil, []deadlock{{{tid: 1}, {tid: 2}}, {{tid: 3}, {tid: 4}}}},
		"timed":      {[]threadWalk{{tid: 1, wait: holder(2)}, {tid: 2, wait: timed}}, nil, nil},
		"join":       {[]threadWalk{{tid: 1, wait: &wait{ending: 2}}, {tid: 2, wait: holder(1)}}, nil, []deadlock{{{tid: 1}, {tid: 2}}}},
		"Java": {[]threadWalk{{tid: 1, java: java("blocked", 2, 12), wait: holder(5)}, {tid: 2, java: java("parked", 1, 11)}}, nil,
			[]deadlock{{{tid: 1}, {tid: 2}}}},
		"timed in Java":      {[]threadWalk{{tid: 1, java: java("timed parked", 2, 12)}, {tid: 2, java: java("parked", 1, 11)}}, nil, nil},
		"a lock beside Java": {[]threadWalk{{tid: 1, java: java("runnable", 0, 0), wait: holder(2)}, {tid: 2, java: java("blocked", 1, 11)}}, nil, []deadlock{{{tid: 1}, {tid: 2}}}},
		"virtual": {[]threadWalk{{tid: 1, java: java("blocked", 0, 30)}}, []*virtualGroup{group("parked", 0, 31, 30), group("blocked", 1, 11, 31), group("parked", 0, 31, 32, 33)},
			[]deadlock{{{tid: 1}, {virtual: 30}, {virtual: 31}}}},
		"virtual on a thread": {[]threadWalk{{tid: 1, java: java("blocked", 0, 31), virtual: virtual(30)}}, []*virtualGroup{group("blocked", 0, 30, 31)},
			[]deadlock{{{virtual: 31}, {virtual: 30}}}},
	} {
		p := &processWalk{threads: c.threads}
		p.virtual.groups = c.groups
		if p.findDeadlocks(nil); !reflect.DeepEqual(p.deadlocks, c.want) {
			t.Errorf("%s: %v, want %v", name, p.deadlocks, c.want)
		}
	}
}
