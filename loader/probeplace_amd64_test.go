package loader

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/gen"
	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// A probe is put further on only where the function always comes, with its arguments.
func TestCheapPlace(t *testing.T) {
	testenv.Needs(t, "gcc")
	tests := []struct {
		code, program string
		at            uint64 // from the function's entry
	}{
		{"push %r12; push %rbx; ret", gen.SamplerProgOnMalloc, 0},
		{"mov %rdi, %rax; push %rbx; ret", gen.SamplerProgOnMalloc, 3},
		{"cmpb $0, (%rsp); lea -16(%rdi), %rcx; sub $8, %rsp; push %rbx; ret", gen.SamplerProgOnPosixMemalign, 12},
		{"mov %rsi, %rdi; push %rbx; ret", gen.SamplerProgOnMalloc, 0},
		{"xor %edx, %edx; push %rbx; ret", gen.SamplerProgOnMalloc, 0},
		{"lea 8(%rdi), %rsi; push %rbx; ret", gen.SamplerProgOnMalloc, 0},
		{"mov %rax, (%rsp); push %rbx; ret", gen.SamplerProgOnMalloc, 0},
		{"test %rdi, %rdi; je 1f; push %rbx; 1: ret", gen.SamplerProgOnFree, 5},
		{"test %rdi, %rdi; je 1f; push %rbx; 1: ret", gen.SamplerProgOnMalloc, 0},
		{"test %rdi, %rdi; jne 1f; push %rbx; 1: ret", gen.SamplerProgOnFree, 0},
		{"test %rsi, %rsi; je 1f; push %rbx; 1: ret", gen.SamplerProgOnFree, 0},
		{"test %rdi, %rdi; mov %rdi, %rax; je 1f; push %rbx; 1: ret", gen.SamplerProgOnFree, 0},
		{"pushq (%rdi); ret", gen.SamplerProgOnMalloc, 0},
		{"call 1f; push %rbx; 1: ret", gen.SamplerProgOnMalloc, 0},
		{"ret; push %rbx", gen.SamplerProgOnMalloc, 0},
		{".byte 0x06; push %rbx", gen.SamplerProgOnMalloc, 0},                       // no instruction
		{".rept 30; test %rax, %rax; .endr; push %rbx", gen.SamplerProgOnMalloc, 0}, // too far
		{".rept 20; test %rax, %rax; .endr; push %rbx", gen.SamplerProgOnMalloc, 60},
	}
	var source strings.Builder
	for i, test := range tests {
		name := "f" + string(rune('a'+i))
		source.WriteString(".globl " + name + "\n.type " + name + ", @function\n" + name + ":\n" + strings.ReplaceAll(test.code, "; ", "\n") + "\n.fill 64, 1, 0x90\n")
	}
	path := filepath.Join(t.TempDir(), "places.so")
	gcc := exec.Command("gcc", "-shared", "-nostdlib", "-x", "assembler", "-o", path, "-")
	gcc.Stdin = strings.NewReader(source.String())
	testenv.Run(t, gcc)
	err := withImage("heap", path, func(im *procstate.Image) error {
		for i, test := range tests {
			entry, err := placeInFile(im, "heap", "f"+string(rune('a'+i)))
			if err != nil {
				return err
			}
			if at := cheapPlace(im, entry, test.program); at != entry+test.at {
				t.Errorf("%s of %s: at %#x, want %#x", test.code, test.program, at-entry, test.at)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
