// Package steptest runs programs for the tests of frame steppers: it builds
// them, stops them by ptrace at any instruction, and gives access to their
// registers and memory as a procstate.ProcessState that adds nothing of its
// own to what the kernel says.
//
// A [Process] belongs to the goroutine that started it, which stays on its
// thread until the Process is closed, since ptrace knows threads.
package steptest
