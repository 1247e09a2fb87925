package ruby

import "encoding/binary"

// variable returns the address of the variable that leads to what a thread runs; 0 when it
// is not known.
func (vm *machine) variable(threadPointer uint64) uint64 {
	if at, known := vm.threads[threadPointer]; known {
		return at
	}
	at := uint64(0)
	if vm.fields.threadID != 0 {
		at = vm.threadOf(threadPointer)
	} else {
		at = vm.inStorage(threadPointer)
	}
	if at == 0 {
		return 0
	}
	if len(vm.threads) >= maxThreads {
		clear(vm.threads)
	}
	vm.threads[threadPointer] = at
	return at
}

// maxStatic is how far from a thread pointer there may be variables that all threads have there.
const maxStatic = 64 << 10

// isStatic reports whether the variable of the thread that was walked is at a place that is the same from the thread
// pointers of all threads: in storage of a library that the program has been linked with.
func (vm *machine) isStatic(threadPointer uint64) bool {
	return vm.fields.threadID == 0 && vm.at-threadPointer+maxStatic < 2*maxStatic
}

// threadOf is variable where it is one of the rb_thread_t, which are in a list.
func (vm *machine) threadOf(threadPointer uint64) uint64 {
	machine, _ := vm.WordNow(vm.image.machine + vm.bias)
	list := machine + vm.fields.threads + 2*vm.image.arch.lock
	thread, _ := vm.WordNow(list)
	for n := 0; thread != 0 && thread != list && n < maxThreads; n++ {
		if id, _ := vm.WordNow(thread + vm.fields.threadID); vm.isThread(id, threadPointer) {
			return thread + vm.fields.context
		}
		thread, _ = vm.WordNow(thread)
	}
	return 0
}

// isThread reports whether a pthread_t is of the thread that has a thread pointer.
func (vm *machine) isThread(id, threadPointer uint64) bool {
	return threadPointer-id <= vm.image.arch.handle
}

// inStorage is variable where it is in thread-local storage.
func (vm *machine) inStorage(threadPointer uint64) uint64 {
	s := &vm.image.storage
	if s.word == 0 {
		return vm.inWords(threadPointer + s.distance)
	}
	number, ok := vm.WordNow(s.word + vm.bias)
	if !ok {
		return 0
	}
	if vm.image.arch.isDescribed {
		// It is the distance from the thread pointer, or the address of the number (Oliva and Araújo,
		// Speeding Up Thread-Local Storage Access in Dynamic Libraries).
		if at := vm.inWords(threadPointer + number - s.offset); at != 0 {
			return at
		}
		number, _ = vm.WordNow(number)
	}
	for _, words := range [...]uint64{2, 1} {
		if vm.vectorWords != 0 && words != vm.vectorWords {
			continue
		}
		storage, ok := vm.inVector(threadPointer, words, number)
		if !ok {
			continue
		}
		if at := vm.inWords(storage); at != 0 {
			vm.vectorWords = words
			return at
		}
	}
	return 0
}

// inWords is variable where it is among the words of the file's thread-local storage.
func (vm *machine) inWords(storage uint64) uint64 {
	p := vm.image
	for i := range p.words {
		word := p.firstOne + 8*i
		if vm.hasPlace {
			word = vm.place
		}
		context, _ := vm.WordNow(storage + word)
		if vm.isContext(context) {
			vm.place, vm.hasPlace = word, true
			return storage + word
		}
	}
	return 0
}

// inVector returns where a thread has the storage with a number, as C libraries keep it: there is a
// vector with two words for each file in glibc, and one in musl, the number of the files in the first.
func (vm *machine) inVector(threadPointer, words, number uint64) (addr uint64, ok bool) {
	const maxModules, none = 1 << 16, ^uint64(0)
	if number == 0 || number > maxModules {
		return 0, false
	}
	vector, _ := vm.WordNow(threadPointer + vm.image.arch.vectors[words])
	if count, _ := vm.WordNow(vector); words == 1 && count < number {
		return 0, false
	}
	addr, ok = vm.WordNow(vector + 8*words*number)
	return addr, ok && addr != 0 && addr != none
}

// isContext reports whether there is an rb_execution_context_t at an address: its thread
// leads back to it.
func (vm *machine) isContext(addr uint64) bool {
	var b [rubyContextBytes]byte
	if addr == 0 || addr%8 != 0 || !vm.ReadNow(addr, b[:]) {
		return false
	}
	le := binary.LittleEndian
	stack, words, current := le.Uint64(b[rubyStack:]), le.Uint64(b[rubyStackWords:]), le.Uint64(b[rubyCurrent:])
	end := stack + 8*words
	if words > maxStack || current < stack || current >= end || (end-current)%vm.fields.frameBytes != 0 {
		return false
	}
	back, ok := vm.WordNow(le.Uint64(b[vm.fields.thread:]) + vm.fields.context)
	return ok && back == addr
}
