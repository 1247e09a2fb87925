package steppers

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/steptest"
	"github.com/swbpf/swbpf/procstate"
)

const emptyMain = "int main(void) { return 0; }\n"

// The entry range holds the whole of _start, as the symbol table gives it,
// and nothing of what follows.
func TestEntryRange(t *testing.T) {
	for _, tc := range []struct {
		name string
		cc   []string
	}{
		{"glibc", []string{"gcc"}},
		{"glibc static", []string{"gcc", "-static"}},
		{"glibc static-pie", []string{"gcc", "-static-pie"}},
		{"glibc no-pie", []string{"gcc", "-no-pie"}},
		{"musl", []string{"musl-gcc"}},
		{"musl static", []string{"musl-gcc", "-static"}},
		{"aarch64 static", []string{"aarch64-linux-gnu-gcc", "-static"}},
		{"aarch64", []string{"aarch64-linux-gnu-gcc"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := steptest.Compile(t, tc.cc, "main.c", emptyMain)
			img := steptest.OpenImage(t, path)
			r := entryRange(img)
			start, next := symbolAndNext(t, path, "_start")
			if r.Start != start || r.End <= start || r.End > next {
				t.Errorf("entry range [%#x, %#x), _start is [%#x, %#x)", r.Start, r.End, start, next)
			}
			// What the kernel enters last returns to: past the first call.
			if call := firstCall(t, path, start, next); r.End < call {
				t.Errorf("entry range ends at %#x, before the return address %#x", r.End, call)
			}
		})
	}
}

// Nothing needs to stand behind a call that does not return, and there another function is.
func TestEntryRangeFollowed(t *testing.T) {
	for _, tc := range []struct {
		name, cc string
		entry    string
		behind   []string // how the function behind it begins
		start    string
	}{
		{"amd64", "gcc", "xor %ebp, %ebp\n mov %rsp, %rdi\n call start\n", []string{"push %rbp\n mov %rsp, %rbp", "endbr64"}, "call behind\n hlt"},
		{"aarch64", "aarch64-linux-gnu-gcc", "mov x29, #0\n mov x30, #0\n mov x0, sp\n bl start\n",
			[]string{"stp x29, x30, [sp, #-32]!", "sub sp, sp, #64", "sub sp, sp, #16, lsl #12", "hint #25", "hint #34"}, "bl behind\n brk #0"},
	} {
		for _, behind := range tc.behind {
			t.Run(tc.name+" "+behind, func(t *testing.T) {
				path := steptest.Compile(t, []string{tc.cc, "-nostdlib", "-static", "-Wl,--build-id=none"}, tc.name+".S",
					".globl _start, behind, start\n_start: "+tc.entry+"behind: "+behind+"\n nop\n ret\n .skip 64\nstart: "+tc.start+"\n")
				start, next := symbolAndNext(t, path, "_start")
				if r := entryRange(steptest.OpenImage(t, path)); r.Start != start || r.End != next {
					t.Errorf("entry range [%#x, %#x), _start is [%#x, %#x)", r.Start, r.End, start, next)
				}
			})
		}
	}
}

// A library has an entry point at times, but no bottom of the stack.
func TestEntryRangeLibrary(t *testing.T) {
	path := steptest.Compile(t, []string{"gcc", "-shared", "-fPIC", "-Wl,-e,f"}, "lib.c",
		"int g(int);\nint f(int x) { return g(x) + 1; }\n")
	if r := entryRange(steptest.OpenImage(t, path)); r.Start != r.End {
		t.Errorf("entry range of a library is [%#x, %#x)", r.Start, r.End)
	}
}

// symbolAndNext returns where a function is, and what follows it in the code, by the standard library's reader.
func symbolAndNext(t *testing.T, path, name string) (start, next uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	next = ^uint64(0)
	for _, s := range symbols {
		if s.Name == name && s.Section != elf.SHN_UNDEF {
			start = s.Value
		}
	}
	for _, s := range symbols {
		inCode := int(s.Section) < len(f.Sections) && f.Sections[s.Section].Flags&elf.SHF_EXECINSTR != 0
		if inCode && s.Value > start && s.Name != "" && s.Name[0] != '$' { // those of AArch64 only tell code from data
			next = min(next, s.Value)
		}
	}
	if start == 0 || next == ^uint64(0) {
		t.Fatalf("no symbol %s in %s, or none behind it", name, path)
	}
	return start, next
}

