package steppers

import (
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/steppers/bash"
	"github.com/swbpf/swbpf/steppers/beam"
	"github.com/swbpf/swbpf/steppers/chez"
	"github.com/swbpf/swbpf/steppers/clr"
	"github.com/swbpf/swbpf/steppers/gnur"
	"github.com/swbpf/swbpf/steppers/hotspot"
	"github.com/swbpf/swbpf/steppers/jsc"
	"github.com/swbpf/swbpf/steppers/lua"
	"github.com/swbpf/swbpf/steppers/luajit"
	"github.com/swbpf/swbpf/steppers/pe"
	"github.com/swbpf/swbpf/steppers/perl"
	"github.com/swbpf/swbpf/steppers/php"
	"github.com/swbpf/swbpf/steppers/postgres"
	"github.com/swbpf/swbpf/steppers/pypy"
	"github.com/swbpf/swbpf/steppers/python"
	"github.com/swbpf/swbpf/steppers/ruby"
	"github.com/swbpf/swbpf/steppers/spidermonkey"
	"github.com/swbpf/swbpf/steppers/v8"
	"github.com/swbpf/swbpf/steppers/wazero"
	"github.com/swbpf/swbpf/unwind"
)

// Default makes the stepper group that a Walker uses unless it is given
// another: all steppers of this package and of those below it that prove what they
// say, and BadCall, in the order of their priorities. It may be shared by the Walkers of many
// processes, as long as these belong to one goroutine; tables may be shared
// by all.
//
//	Bottom      is this the first frame?
//	Dynamic     return addresses that uretprobes have replaced
//	SigHandler  a signal trampoline has CFI at times, but all of them have
//	            the kernel's frame
//	wazero      WebAssembly that Go runs, on stacks of its own, and which functions of it its interpreter runs
//	Go          its table beats .debug_frame, see Go
//	Python      what functions its interpreter runs; walks through nothing
//	PyPy        the same for PyPy, and walks from its compiled code
//	Ruby        for Ruby,
//	PHP         for PHP,
//	Perl        for Perl,
//	Lua         for Lua,
//	LuaJIT      for LuaJIT, and walks from its traces,
//	R           for R,
//	Bash        for scripts of bash,
//	Postgres    for PL/pgSQL and SQL,
//	V8          and for JavaScript
//	JSC         JavaScript of Bun, in frames of its virtual machine
//	SpiderMonkey JavaScript of Firefox and gjs, in frames of its virtual machine
//	Beam        functions of Erlang, on the stacks of its processes
//	Chez        code by Chez Scheme, Racket's too, on a stack of its own
//	PE          code of Windows programs that Wine runs
//	OCaml       where code in OCaml 5 has left its stack to call C; walks through nothing
//	Debug       CFI
//	JIT         CFI of code made at run time, which the process tells of
//	HotSpot     compiled Java, by what its virtual machine has noted
//	CLR         code of .NET, by what its virtual machine has noted
//	Haskell     code by GHC, in the frame of what has jumped there
//	Guile       code by Guile 3, in the frame of what has jumped there
//	SBCL        compiled Lisp, by its frame pointer
//	FrameFunc   frame pointers, as the code proves them
//	Analysis    data flow, for code with neither
//	BadCall     calls to where no code is
func Default(tables *unwind.Tables) *unwind.AddressRangeGroup {
	return group(tables, NewAnalysis())
}

// ForSampling makes the same group for one who must not fall behind the
// samples that come in: what takes long goes on in the background.
func ForSampling(tables *unwind.Tables) *unwind.AddressRangeGroup {
	return group(tables, &Analysis{InBackground: true})
}

func group(tables *unwind.Tables, analysis *Analysis) *unwind.AddressRangeGroup {
	frames := NewFrameFunc(&FrameAnalyzer{made: madeFrames{tables: tables}})
	frames.saved = analysis
	return unwind.NewGroup(NewBottom(), NewDynamic(nil), NewSigHandler(), wazero.New(), NewGo(),
		python.New(tables), pypy.New(tables), ruby.New(tables), php.New(tables), perl.New(tables), lua.New(tables), luajit.New(tables), gnur.New(tables), bash.New(tables), postgres.New(tables),
		v8.New(), jsc.New(), spidermonkey.New(tables), beam.New(), chez.New(), pe.New(), NewOCaml(),
		NewDebug(tables), NewJIT(), hotspot.New(NewFrameAnalyzer()), clr.New(), NewHaskell(), NewGuile(), NewSBCL(), frames, analysis, NewBadCall())
}

// Collector returns a Collector of what walks by these steppers need of a process besides the stacks
// of its threads, but for Java's (see [hotspot.Moment.Collect]): what runtimes keep of their own frames.
// It is nil where there is none of them.
func Collector(pid int, libs *procstate.AddressSpace) procstate.Collector {
	return procstate.JoinCollectors(procstate.GoCollector(pid, libs), python.Collector(libs), ruby.Collector(libs),
		php.Collector(libs), perl.Collector(libs), beam.Collector(libs), chez.Collector(libs), lua.Collector(libs),
		luajit.Collector(libs), gnur.Collector(libs), bash.Collector(libs), postgres.Collector(libs), spidermonkey.Collector(libs), wazero.Collector(libs))
}
