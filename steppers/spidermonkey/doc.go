// Package spidermonkey walks code of SpiderMonkey, the virtual machine of Firefox and of
// GNOME's gjs, and names its functions. All that is known of its frames, scripts and source
// notes is here.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package spidermonkey
