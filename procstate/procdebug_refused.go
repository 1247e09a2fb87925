package procstate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// whyUnknown tells why /proc knows nothing of a process.
func whyUnknown(pid int) error {
	_, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	switch {
	case errors.Is(err, os.ErrPermission),
		errors.Is(err, os.ErrNotExist) && unix.Kill(pid, 0) != unix.ESRCH:
		return fmt.Errorf("%w: /proc hides it (hidepid); run as root or with CAP_SYS_PTRACE", ErrNotPermitted)
	case err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH):
		return err
	}
	if here := pidInNamespaces(pid); len(here) > 0 {
		return fmt.Errorf("%w here; in another PID namespace it is the process known here as %s", ErrNoProcess, strings.Join(here, " or "))
	}
	return ErrNoProcess
}

// firstUserNamespace is the machine's, where capabilities count for all
// processes (PROC_USER_INIT_INO).
const firstUserNamespace = "user:[4026531837]"

// whyRefused says what may keep the kernel from letting this process trace
// another.
func whyRefused(pid int) string {
	var why []string
	caps, _ := strconv.ParseUint(statusField(os.Getpid(), "CapEff"), 16, 64)
	if caps&(1<<unix.CAP_SYS_PTRACE) == 0 {
		if uid := statusInt(pid, "Uid"); uid >= 0 && uid != os.Geteuid() {
			return fmt.Sprintf("it belongs to user %d; run as that user or as root, or with CAP_SYS_PTRACE", uid)
		}
		why = append(why, "without CAP_SYS_PTRACE, not if it had more privileges than this one")
	}
	if ns, err := os.Readlink("/proc/self/ns/user"); err == nil && ns != firstUserNamespace {
		why = append(why, "this is a user namespace, whose capabilities count for none of the processes outside")
	}
	if b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil && strings.TrimSpace(string(b)) != "0" {
		why = append(why, "kernel.yama.ptrace_scope is "+strings.TrimSpace(string(b)))
	}
	if statusInt(os.Getpid(), "Seccomp") > 0 {
		why = append(why, "a seccomp filter is active, as in containers, and may not allow ptrace")
	}
	if why == nil {
		return "the kernel refuses, maybe by a security module"
	}
	return strings.Join(why, "; ")
}

// pidInNamespaces looks for processes that have the ID pid in a PID namespace
// below this one.
func pidInNamespaces(pid int) (here []string) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	want := strconv.Itoa(pid)
	for _, n := range names {
		id, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		f := strings.Fields(statusField(id, "NSpid"))
		if len(f) > 1 && slices.Contains(f[1:], want) {
			here = append(here, n.Name())
		}
	}
	return here
}
