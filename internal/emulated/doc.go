// Package emulated runs AArch64 programs under qemu-user on another machine, for the
// oracle, which executes them an instruction at a time, and for tests, which walk them
// where they stop: both need the same remote protocol and the same view of memory.
package emulated
