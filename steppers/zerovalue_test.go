package steppers

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/bash"
	"github.com/swbpf/swbpf/steppers/beam"
	"github.com/swbpf/swbpf/steppers/chez"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/steppers/jsc"
	"github.com/swbpf/swbpf/steppers/lua"
	"github.com/swbpf/swbpf/steppers/luajit"
	"github.com/swbpf/swbpf/steppers/perl"
	"github.com/swbpf/swbpf/steppers/php"
	"github.com/swbpf/swbpf/steppers/pypy"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/steppers/ruby"
	"github.com/swbpf/swbpf/steppers/spidermonkey"
	"github.com/swbpf/swbpf/steppers/v8"
	"github.com/swbpf/swbpf/steppers/wazero"
	"github.com/swbpf/swbpf/unwind"
)

// A stepper that no constructor has made does the same as one that has been made
// with what is nil left to it.
func TestZeroValues(t *testing.T) {
	steptest.NeedPtrace(t)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	time.Sleep(50 * time.Millisecond)
	c, err := procstate.CaptureProcess(cmd.Process.Pid, procstate.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ zero, made unwind.FrameStepper }{
		{&Bottom{}, NewBottom()},
		{&Dynamic{}, NewDynamic(nil)},
		{&SigHandler{}, NewSigHandler()},
		{&Go{}, NewGo()},
		{&SBCL{}, NewSBCL()},
		{&Debug{}, NewDebug(nil)},
		{&JIT{}, NewJIT()},
		{&hotspot.Stepper{}, hotspot.New(nil)},
		{&v8.Stepper{}, v8.New()},
		{&jsc.Stepper{}, jsc.New()},
		{&spidermonkey.Stepper{}, spidermonkey.New(nil)},
		{&beam.Stepper{}, beam.New()},
		{&chez.Stepper{}, chez.New()},
		{&python.Stepper{}, python.New(nil)},
		{&pypy.Stepper{}, pypy.New(nil)},
		{&ruby.Stepper{}, ruby.New(nil)},
		{&php.Stepper{}, php.New(nil)},
		{&perl.Stepper{}, perl.New(nil)},
		{&bash.Stepper{}, bash.New(nil)},
		{&lua.Stepper{}, lua.New(nil)},
		{&luajit.Stepper{}, luajit.New(nil)},
		{&wazero.Stepper{}, wazero.New()},
		{&FrameFunc{}, NewFrameFunc(nil)},
		{&FrameFunc{helper: &FrameAnalyzer{}}, NewFrameFunc(NewFrameAnalyzer())},
		{&Analysis{}, NewAnalysis()},
		{&Wanderer{}, NewWanderer(nil, nil)},
		{&DyninstInstr{}, NewDyninstInstr()},
		{&InstFrame{}, NewInstFrame()},
	} {
		t.Run(fmt.Sprintf("%T", s.zero), func(t *testing.T) {
			walk := func(s unwind.FrameStepper) ([]unwind.Frame, error) {
				frames, err := unwind.NewWalker(c, unwind.NewGroup(s), nil).WalkStack(nil, procstate.DefaultThread)
				pcs, perr := unwind.NewWalker(c, unwind.NewGroup(s), nil).WalkPCs(nil, &frames[0].Regs)
				if len(pcs) != len(frames) || perr != err {
					t.Errorf("%d frames and %v, by rules %d and %v", len(frames), err, len(pcs), perr)
				}
				return frames, err
			}
			zero, err0 := walk(s.zero)
			made, err1 := walk(s.made)
			if !slices.Equal(zero, made) || err0 != err1 {
				t.Errorf("%d frames and %v, of one that was made %d and %v", len(zero), err0, len(made), err1)
			}
		})
	}
}

// What analyses, and what knows uretprobes, does so without being made.
func TestZeroHelpers(t *testing.T) {
	w := unwind.NewWalker(&procstate.Snapshot{}, nil, nil)
	var f unwind.Frame
	for _, a := range []*FrameAnalyzer{{}, NewFrameAnalyzer()} {
		if _, ok := a.FunctionStart(&procstate.Image{}, 1); ok {
			t.Error("a function in no file")
		}
		if l := a.AllocatesFrame(w, &f); l.State != UnknownState {
			t.Errorf("%+v", l)
		}
		a.AllocatesFrame(unwind.NewWalker(nil, nil, nil), &f)
	}
	if _, ok := (&ReturnProbes{}).IsInstrumentation(w, &f); ok {
		t.Error("a frame of nothing")
	}
	(&ReturnProbes{}).IsInstrumentation(unwind.NewWalker(nil, nil, nil), &f)
}
