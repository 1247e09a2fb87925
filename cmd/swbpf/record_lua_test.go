package main

import (
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// luaCalls are the functions of calls.lua, and what they call in the source. One that another calls last
// is called by that one's caller, in its place; both are on the stack for a moment, in Lua 5.1.
var luaCalls = map[string][]string{
	"<file calls.lua>": {"main"}, "main": {"round"},
	"round": {"fib", "sorts", "text", "protects", "metas", "deep", "tail", "coro", "spin"},
	"fib":   {"fib", "spin"}, "sorts": {"less"}, "less": {"spin"},
	"text": {"replace"}, "replace": {"spin"}, "fails": {"handler", "spin"}, "handler": {"spin"},
	"protects": {"fails", "handler", "spin"}, "metas": {"index"}, "index": {"spin"},
	"deep": {"deep", "spin"}, "tail": {"tail", "spin"}, "coro": {"gen"}, "gen": {"spin"},
	"spin": nil,
}

// Functions of Lua have their names in recordings, and each calls only what it calls in the source, with functions of C
// between them or not. What a coroutine runs that is new each time has none further out. Nothing runs
// beside it: how soon names begin depends on when the recorder gets a CPU.
func TestRecordLua(t *testing.T) {
	t.Parallel()
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
		check.end(t, 1, "tail", "gen", "handler", "fails") // which take little time
	})
}
