package loader

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MissingError reports something that the system lacks or forbids, and how to
// get it.
type MissingError struct {
	What   string // "CAP_BPF"
	Remedy string // "run as root, or ..."
	Err    error  // what the kernel said; may be nil
}

// Error implements error: what is missing, and the remedy.
func (e *MissingError) Error() string {
	msg := "missing " + e.What
	if e.Err != nil {
		msg += " (" + e.Err.Error() + ")"
	}
	return msg + "; " + e.Remedy
}

// Unwrap returns what the kernel said.
func (e *MissingError) Unwrap() error { return e.Err }

// The oldest kernel with all that is required: BPF ring buffers, CAP_BPF and
// CAP_PERFMON, run-time statistics.
const minMajor, minMinor = 5, 8

const btfPath = "/sys/kernel/btf/vmlinux"

// setcapFor is the command that has a program record as a user where
// kernel.perf_event_paranoid is level. The first two are required; the others are for
// processes of other users, their files, and kernel names, and the last for events on
// kernels of Debian and Ubuntu.
func setcapFor(level int) string {
	caps := "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_syslog"
	if level > 2 {
		caps += ",cap_sys_admin"
	}
	return setcap(caps)
}

// setcap is the command that gives this program capabilities. It names the program's file
// where a shell takes that as it is.
func setcap(caps string) string {
	file, err := os.Executable()
	if err != nil || !plainPath.MatchString(file) {
		file = "FILE"
	}
	return "setcap " + caps + "+ep " + file
}

// plainPath matches paths that need no quotes.
var plainPath = regexp.MustCompile(`^[A-Za-z0-9/._+-]+$`)

// setcapRemedy is setcapFor this machine.
func setcapRemedy() string {
	level, _ := readInt(paranoidPath)
	return setcapFor(level)
}

// rootRemedy is how to record at all.
func rootRemedy() string { return "run as root, or: " + setcapRemedy() }

const paranoidPath = "/proc/sys/kernel/perf_event_paranoid"

// checkSystem reports what can be known to be missing before anything is
// tried.
func checkSystem() error {
	if release := kernelRelease(); !kernelSince(minMajor, minMinor) {
		return &MissingError{
			What:   fmt.Sprintf("Linux %d.%d or later: this is %s", minMajor, minMinor, release),
			Remedy: "run a newer kernel",
		}
	}
	caps, err := effectiveCaps()
	if err != nil {
		return err
	}
	if lacking := lackingCaps(caps); len(lacking) > 0 {
		return &MissingError{
			What:   strings.Join(lacking, " and "),
			Remedy: rootRemedy(),
		}
	}
	if _, err := os.Stat(btfPath); err != nil {
		return &MissingError{
			What:   "type information of the kernel (BTF)",
			Remedy: "run a kernel built with CONFIG_DEBUG_INFO_BTF=y, and have /sys mounted",
			Err:    err,
		}
	}
	return checkProc()
}

// checkProc reports a /proc that is not that of our PID namespace: its numbers
// are of other processes.
func checkProc() error {
	self, err := os.Readlink("/proc/self")
	if err == nil && self == strconv.Itoa(os.Getpid()) {
		return nil
	}
	return &MissingError{
		What:   "/proc of this PID namespace",
		Remedy: "mount it: mount -t proc proc /proc; or make the namespace with unshare --pid --fork --mount-proc",
		Err:    err,
	}
}

// kernelRelease is the kernel's name for its version, "" when it tells none.
func kernelRelease() string {
	if assumedRelease != "" {
		return assumedRelease
	}
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// kernelSince reports whether the kernel is of a version or later, or of one
// that it does not tell.
func kernelSince(major, minor int) bool {
	m, n, ok := parseRelease(kernelRelease())
	return !ok || m > major || m == major && n >= minor
}

// parseRelease reads the version from a release such as "6.1.0-13-amd64".
func parseRelease(release string) (major, minor int, ok bool) {
	a, rest, ok := strings.Cut(release, ".")
	if !ok {
		return 0, 0, false
	}
	b := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		b = rest[:i]
	}
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil
}

// effectiveCaps is the set of capabilities of this process.
func effectiveCaps() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, fmt.Errorf("capabilities: %w", err)
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), nil
}

// hasCap reports whether this process has a capability.
func hasCap(n uint) bool {
	caps, err := effectiveCaps()
	return err == nil && caps&(1<<n) != 0
}

