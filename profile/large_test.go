package profile

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// largeProfile has n distinct stacks of up to 60 frames by 5,000 functions,
// in 20 processes of 4 threads. Like real stacks they share most of their
// frames with others.
func largeProfile(n int) *Profile {
	rnd := rand.New(rand.NewPCG(3, 4))
	b := NewBuilder()
	syms := symbols{}
	const functions = 5000
	var mods []uint32
	kinds := []Kind{Native, Native, Native, Go, JIT, Kernel}
	for i, kind := range kinds {
		mods = append(mods, b.Module(Module{Path: fmt.Sprintf("/usr/lib/module%d.so", i), Kind: kind}))
	}
	locs := make([]Loc, functions)
	for i := range locs {
		locs[i] = Loc{mods[i*len(mods)/functions], uint64(0x1000 + 64*i)}
		syms[locs[i]] = []Line{{
			Function: fmt.Sprintf("space%d::Class%d<int, std::string>::method%d(unsigned long, char const*) const", i%17, i%311, i),
			File:     fmt.Sprintf("/src/project/part%d/file%d.cc", i%17, i%311), Line: i%900 + 10, StartLine: i%900 + 1,
		}}
	}
	// Each stack is an earlier one, cut somewhere and grown again.
	stacks := [][]Loc{{locs[0]}}
	for len(stacks) < n {
		old := stacks[rnd.IntN(len(stacks))]
		keep := 1 + rnd.IntN(len(old))
		stack := append([]Loc(nil), old[:keep]...)
		for grow := 1 + rnd.IntN(8); grow > 0 && len(stack) < 60; grow-- {
			caller := stack[len(stack)-1]
			at := int(caller.Addr-0x1000) / 64
			stack = append(stack, locs[(at*7+1+rnd.IntN(40))%functions])
		}
		stacks = append(stacks, stack)
	}
	leafFirst := make([]Loc, 60)
	for i, stack := range stacks {
		for j, loc := range stack {
			leafFirst[len(stack)-1-j] = loc
		}
		pid := int32(1000 + i%20)
		th := Thread{PID: pid, TID: pid + int32(i%4), Comm: Comm(fmt.Sprintf("worker-%d", i%20))}
		b.Add(th, leafFirst[:len(stack)], "", 1+int64(rnd.ExpFloat64()*3), 1)
	}
	return b.Finish(fixtureMeta(), syms)
}

// TestFlameGraphLarge shows 20,000 distinct stacks, or 100,000. How long that
// takes is logged, not judged.
func TestFlameGraphLarge(t *testing.T) {
	n := 20_000
	if testenv.Long() {
		n = 100_000
	}
	p := largeProfile(n)
	var buf bytes.Buffer
	if err := p.WriteHTML(&buf); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d samples, %d distinct, %d frames in the tree, page of %.1f MB",
		p.Samples, len(p.samples), len(p.nodes), float64(buf.Len())/1e6)
	b := newBrowser(t, 1600, 900)
	b.Open(writeHTML(t, p), "")
	measure := func(what, action string) {
		t.Helper()
		var ms float64
		b.Eval(`(async () => {
			const start = performance.now();
			`+action+`;
			await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			return performance.now() - start;
		})()`, &ms)
		t.Logf("%s: %.0f ms", what, ms)
	}
	t.Logf("first frame after %s ms", b.Text("Math.round(performance.getEntriesByName('drawn')[0].startTime)"))
	b.Mouse("mouseMoved", 300, b.row(0), 0)
	b.Settle()
	b.WantText("#status", "100 % "+thousands(p.Samples)+" samples all")
	measure("search", "const s = document.getElementById('search'); s.value = 'method4[0-9]+\\\\('; s.dispatchEvent(new Event('input'))")
	if got := b.Text("document.getElementById('matched').textContent"); got == "" || got == "no match" {
		t.Errorf("search says %q", got)
	}
	measure("callers", "document.getElementById('callers').click()")
	b.Screenshot("large-callers")
	measure("callees", "document.getElementById('callees').click()")
	measure("zoom", "document.getElementById('canvas').dispatchEvent(new MouseEvent('click', { clientX: 200, clientY: document.getElementById('canvas').getBoundingClientRect().top + 19 * 6 }))")
	measure("zoom out", "document.querySelector('#crumbs button').click()")
	b.Screenshot("large")
	measure("100 moves of the pointer", `const canvas = document.getElementById("canvas");
			for (let i = 0; i < 100; i++) {
				canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: 15 * i, clientY: canvas.getBoundingClientRect().top + 19 * (i % 12) + 4, bubbles: true }));
				await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
			}`)
	measure("list of processes", "document.getElementById('processes').click()")
	measure("filter", "document.querySelector('#process-list input').click()")
	b.NoErrors()
}
