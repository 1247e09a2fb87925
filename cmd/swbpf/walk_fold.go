package main

import (
	"fmt"
	"strings"
)

// frameRun are the frames [start, end) of a stack, which are followed by more that are the
// same ones in turns. more is a multiple of their number.
type frameRun struct{ start, end, more int }

// What is taken for recursion.
const (
	maxTurn  = 16 // frames that come again and again in turns
	minTurns = 10 // that are not shown one by one any more, if there are more
)

// turnKey is what two frames of a recursion have in common.
type turnKey struct {
	pc             uint64
	function, file string
	line           int
	inlined        bool
	note           string
}

// foldRecursion finds the frames that come again and again in a stack, and of each such
// part the smallest number that come in turns. Their values may differ.
func foldRecursion(frames []walkFrame) []frameRun {
	keys := make(map[turnKey]uint32)
	ids := make([]uint32, len(frames))
	for i := range frames {
		f := &frames[i]
		k := turnKey{f.frame.PC(), f.function, f.file, f.line, f.inlined, f.note()}
		id, ok := keys[k]
		if !ok {
			id = uint32(len(keys))
			keys[k] = id
		}
		ids[i] = id
	}
	var runs []frameRun
	plain := 0 // the first of those that are in no run yet
	for i := 0; i < len(ids); {
		n, more := turnsAt(ids[i:])
		if more == 0 {
			i++
			continue
		}
		if plain < i {
			runs = append(runs, frameRun{plain, i, 0})
		}
		runs = append(runs, frameRun{i, i + n, more})
		i += n + more
		plain = i
	}
	if plain < len(ids) {
		runs = append(runs, frameRun{plain, len(ids), 0})
	}
	return runs
}

// foldTurns writes names that come again and again in turns once, with their number.
func foldTurns(names []string) (folded []string) {
	keys := make(map[string]uint32)
	ids := make([]uint32, len(names))
	for i, name := range names {
		if _, ok := keys[name]; !ok {
			keys[name] = uint32(len(keys))
		}
		ids[i] = keys[name]
	}
	for i := 0; i < len(names); i++ {
		n, more := turnsAt(ids[i:])
		if more == 0 {
			folded = append(folded, names[i])
			continue
		}
		folded = append(folded, fmt.Sprintf("(%s) x%d", strings.Join(names[i:i+n], " < "), 1+more/n))
		i += n + more - 1
	}
	return folded
}

// turnsAt returns how many frames come in turns at the beginning of some, and how many
// more of them follow; more is 0 where they are too few.
func turnsAt(ids []uint32) (n, more int) {
	for n = 1; n <= maxTurn && n < len(ids); n++ {
		same := 0
		for n+same < len(ids) && ids[n+same] == ids[same] {
			same++
		}
		if turns := same / n; turns >= minTurns {
			return n, turns * n
		}
	}
	return 0, 0
}
