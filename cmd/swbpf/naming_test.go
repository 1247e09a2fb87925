package main

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
)

// nameless has a function with unwind tables, and behind it some without, of which one is
// as Free Pascal makes it and one as GHC does, and code that is told by nothing.
const nameless = `
	.globl _start, inside, first, second, pascal, immediate, zeros, haskell, returns, bare, nowhere
	.p2align 4, 0xcc
_start:	.cfi_startproc
	sub $8, %rsp
	.cfi_def_cfa_offset 16
inside:	call first
	hlt
	.cfi_endproc
	.p2align 4, 0xcc
first:	push %rbp
	mov %rsp, %rbp
	call second
	pop %rbp
	ret
	.p2align 4, 0xcc
second:	push %rbp
	mov %rsp, %rbp
	.rept 2000
	add %rdi, %rax
	.endr
	pop %rbp
	ret
	.p2align 4, 0
pascal:	push %rbx
	lea -8(%rsp), %rsp
	mov $0xc3000000, %ebx
	lea 8(%rsp), %rsp
	pop %rbx
	ret
	.p2align 4, 0xcc
immediate: mov $0xc3, %eax
	.p2align 4, 0
zeros:	jmp zeros
	.p2align 3
	.long 12, 2
	.quad 0
	.long 14, 0
haskell: mov %r14, %rbx
1:	inc %rbx
	cmp $0x4e20, %rbx
	jne 1b
	jmp *(%rbp)
	.p2align 3
	.quad 64
	.long 30, 0
returns: add $8, %rbp
	jmp *(%rbp)
	.word 0xcccc
	.p2align 4, 0xcc
bare:	xor %eax, %eax
1:	jmp 1b
	.p2align 4
nowhere: xor %eax, %eax
1:	jmp 1b
`

// TestFunctionStart: frames without names are of one function where its start is
// known, and not of the last one that is known before.
func TestFunctionStart(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the functions are for amd64")
	}
	cc := []string{"gcc", "-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,--eh-frame-hdr"}
	symbolized := steptest.OpenImage(t, steptest.Compile(t, cc, "nameless.s", nameless))
	im := steptest.OpenImage(t, steptest.Compile(t, append(cc, "-s"), "nameless.s", nameless))
	at := map[string]uint64{}
	symbolized.EachSymbol(func(s *procstate.ELFSymbol) bool {
		at[string(s.Name)] = s.Value
		return true
	})
	n := newCodeNames(symbols.Options{})
	for _, tc := range []struct{ addr, want uint64 }{
		{at["inside"], at["_start"]},
		{at["first"], at["first"]},
		{at["first"] + 6, at["first"]},
		{at["second"] + 5000, at["second"]},
		{at["pascal"], at["pascal"]},
		{at["pascal"] + 1, at["pascal"]},
		{at["pascal"] + 15, at["pascal"]},
		{at["zeros"], at["immediate"]},
		{at["haskell"], at["haskell"]},
		{at["haskell"] + 6, at["haskell"]},
		{at["returns"] + 4, at["returns"]},
		{at["bare"], at["bare"]},
		{at["bare"] + 2, at["bare"]},
		{at["nowhere"], 0},
		{at["nowhere"] + 2, 0},
	} {
		got, ok := n.functionStart(im, tc.addr)
		if !ok {
			got = 0
		}
		if got != tc.want {
			t.Errorf("the function at %#x begins at %#x, want %#x", tc.addr, got, tc.want)
		}
	}
}

