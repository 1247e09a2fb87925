// Package steppers holds the frame steppers that come with this module: each
// knows how to walk through one kind of frame (see [unwind.FrameStepper]).
// Those of interpreters and virtual machines are in packages of their own
// below this one, each with all that is known of one runtime; here are the
// others, and [Default], which puts them together. In order of priority:
//
//   - [Bottom]: the first frame of a thread, known by its code;
//   - [Dynamic]: return addresses that instrumentation has replaced;
//   - [SigHandler]: signal trampolines;
//   - package wazero: WebAssembly that Go code runs, compiled and interpreted;
//   - [Go]: Go code, and the switches of stacks that its runtime makes;
//   - package python: which functions CPython runs in its frames, which the others find;
//   - package ruby: the same for Ruby, and in what it has compiled;
//   - package php: for PHP, likewise;
//   - package perl: for Perl, in the frames of its loop;
//   - package lua: for Lua, likewise;
//   - package luajit: for LuaJIT, in the frames of its interpreter, and frames of its traces;
//   - package bash: for scripts, in frames of GNU bash;
//   - package v8: and for JavaScript in Node, Deno and Chromium;
//   - package jsc: the same in Bun, and frames of its virtual machine;
//   - package spidermonkey: and in Firefox and gjs, likewise;
//   - package beam: code by Erlang's compiler, and from a process of Erlang to its scheduler;
//   - package chez: code by the compiler of Chez Scheme, which Racket has too, and on to the function of C that has
//     called it;
//   - [OCaml]: where code in OCaml 5 has left its stack to call C, so that the stack is copied, too;
//   - [Debug]: code with DWARF call frame information;
//   - [JIT]: code made at run time, with the call frame information that the
//     process has registered with debuggers, or with libgcc;
//   - package hotspot: compiled Java, by what its virtual machine has noted; and which
//     methods run in all frames of Java;
//   - package clr: code of .NET, by its virtual machine's unwind information, and which methods
//     that is;
//   - [Haskell]: code by GHC, which runs in the frame of what has jumped there;
//   - [Guile]: code by Guile 3, which does, too;
//   - [SBCL]: code by Steel Bank Common Lisp, whose functions have a frame pointer;
//   - [FrameFunc]: code with frame pointers, prologues and epilogues included;
//   - [Analysis]: optimised code with neither;
//   - [BadCall]: calls to where no code is, through a null pointer.
//
// Three more are added by those who need them: [Wanderer] searches the stack
// when nothing else is left; [DyninstInstr] and [InstFrame] are for programs
// that Dyninst has instrumented, the former for files that it has rewritten,
// the latter for the frames that it builds for first-party walks.
//
// A stepper keeps no state of a process. One set of them can serve the
// Walkers of many processes, as long as these belong to one goroutine.
package steppers
