package main

import "testing"

// A system call of 32 bits comes into the kernel by a place between those of interrupts, and is none.
func TestRecordWakersInt80(t *testing.T) {
	r := runRecord(t, "--off-cpu", "--wakers", "--", buildWakers(t), "200", "int80")
	waitsIn(t, r, "await_signal").want(t, "int80", "[woken by maker]", []string{"main", "send_signal", "signal_wake_up_state"}, nil)
}