// lackingCaps names the capabilities needed that caps does not have.
// CAP_SYS_ADMIN includes both.
func lackingCaps(caps uint64) []string {
	if caps&(1<<unix.CAP_SYS_ADMIN) != 0 {
		return nil
	}
	var lacking []string
	if caps&(1<<unix.CAP_BPF) == 0 {
		lacking = append(lacking, "CAP_BPF")
	}
	if caps&(1<<unix.CAP_PERFMON) == 0 {
		lacking = append(lacking, "CAP_PERFMON")
	}
	return lacking
}

// diagnose explains an error of the kernel where its cause can be told; all
// are wrapped with what was being done.
func diagnose(err error, doing string) error {
	var missing *MissingError
	if errors.As(err, &missing) {
		return err
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if errors.Is(err, unix.EMFILE) {
		return missingFiles(err)
	}
	if errors.Is(err, unix.ENOMEM) {
		return &MissingError{
			What:   "memory in the kernel for rings and tables",
			Remedy: "raise the memory limit of this cgroup, if it has one: 64 MiB do for most events, 128 MiB for --off-cpu and --wall",
			Err:    err,
		}
	}
	if locked := lockedDown(lockdownMode()); locked != nil {
		locked.Err = err
		return locked
	}
	// The verifier's word for a program it rejects is "permission denied" too.
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) || !isRefusal(err) {
		return err
	}
	return refused(err, doing)
}

// isRefusal reports whether the kernel, a seccomp filter or a sandbox refused a
// system call.
func isRefusal(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSYS)
}

// refused explains a refusal as far as what is known of this process tells.
func refused(err error, doing string) *MissingError {
	caps, capsErr := effectiveCaps()
	if capsErr != nil {
		caps = 0
	}
	level, _ := readInt(paranoidPath)
	return refusedTo(caps, level, err, doing)
}

// refusedTo is refused with these capabilities and this kernel.perf_event_paranoid.
func refusedTo(caps uint64, level int, err error, doing string) *MissingError {
	var said unix.Errno
	if errors.As(err, &said) { // without guesses of the BPF library
		err = fmt.Errorf("%s: %w", doing, said)
	}
	call := "bpf"
	if strings.HasPrefix(doing, "open ") {
		call = "perf_event_open"
	}
	m := &MissingError{What: "permission for the system call " + call, Err: err}
	switch {
	case said == unix.ENOSYS:
		m.What = "the system call " + call
		m.Remedy = "allow bpf and perf_event_open in the seccomp profile of the container, or record outside of its sandbox; a kernel without them lacks CONFIG_BPF_SYSCALL or CONFIG_PERF_EVENTS"
	case !inFirstUserNamespace():
		m.What += ": capabilities of a user namespace do not count"
		m.Remedy = outsideRemedy
	case call == "perf_event_open" && len(lackingCaps(caps)) == 0 && wantsAdmin(level, caps):
		m.What = fmt.Sprintf("permission for performance events (kernel.perf_event_paranoid is %d, at which %s)", level, adminAbove2)
		m.Remedy = adminRemedy
	case len(lackingCaps(caps)) == 0:
		m.Remedy = securityRemedy
		if filter, _ := hasSeccompFilter(); filter {
			m.Remedy = "allow bpf and perf_event_open in the seccomp profile of the container"
		}
	case level > -1:
		m.What = fmt.Sprintf("permission for performance events (kernel.perf_event_paranoid is %d)", level)
		m.Remedy = "run as root with all capabilities, or: sysctl kernel.perf_event_paranoid=-1"
	default:
		m.What, m.Remedy = "permission to use BPF and performance events", rootRemedy()
	}
	return m
}

const (
	outsideRemedy  = "run outside of it: as root of the machine, in a container that is not rootless"
	securityRemedy = "have the security module of this machine allow it, whose log tells more"
)

// What some kernels have added to kernel.perf_event_paranoid: at 3, which is the default
// there, and 4, CAP_PERFMON does not do.
const (
	adminAbove2 = "kernels of Debian and Ubuntu want CAP_SYS_ADMIN"
	adminRemedy = "sysctl kernel.perf_event_paranoid=2, or add cap_sys_admin to setcap"
)

// wantsAdmin reports whether that lets this process open no events on such a kernel.
func wantsAdmin(level int, caps uint64) bool {
	return level > 2 && caps&(1<<unix.CAP_SYS_ADMIN) == 0
}

