// Package loader puts the sampling programs into the kernel and brings out
// what they record, together with the kernel's news about processes.
//
// # Sampling
//
// [ParseEvent] names what is sampled, [ParseWeight] and [ParseFilter] the numbers of it by
// which samples weigh, and that decide whether it counts. [Open] loads the programs of package
// gen and opens the event on every CPU; [Session.Start] sets it going;
// [Session.ReadSamples] hands out what the rings hold; [Session.Close] takes
// everything out of the kernel again. There are no wake-ups but for a ring that
// fills up, of which [NewPrograms] tells: who does not poll, loses samples once
// it is full, after an eighth of a second of full stacks unless Config.RingBytes
// says otherwise.
//
// The event is always opened on CPUs, never on threads, also when only some
// processes are asked for; the programs filter by process. So a thread is in
// from its first instruction, no thread is missed or counted twice however
// fast threads are born, and short-lived processes get their fair share of
// samples: a timer per thread starts anew with each thread and never ticks for
// those that live less than its period.
//
// # Accounting
//
// Each event that fires is counted once, as a sample or under the reason why
// there is none ([Stats]). What a sample itself lacks is said by the sample:
// see [UserState] and [StackEnd].
//
// # Memory
//
// [Heap] is the event of blocks of memory that allocators hand out. A [Sample] tells of one, its weight
// how many bytes it stands for; another tells when that block is given back (Sample.Freed).
// [Session.Blocks] has those that are left, and is right where there was no room to tell.
//
// # Kernel stacks
//
// [Sample] has the kernel part of a stack as code addresses, whoever has unwound it:
// the kernel or, where its tables can be read, this package, which is cheaper (x86-64
// from Linux 6.4, perf events). Both give the same, and that is checked while it samples.
// [KernelNames] asks the kernel what is at these addresses.
//
// # Order
//
// Samples carry the time of CLOCK_MONOTONIC. Each CPU has a ring of its own,
// whose records are in order; ReadSamples merges them, and keeps what is newer
// than its cutoff for the next call.
//
// # Processes
//
// [OpenSideband] follows executable mappings, forks, execs and exits of all
// processes, and BPF programs that come and go; [Processes] applies them in
// order of time and opens the mapped files while the processes live. Their
// times are those of samples: once [Processes.Collect] has returned a time, all
// that happened before it is known, and samples up to it can be resolved.
//
// # Concurrency
//
// A Session belongs to one goroutine, except that Stats, SetGoProcess,
// ForgetGoProcess, SetStackEnd, SetThreadEnds, SetStartsAbove, SetStackParts, SetThreadFrames,
// SetProgramFrames and SetThreadContext may be called by any.
package loader
