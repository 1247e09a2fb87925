package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/swbpf/swbpf/steppers/hotspot"
)

// takeJava takes over what Java knows of a thread, which may be nil. The system has no more than the first 15 bytes of
// its name.
func (t *threadWalk) takeJava(j *hotspot.Thread) {
	if t.java = j; j != nil {
		t.name = cmp.Or(j.Name, t.name)
	}
}

// javaWait says what a thread of Java does, and what it waits for.
func javaWait(t *hotspot.Thread) string {
	s := t.State
	if t.Blocker != "" {
		s += " for " + t.Blocker
	}
	whose, has := ", which", " has"
	if t.Joins {
		whose, has = ", which is", ""
	}
	switch {
	case t.OwnerThread != 0:
		s += fmt.Sprintf("%s thread %d%s", whose, t.OwnerThread, has)
	case t.Owner != 0:
		s += fmt.Sprintf("%s virtual thread %d%s", whose, t.Owner, has)
	}
	return s
}

// javaNote is that of a thread of the system in brackets, "" where it runs or is none of Java.
func javaNote(t *threadWalk) string {
	if t.java == nil {
		return ""
	}
	wait := javaWait(t.java)
	if wait == "" || wait == "runnable" {
		return ""
	}
	return " [" + wait + "]"
}

// javaOwner returns which thread has what one of Java waits for, if it waits until that goes on.
func javaOwner(t *hotspot.Thread) (party, bool) {
	switch {
	case strings.HasPrefix(t.State, "timed"):
	case t.OwnerThread != 0:
		return party{tid: t.OwnerThread}, true
	case t.Owner != 0:
		return party{virtual: t.Owner}, true
	}
	return party{}, false
}

// javaWaits is javaOwner of a thread of the system.
func javaWaits(t *threadWalk) (party, bool) {
	if t.java == nil {
		return party{}, false
	}
	return javaOwner(t.java)
}

// blockerOf is what a thread of Java waits for in JSON.
func blockerOf(t *hotspot.Thread) jsonBlocker {
	return jsonBlocker{Blocker: t.Blocker, Owner: t.Owner, OwnerTID: int32(t.OwnerThread), Joins: t.Joins}
}