// hasSeccompFilter reports whether a filter looks at the system calls of this
// process, as in containers.
func hasSeccompFilter() (bool, error) {
	b, err := os.ReadFile("/proc/self/status")
	_, mode, ok := strings.Cut(string(b), "\nSeccomp:")
	return ok && !strings.HasPrefix(strings.TrimSpace(mode), "0"), err
}

// inFirstUserNamespace reports whether this is the machine's user namespace
// (PROC_USER_INIT_INO), or may be.
func inFirstUserNamespace() bool {
	ns, err := os.Readlink("/proc/self/ns/user")
	return err != nil || ns == "user:[4026531837]"
}

// openFiles is how many files are open at most while the program is loaded,
// without those for each CPU.
const openFiles = 100

// withFilesMissing explains an error which no more is known of than that too many files
// are open.
func withFilesMissing(err error) error {
	var missing *MissingError
	if errors.Is(err, unix.EMFILE) && !errors.As(err, &missing) {
		return missingFiles(err)
	}
	return err
}

func missingFiles(err error) error {
	return &MissingError{
		What:   "room for open files",
		Remedy: filesRemedy(),
		Err:    err,
	}
}

func filesRemedy() string {
	return fmt.Sprintf("raise the limit (ulimit -n): it takes some %d, and 2 for each CPU", openFiles)
}

// diagnoseLoad explains why maps and programs could not be loaded.
func diagnoseLoad(err error) error {
	const doing = "load the sampling program"
	// The BPF library keeps EMFILE to itself, or takes it for a kernel that lacks
	// something.
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil && files.Cur < openFiles+2*uint64(CPUs()) && !errors.Is(err, unix.EPERM) {
		return missingFiles(fmt.Errorf("%s: %w", doing, err))
	}
	limit, ok := chargedMemlock()
	if !ok || !errors.Is(err, unix.EPERM) {
		return diagnose(err, doing)
	}
	return &MissingError{
		What:   fmt.Sprintf("memory that may be locked: the limit is %d KiB, and kernels before 5.11 charge rings and tables to it", limit>>10),
		Remedy: "ulimit -l unlimited, or give the program cap_sys_resource, which lets it raise the limit",
		Err:    fmt.Errorf("%s: %w", doing, err),
	}
}

// chargedMemlock returns the limit on locked memory, in bytes, where there is one
// and the kernel charges BPF maps to it.
func chargedMemlock() (limit uint64, ok bool) {
	var l unix.Rlimit
	if kernelSince(5, 11) || unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil {
		return 0, false
	}
	return l.Cur, l.Cur != unix.RLIM_INFINITY
}

// lockedDown is what a lockdown mode keeps from all recordings, nil where it does not.
func lockedDown(mode string) *MissingError {
	if mode != "confidentiality" {
		return nil
	}
	return &MissingError{
		What:   "permission to read kernel memory: the kernel is locked down (" + mode + ")",
		Remedy: "boot with lockdown=integrity or lockdown=none, or turn off Secure Boot",
	}
}

// lockdownMode returns the kernel's lockdown mode, "" when there is none.
func lockdownMode() string {
	b, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return ""
	}
	return selectedWord(string(b))
}

// selectedWord returns the word in brackets of "none [integrity] other".
func selectedWord(s string) string {
	_, s, _ = strings.Cut(s, "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}

func readInt(path string) (int, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil
}

// tgidOf returns the process that a thread belongs to. A process of which nothing
// is left but its status for its parent is none.
func tgidOf(tid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = unix.Kill(tid, 0)
			if err == unix.ESRCH {
				return 0, fmt.Errorf("process %d: no such process", tid)
			}
		}
		if err == nil || errors.Is(err, os.ErrPermission) {
			return 0, &MissingError{
				What:   fmt.Sprintf("permission to see process %d, which /proc hides (hidepid)", tid),
				Remedy: "run as root, or with CAP_SYS_PTRACE",
			}
		}
		return 0, fmt.Errorf("process %d: %w", tid, err)
	}
	field := func(name string) string {
		_, rest, _ := strings.Cut(string(b), "\n"+name+":")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	if strings.HasPrefix(field("State"), "Z") && field("Threads") == "1" {
		return 0, fmt.Errorf("process %d: has ended and is a zombie", tid)
	}
	tgid, err := strconv.Atoi(field("Tgid"))
	if err != nil {
		return 0, fmt.Errorf("process %d: no Tgid in its status", tid)
	}
	return tgid, nil
}