// TestForgetUnused checks that a file which had no frames for a while has its names and
// its number in the profile anew, also where it was opened more than once.
func TestForgetUnused(t *testing.T) {
	b := profile.NewBuilder()
	ms := newModules(b, symbols.Options{})
	mapping := func() *procstate.Mapping {
		return &procstate.Mapping{Start: 1 << 20, End: 2 << 20, Path: "self", Image: openSelf(t)}
	}
	first, second := mapping(), mapping()
	old := ms.ofImage(first)
	if ms.ofImage(second) != old {
		t.Fatal("one file is two modules")
	}
	wp := &walkedProcess{jit: ms.ofPath("[jit of 1]", profile.JIT)}
	ms.forgetUnused(b.UsedModules())
	names := map[uint32]string{ms.kernel: "kernel", ms.bpf: "bpf"}
	for _, name := range []string{"a", "b", "c"} {
		names[ms.number(profile.Module{Path: name})] = name
	}
	if names[old] == "" {
		t.Error("the number of a module that was forgotten is not used again")
	}
	for _, m := range []*procstate.Mapping{first, second} {
		if id := ms.ofImage(m); names[id] != "" || ms.image[id] == nil || ms.info[id].Path != "self" {
			t.Errorf("the file is module %d, that of %q, with the names of %v", id, names[id], ms.image[id])
		}
	}
	if wp.snapshot = procstate.NewSnapshot(procstate.HostArch(), noPID, "", new(procstate.AddressSpace)); names[ms.user(wp, &procstate.Mapping{Start: 1, End: 2}, 1).Module] != "" {
		t.Error("generated code is in a module of another")
	}
}

// What processes tell of generated code is read in rounds, which those take no part in that
// are gone, and begin a second after each other.
func TestUpdateJITRounds(t *testing.T) {
	ms := newModules(profile.NewBuilder(), symbols.Options{})
	ms.updateJIT(nil) // there is nothing to read
	if !ms.jitNext.IsZero() {
		t.Error("a round began with no processes")
	}
	for id := range uint32(10) {
		ms.jit[id] = ms.symbolizer.Lookup(nil, 0)
	}
	ms.jitDue = []uint32{3, 77, 4} // of a round that was left off; 77 has been forgotten since
	began := time.Now()
	ms.updateJIT(new(loader.Processes))
	if len(ms.jitDue) != 0 || ms.jitNext.Before(began.Add(time.Second)) {
		t.Errorf("%d are left, and it goes on in %v", len(ms.jitDue), ms.jitNext.Sub(began))
	}
	next := ms.jitNext
	if ms.updateJIT(nil); ms.jitNext != next {
		t.Error("a round began ahead of time")
	}
}

// The kernel's functions have the same names whether it is asked or /proc/kallsyms are
// read, and these are read once for what neither tells.
func TestKernelName(t *testing.T) {
	needRecord(t)
	all, err := symbols.OpenKernel()
	if err != nil {
		t.Fatal(err)
	}
	read := &codeNames{kallsyms: all}
	ask := new(codeNames)
	named := 0
	for _, function := range kernelFunctions(t, "vfs_read", "schedule", "do_exit") {
		for _, addr := range []uint64{function, function + 5} {
			want, got := read.kernelName(nil, addr), ask.kernelName(nil, addr)
			if len(got) != 1 || len(want) != 1 || got[0] != want[0] {
				t.Errorf("%#x: %v, want %v", addr, got, want)
			}
			named++
		}
	}
	if named < 2 || read.kernelNames != nil {
		t.Errorf("%d addresses; kernel asked though its symbols are known: %v", named, read.kernelNames != nil)
	}
	if ask.kernelNames == nil {
		testenv.Lacks(t, "a kernel that can be asked for names")
	}
	defer ask.kernelNames.Close()
	if ask.kallsyms != nil {
		t.Error("kallsyms are read for what the kernel tells")
	}
	if l := ask.kernelName(nil, 0x400000); len(l) != 0 || ask.kallsyms == nil {
		t.Errorf("no code of the kernel is %v; kallsyms read: %v", l, ask.kallsyms != nil)
	}
	ask.kallsyms = nil // as in the next part
	if l := ask.kernelName(nil, 0x400000); len(l) != 0 || ask.kallsyms != nil {
		t.Errorf("kallsyms are read once more in vain, for %v", l)
	}
}

// kernelFunctions returns the addresses of those of the functions that the kernel has.
func kernelFunctions(t *testing.T, names ...string) (addrs []uint64) {
	t.Helper()
	b, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if addr, err := strconv.ParseUint(f[0], 16, 64); err == nil && addr != 0 && len(f) == 3 && slices.Contains(names, f[2]) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
