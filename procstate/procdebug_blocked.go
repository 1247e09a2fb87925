package procstate

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// syscallArgs are the registers that carry the arguments of a system call, in
// order; syscall(2).
var syscallArgs = map[*Arch][6]Reg{
	AMD64: {5, 4, 1, 10, 8, 9}, // rdi, rsi, rdx, r10, r8, r9
	ARM64: {0, 1, 2, 3, 4, 5},
	I386:  {3, 1, 2, 6, 7, 5}, // ebx, ecx, edx, esi, edi, ebp
}

// blockedRegs stores the registers of a thread that waits in the kernel and
// cannot be stopped, as far as /proc/PID/task/TID/syscall shows them: program
// counter, stack pointer and the arguments of the system call. It is an error
// when the thread runs.
func blockedRegs(pid int, tid ThreadID, arch *Arch, regs *Regs) error {
	*regs = Regs{}
	if arch == nil {
		return fmt.Errorf("thread %d cannot be stopped: %w", tid, ErrNotSupported)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(int(tid)) + "/syscall")
	if err != nil {
		return fmt.Errorf("thread %d cannot be stopped: %w", tid, err)
	}
	if string(bytes.TrimSpace(b)) == "running" {
		return fmt.Errorf("thread %d was not stopped in time: it waits for a CPU, or has left the kernel only now", tid)
	}
	words, err := parseSyscall(b)
	if err != nil {
		return fmt.Errorf("thread %d cannot be stopped: %w", tid, err)
	}
	n := len(words)
	regs.Set(arch.SP, words[n-2])
	regs.Set(arch.PC, words[n-1])
	if n == 9 {
		for i, r := range syscallArgs[arch] {
			regs.Set(r, words[1+i])
		}
	}
	return nil
}

// parseSyscall reads the words "NR ARG... SP PC" or, outside a call, "-1 SP
// PC"; proc(5).
func parseSyscall(b []byte) ([]uint64, error) {
	f := bytes.Fields(b)
	if len(f) != 9 && len(f) != 3 {
		return nil, fmt.Errorf("%q: %w", bytes.TrimSpace(b), ErrNotSupported)
	}
	words := make([]uint64, len(f))
	for i := range f {
		n, err := strconv.ParseInt(string(f[i]), 0, 64)
		if err != nil {
			u, uerr := strconv.ParseUint(string(f[i]), 0, 64)
			if uerr != nil {
				return nil, uerr
			}
			n = int64(u)
		}
		words[i] = uint64(n)
	}
	return words, nil
}
