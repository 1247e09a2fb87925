package main

import (
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// luaCalls are the functions of calls.lua, by their lines, and what they call in the source. One that another calls last
// is called by that one's caller, in its place; both are on the stack for a moment, in Lua 5.1.
var luaCalls = map[string][]string{
	"<file calls.lua>": {"calls.lua:19"}, "calls.lua:19": {"calls.lua:18"},
	"calls.lua:18": {"calls.lua:3", "calls.lua:5", "calls.lua:7", "calls.lua:10", "calls.lua:13", "calls.lua:14", "calls.lua:15", "calls.lua:17", "calls.lua:2"},
	"calls.lua:3":  {"calls.lua:3", "calls.lua:2"}, "calls.lua:5": {"calls.lua:4"}, "calls.lua:4": {"calls.lua:2"},
	"calls.lua:7": {"calls.lua:6"}, "calls.lua:6": {"calls.lua:2"}, "calls.lua:8": {"calls.lua:9", "calls.lua:2"}, "calls.lua:9": {"calls.lua:2"},
	"calls.lua:10": {"calls.lua:8", "calls.lua:9", "calls.lua:2"}, "calls.lua:13": {"calls.lua:11"}, "calls.lua:11": {"calls.lua:2"},
	"calls.lua:14": {"calls.lua:14", "calls.lua:2"}, "calls.lua:15": {"calls.lua:15", "calls.lua:2"}, "calls.lua:17": {"calls.lua:16"}, "calls.lua:16": {"calls.lua:2"},
	"calls.lua:2": nil,
}

// Functions of Lua have their names in recordings, and each calls only what it calls in the source, with functions of C
// between them or not. What a coroutine runs that is new each time has none further out. Nothing runs
// beside it: how soon names begin depends on when the recorder gets a CPU.
func TestRecordLua(t *testing.T) {
	testenv.SomeLua(t, func(t *testing.T, lua testenv.Program) {
		r := recordCommand(t, 0, lua.Command(lua.Script(t, "testdata/targets/calls.lua"), "2")...)
		wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
		var named, cut uint64
		check := callCheck{calls: luaCalls}
		for stack, count := range foldedStacks(t, r.folded) {
			caller, isNamed := "", false
			for f := range strings.SplitSeq(stack, ";") {
				callee, is := strings.CutSuffix(f, "_[j]")
				switch _, known := luaCalls[callee]; {
				case !is:
				case callee == "[not copied]":
					cut += count
					caller = ""
				case callee == "[not read]":
					caller = ""
				case known:
					check.call(t, caller, callee, stack, count)
					caller, isNamed = callee, true
				default:
					t.Errorf("%s is no function of the program", callee)
				}
			}
			if isNamed {
				named += count
			}
		}
		wantShare(t, "named", named, r.stats.UserSamples, 90)
		if cut*8 > named { // 4 to 6 %
			t.Errorf("%d of %d samples lack what is further out", cut, named)
		}
		// Where one call ends and the next one begins, one of 100,000 was seen to be another's.
		check.end(t, 1, "calls.lua:15", "calls.lua:16", "calls.lua:9", "calls.lua:8") // which take little time
	})
}
