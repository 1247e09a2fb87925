package symbols

// vsyscallPage is the page of system call stubs that the kernel maps into
// every amd64 process at a fixed address (arch/x86/include/uapi/asm/
// vsyscall.h).
const vsyscallPage = 0xffffffffff600000

// vsyscallLine names an address of the page: three stubs, 1024 bytes apart.
func vsyscallLine(addr uint64) (l Line, ok bool) {
	names := [...]string{"gettimeofday", "time", "getcpu"}
	i := (addr - vsyscallPage) / 1024
	if addr < vsyscallPage || i >= uint64(len(names)) {
		return l, false
	}
	name := "vsyscall_" + names[i]
	return Line{Function: name, SystemName: name, FunctionStart: vsyscallPage + i*1024}, true
}
