package main

import (
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// A system call of 32 bits comes into the kernel by a place between those of interrupts, and is none.
func TestRecordWakersInt80(t *testing.T) {
	testenv.Needs32Bit(t) // a kernel that runs none has no such system calls either: the program would end
	r := runRecord(t, "--off-cpu", "--wakers", "--", buildWakers(t), "200", "int80")
	if r.exit != 0 {
		t.Fatalf("exit status %d", r.exit)
	}
	waitsIn(t, r, "await_signal").want(t, "int80", "[woken by maker]", []string{"main", "send_signal", "do_send_sig_info"}, nil)
}
