// Package javacode knows code and frames of HotSpot by what they look like, also where the virtual machine that
// has made them was not found: the places that methods return to behind no call, and the frames of its interpreter.
//
// It is apart from package hotspot because the steppers for frame pointers, which walk Java's frames where they
// have some, ask it as well.
//
// It keeps nothing, and all goroutines may call it.
package javacode
