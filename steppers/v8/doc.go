// Package v8 walks code of V8, the virtual machine of Node, Deno and Chromium, and names its
// functions. All that is known of its objects is here: where each version has what, which a
// program without symbols tells by its code, and how the compilers note what they have
// inlined.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package v8
