package main

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// luajitCalls are the functions of busy.lua and those of Lua's library, and what they call in the source. A function that
// another calls last is called by that one's caller, in its place.
var luajitCalls = map[string][]string{
	"<chunk busy.lua>": {"main"},
	"main":             {"round", "os.clock"},
	"round": {
		"run", "floors", "text", "sorts", "coro", "meta", "protects", "vararg", "tails", "compiles", "callback", "collects", "deep", "iterate", "jit.status",
	},
	"run": {"spin", "fib"}, "fib": {"fib"}, "floors": {"math.floor"}, "spin": nil,
	"text": {"string.rep", "string.gsub"}, "string.gsub": {"replace"}, "replace": {"spin", "tostring"},
	"sorts": {"table.sort"}, "table.sort": {"less"}, "less": {"spin"},
	"coro": {"coroutine.create", "coroutine.resume"}, "coroutine.resume": {"inner"},
	"inner": {"coroutine.wrap", "(anonymous) busy.lua:18", "coroutine.yield"}, "(anonymous) busy.lua:18": {"gen"}, "gen": {"coroutine.yield", "spin"},
	"meta": {"index", "add", "spin"}, "index": {"spin"}, "add": {"spin"},
	"protects": {"pcall", "xpcall"}, "pcall": {"fails"}, "xpcall": {"fails"}, "fails": {"spin", "error"}, "error": {"handler"}, "handler": {"spin"},
	"vararg": {"varargs"}, "varargs": {"spin", "select"}, "tails": {"tail", "spin"}, "tail": {"tail", "spin"},
	"compiles": {"jit.status"}, "callback": {"ffi.new", "compare"}, "compare": {"spin"},
	"collects": {"newproxy", "getmetatable", "collectgarbage"}, "finalize": {"spin"},
	"deep": {"deep", "spin"}, "iterate": {"pairs", "next", "ipairs"},
}

// What has called a function is in its stacks without a name where the code by which it would be found is gone.
func TestRecordLuaJITMade(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 LuaJIT is tested under an emulator")
	}
	testenv.Needs(t, "luajit")
	r := recordCommand(t, 0, "luajit", "testdata/targets/made.lua", "1.5")
	var total, wrong uint64
	for stack, count := range foldedStacks(t, r.folded) {
		for f := range strings.SplitSeq(stack, ";") {
			if name, is := strings.CutSuffix(f, "_[j]"); is { // the outermost
				if total += count; name == "helper" {
					wrong += count
				}
				break
			}
		}
	}
	wantShare(t, "with functions of Lua", total, r.stats.UserSamples, 60)
	if wrong > total/1000 { // what is read in that code's place may be a call, too: none of 10,425 samples
		t.Errorf("nothing has called helper in %d of %d samples", wrong, total)
	}
}

// Functions of Lua have their names in LuaJIT, interpreted and in traces: each calls only what it calls in the source, with
// functions of C between them or not. Nothing runs beside it, as beside TestRecordPerl.
func TestRecordLuaJIT(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("on arm64 LuaJIT is tested under an emulator")
	}
	testenv.Needs(t, "luajit")
	// What is short, or inlined in traces, may be in no sample.
	for mode, always := range map[string][]string{
		"-joff": {"main", "round", "spin", "fib", "floors", "less", "table.sort", "replace", "string.gsub", "coro", "gen", "protects", "callback", "compare"},
		"-jon":  {"main", "round", "spin", "table.sort", "string.gsub", "coro"},
	} {
		t.Run(mode, func(t *testing.T) {
			r := recordCommand(t, 0, "luajit", mode, "testdata/targets/busy.lua", "0.8")
			wantShare(t, "complete", r.stats.Complete, r.stats.UserSamples, 99)
			var named uint64
			check := callCheck{calls: luajitCalls}
			for stack, count := range foldedStacks(t, r.folded) {
				caller := ""
				for f := range strings.SplitSeq(stack, ";") {
					callee, is := strings.CutSuffix(f, "_[j]")
					switch {
					case !is || strings.HasPrefix(callee, "[jit of "):
						continue
					case callee == "[not copied]" || callee == "[not read]":
						caller = ""
						continue
					case callee == "finalize": // anywhere
						caller = ""
					}
					check.call(t, caller, callee, stack, count)
					caller = callee
				}
				if strings.Contains(stack, ";<chunk busy.lua>_[j]") {
					named += count
				}
			}
			// None are known in the first tenth of a second.
			wantShare(t, "with functions of Lua", named, r.stats.UserSamples, 80)
			check.end(t, 0, slices.DeleteFunc(slices.Collect(maps.Keys(luajitCalls)), func(name string) bool { return slices.Contains(always, name) })...)
		})
	}
}
