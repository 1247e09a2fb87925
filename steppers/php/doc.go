// Package php tells which functions of PHP run. All that is known of its interpreter and its
// compiler is here: frames (zend_execute_data), functions, and generators.
//
// A [Stepper] is what a Walker asks. What it needs of a process at the moment of a capture,
// besides the stack of C, a [Collector] copies.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package php