// firstCall returns the return address of the first call instruction in
// [start, end).
func firstCall(t *testing.T, path string, start, end uint64) (ra uint64) {
	t.Helper()
	objdump := "objdump"
	if strings.HasPrefix(filepath.Base(path), "aarch64") {
		objdump = "aarch64-linux-gnu-objdump"
	}
	out, err := exec.Command(objdump, "-d", "--no-show-raw-insn",
		"--start-address="+strconv.FormatUint(start, 10), "--stop-address="+strconv.FormatUint(end, 10), path).Output()
	if err != nil {
		t.Fatalf("objdump %s: %v", path, err)
	}
	called := false
	for line := range strings.Lines(string(out)) {
		addr, text, ok := strings.Cut(strings.TrimSpace(line), ":\t")
		v, err := strconv.ParseUint(addr, 16, 64)
		if !ok || err != nil {
			continue
		}
		if called && ra == 0 {
			ra = v
		}
		called = false
		for _, op := range strings.Fields(text) {
			called = called || op == "call" || op == "bl" || op == "blr"
		}
	}
	if ra == 0 {
		ra = end
	}
	return ra
}

func TestThreadStart(t *testing.T) {
	amd64, arm64 := procstate.AMD64, procstate.ARM64
	muslClone := []byte{
		0x31, 0xed, // xor %ebp,%ebp
		0x5f,             // pop %rdi
		0x41, 0xff, 0xd1, // call *%r9
		0x89, 0xc7, // mov %eax,%edi
		0x31, 0xc0, // xor %eax,%eax
		0xb0, 0x3c, // mov $60,%al
		0x0f, 0x05, // syscall
		0xf4, // hlt
	}
	armClone := []byte{
		0x20, 0x00, 0x3f, 0xd6, // blr x1
		0xa8, 0x0b, 0x80, 0xd2, // mov x8,#93
		0x01, 0x00, 0x00, 0xd4, // svc #0
	}
	exitFunc := []byte{0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xc3} // mov $60,%eax; syscall; ret
	callExit := append([]byte{0xff, 0xd0}, exitFunc...)
	for _, tc := range []struct {
		name        string
		arch        *procstate.Arch
		code        []byte
		pc          int
		interrupted bool
		want        bool
	}{
		{"returned to", amd64, muslClone, 6, false, true},
		{"first instruction", amd64, muslClone, 0, true, true},
		{"at the call", amd64, muslClone, 3, true, true},
		{"after the call", amd64, muslClone, 6, true, true},
		{"cut short", amd64, muslClone[:11], 6, false, false},
		{"in a call, before one", amd64, muslClone, 3, false, false},
		{"interrupted in _exit", amd64, exitFunc, 0, true, false},
		{"called a function, then exits", amd64, callExit, 2, false, true},
		{"other system call", amd64, []byte{0xff, 0xd0, 0xb8, 61, 0, 0, 0, 0x0f, 0x05}, 2, false, false},
		{"returns", amd64, []byte{0xff, 0xd0, 0xc3}, 2, false, false},
		{"arm64 returned to", arm64, armClone, 4, false, true},
		{"arm64 at the call", arm64, armClone, 0, true, true},
		{"arm64 interrupted in exit", arm64, armClone[4:], 0, true, false},
	} {
		if got := isThreadStart(tc.arch, tc.code[:tc.pc], tc.code[tc.pc:], tc.interrupted); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// A coroutine's function on AArch64 returns to what stands behind that which makes coroutines.
func TestCoroutineStartARM64(t *testing.T) {
	code := append(append([]byte{}, makeCoroutineARM64...), 0, 0, 0x80, 0xd2) // mov x0,#0
	n := len(makeCoroutineARM64)
	if a := procstate.ARM64; !inCoroutineStart(a, code[:n], code[n:], false) || inCoroutineStart(a, code[:n], code[n:], true) ||
		inCoroutineStart(a, code[:n-4], code[n-4:], false) || inCoroutineStart(procstate.AMD64, code[:n], code[n:], false) {
		t.Error("it is not told from other code")
	}
}

// Behind the system call that ends a thread is another way through the
// function: glibc's clone, and musl's __clone.
func TestThreadEnd(t *testing.T) {
	for name, code := range map[string][]byte{
		"glibc": {0xff, 0xd0, 0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05},
		"musl":  {0xff, 0xd1, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05},
	} {
		if !isThreadEnd(procstate.AMD64, code) {
			t.Errorf("%s: not known", name)
		}
		for i := range code {
			if isThreadEnd(procstate.AMD64, code[:i]) {
				t.Errorf("%s: known before it, at %d", name, i)
			}
		}
		if isThreadEnd(procstate.AMD64, append([]byte{0x90, 0x90}, code[2:]...)) {
			t.Errorf("%s: known without a call", name)
		}
	}
}
