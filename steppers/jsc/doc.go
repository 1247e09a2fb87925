// Package jsc walks code of JavaScriptCore, the virtual machine of Bun, and names its
// functions. All that is known of its frames and objects is here.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package jsc
