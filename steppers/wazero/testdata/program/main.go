// Program runs functions of module.wasm with wazero, each in a goroutine of its own. That module is made
// of module.c by
//
//	clang-19 --target=wasm32 -O2 -nostdlib -Wl,--no-entry -Wl,--export-dynamic -o module.wasm module.c
package main

import (
	"context"
	_ "embed"
	"flag"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

//go:embed module.wasm
var module []byte

//go:noinline
func spin(n uint32) uint32 {
	for range 4 {
		n = n*1664525 + 1013904223
	}
	return n
}

// host is called by the module, and at times calls it.
func host(ctx context.Context, m api.Module, stack []uint64) {
	n := uint32(stack[0])
	switch {
	case n == 1<<20:
		time.Sleep(time.Hour)
	case n%256 == 255:
		call(ctx, m, "fib", 5)
	}
	stack[0] = uint64(spin(n))
}

//go:noinline
func call(ctx context.Context, m api.Module, name string, args ...uint64) {
	if _, err := m.ExportedFunction(name).Call(ctx, args...); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, m api.Module, kind string) {
	two := api.EncodeF64(2)
	switch kind {
	case "fib":
		call(ctx, m, "fib", 20)
	case "deep":
		call(ctx, m, "deep", 200) // on a stack that grows
	case "calls":
		call(ctx, m, "calls", 4000)
	case "indirect":
		call(ctx, m, "indirect", 0, 16)
	case "many":
		call(ctx, m, "many", 1, two, 3, two, 5, 6, 7, 8, 9, 10, two, two, two, two, two, two, two)
	case "waits":
		call(ctx, m, "indirect", 1, 1<<20)
	}
}

func main() {
	interprets := flag.Bool("interpret", false, "do not compile")
	lasts := flag.Duration("for", time.Hour, "how long to run")
	flag.Parse()
	ctx := context.Background()
	config := wazero.NewRuntimeConfigCompiler()
	if *interprets {
		config = wazero.NewRuntimeConfigInterpreter()
	}
	r := wazero.NewRuntimeWithConfig(ctx, config)
	i32 := []api.ValueType{api.ValueTypeI32}
	if _, err := r.NewHostModuleBuilder("env").NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(host), i32, i32).
		Export("host").Instantiate(ctx); err != nil {
		panic(err)
	}
	compiled, err := r.CompileModule(ctx, module)
	if err != nil {
		panic(err)
	}
	for _, kind := range flag.Args() {
		m, err := r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName(""))
		if err != nil {
			panic(err)
		}
		go func() {
			for {
				run(ctx, m, kind)
			}
		}()
	}
	time.Sleep(*lasts)
}
