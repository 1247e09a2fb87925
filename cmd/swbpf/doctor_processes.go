package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/loader"
	"github.com/swbpf/swbpf/symbols"
)

const processRemedy = "run as root, or add cap_sys_ptrace to setcap"

// examineProcesses tries what reading other processes is made of.
func examineProcesses() []loader.Finding {
	return []loader.Finding{examinePtrace(), examineMemory(), examineForeign(), examineMapFiles()}
}

// examineNames looks at what names are made of.
func examineNames() []loader.Finding {
	return []loader.Finding{examineKallsyms(), examineDebugDir()}
}

// examinePtrace asks whether ptrace is allowed at all; then for what Yama adds.
func examinePtrace() loader.Finding {
	f := loader.Finding{Name: "ptrace", Found: "allowed"}
	if err := loader.TryPtrace(); err != nil {
		f.Level, f.Found = loader.Missing, err.Error()
		f.Without, f.Remedy = "swbpf walk and recording a command do not work", "allow ptrace in the container's seccomp profile"
		return f
	}
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return f // no Yama
	}
	scope := strings.TrimSpace(string(b))
	f.Found = "allowed, Yama's ptrace_scope is " + scope
	switch {
	case scope == "3":
		f.Level, f.Without, f.Remedy = loader.Missing, "swbpf walk does not work", "kernel.yama.ptrace_scope can only be lowered by a reboot"
	case scope == "1" && !readable(os.Getppid()), scope == "2" && !readable(1):
		f.Level, f.Without, f.Remedy = loader.Limited, "swbpf walk only works on own children, if at all", processRemedy+", or: sysctl kernel.yama.ptrace_scope=0"
	}
	return f
}

// readable reports whether the memory of a process could be read; nothing is.
func readable(pid int) bool {
	var b [1]byte
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(1)
	_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0, Len: 1}}, 0)
	return errors.Is(err, unix.EFAULT)
}

func examineMemory() loader.Finding {
	f := loader.Finding{Name: "process_vm_readv", Found: "allowed"}
	if !readable(os.Getpid()) {
		f.Level, f.Found = loader.Missing, "refused"
		f.Without, f.Remedy = "swbpf walk reads stacks through /proc/PID/mem, which is slower", "allow process_vm_readv in the container's seccomp profile"
	}
	return f
}

// examineForeign counts the processes that can be looked into.
func examineForeign() loader.Finding {
	can, cannot := countReadable()
	f := loader.Finding{Name: "others' processes", Found: fmt.Sprintf("all %d readable", can)}
	_, err := os.ReadFile("/proc/1/status")
	if err != nil {
		f.Found = fmt.Sprintf("%d readable, the others hidden (hidepid of /proc)", can)
	} else if cannot > 0 {
		f.Found = fmt.Sprintf("%d of %d readable", can, can+cannot)
	}
	if err != nil || cannot > 0 {
		f.Level = loader.Limited
		f.Without = "the rest are unknown if they run already when a recording starts: no stacks, no names"
		f.Remedy = processRemedy + "; where that is so, they have capabilities that this process lacks, or another user namespace"
	}
	return f
}

// countReadable counts the processes whose mappings may be read, and those
// whose may not; threads of the kernel are neither.
func countReadable() (can, cannot int) {
	paths, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		return 0, 0
	}
	var b [1]byte
	for _, path := range paths {
		file, err := os.Open(path)
		if errors.Is(err, os.ErrPermission) {
			cannot++
		}
		if err != nil {
			continue
		}
		if n, _ := file.Read(b[:]); n > 0 {
			can++
		}
		file.Close()
	}
	return can, cannot
}

// examineMapFiles opens the first file that this process maps by its range.
func examineMapFiles() loader.Finding {
	f := loader.Finding{Name: "/proc/PID/map_files", Found: "readable"}
	err := openMapFile()
	switch {
	case err != nil:
		f.Found = errors.Unwrap(err).Error()
		f.Without = "files that were deleted or replaced while mapped are not unwound or named"
	case !hasCaps(unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH):
		f.Found = "readable of this user's processes"
		f.Without = "files that were deleted or replaced while others mapped them are not unwound or named"
	default:
		return f
	}
	f.Level = loader.Limited
	f.Remedy = "run as root, or add cap_checkpoint_restore, cap_sys_ptrace and cap_dac_read_search to setcap"
	return f
}

// hasCaps reports whether this process has capabilities with numbers below 32.
func hasCaps(caps ...int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	for _, c := range caps {
		if data[0].Effective&(1<<c) == 0 {
			return false
		}
	}
	return true
}

func openMapFile() error {
	entries, err := os.ReadDir("/proc/self/map_files")
	if err != nil {
		return fmt.Errorf("list: %w", errors.Unwrap(err))
	}
	for _, e := range entries {
		file, err := os.Open(filepath.Join("/proc/self/map_files", e.Name()))
		if err == nil {
			return file.Close()
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("open: %w", errors.Unwrap(err))
		}
	}
	return fmt.Errorf("list: %w", os.ErrNotExist)
}

func examineKallsyms() loader.Finding {
	f := loader.Finding{Name: "kernel names", Found: "readable"}
	if restrict, err := os.ReadFile("/proc/sys/kernel/kptr_restrict"); err == nil {
		f.Found = "readable, kptr_restrict is " + strings.TrimSpace(string(restrict))
	}
	if _, err := symbols.OpenKernel(); err != nil {
		f.Level, f.Without = loader.Limited, "kernel functions have no names"
		f.Remedy = "run as root, or add cap_syslog to setcap, or: sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1"
		f.Found = strings.Replace(f.Found, "readable", "hidden", 1)
		if !errors.Is(err, symbols.ErrRestricted) {
			f.Found, f.Remedy = err.Error(), "run a kernel built with CONFIG_KALLSYMS=y"
		}
	}
	return f
}

func examineDebugDir() loader.Finding {
	f := loader.Finding{Name: "debug files"}
	entries, err := os.ReadDir(filepath.Join(symbols.DefaultDebugDir, ".build-id"))
	if err != nil || len(entries) == 0 {
		f.Level, f.Found = loader.Limited, "none in "+symbols.DefaultDebugDir
		f.Without = "functions of stripped programs and libraries that they do not export have no names (walks are as good without)"
		f.Remedy = "install the packages with debug information of what you look at: *-dbgsym or *-dbg (Debian, Ubuntu), debuginfo-install (Fedora)"
		return f
	}
	f.Found = "in " + symbols.DefaultDebugDir + " for at least " + strconv.Itoa(len(entries)) + " files"
	return f
}
