// Package hotspot walks the stacks of Java, and names its methods. All that is known of HotSpot is here: what
// each release tells of its own structures (gHotSpotVMStructs), its compiled methods and stubs with the sizes of
// their frames and what was inlined, its interpreter, its garbage collectors as far as objects move, and its
// virtual threads.
//
// A [Stepper] is what a Walker asks. A [Heap] is for those who want to know what threads do: of one [Moment]
// it tells a [Thread], with what it waits for and who has that, and [VirtualThreads], which
// [Stepper.WalkVirtualThread] walks.
//
// What frames of Java look like to one who does not know that there is a Java is in package javacode.
//
// A Stepper keeps no state of a process, and belongs to one goroutine at a time.
package hotspot
