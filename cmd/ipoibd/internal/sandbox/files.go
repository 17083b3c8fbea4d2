package sandbox

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Rights of Landlock (Documentation/userspace-api/landlock.rst).
const (
	readFile = syscall.AccessFSReadFile
	readDir  = readFile | syscall.AccessFSReadDir
	writeDir = readDir | syscall.AccessFSWriteFile | syscall.AccessFSTruncate |
		syscall.AccessFSRemoveFile | syscall.AccessFSRemoveDir |
		syscall.AccessFSMakeDir | syscall.AccessFSMakeReg | syscall.AccessFSMakeSock |
		syscall.AccessFSResolveUnix
	devices = readDir | syscall.AccessFSWriteFile | syscall.AccessFSIoctlDev
	program = readFile | syscall.AccessFSExecute
	// attribute is a file of sysfs, or a directory of them.
	attribute = readDir | syscall.AccessFSWriteFile | syscall.AccessFSTruncate

	// everything is all rights that the kernel knows up to ABI 9.
	everything = syscall.AccessFSResolveUnix<<1 - 1
	// scopes are the operations on other processes that end at the sandbox (ABI 6).
	scopes = syscall.ScopeAbstractUnixSocket | syscall.ScopeSignal
)

// The first versions of Landlock that restrict more than files.
const (
	abiScopes      = 6 // Linux 6.12
	abiUnixSockets = 9 // sockets with a path
)

// restrictFiles forbids all threads, for good, to open files outside the policy, to connect to other
// UNIX sockets, and to signal other processes. It returns the version of the kernel's Landlock, 0 if it
// has none, and what that does not restrict.
func (p Policy) restrictFiles() (abi int, missing []string) {
	abi, err := syscall.LandlockGetABIVersion()
	if err != nil {
		return 0, []string{fmt.Sprintf("the kernel has no Landlock, which restricts access to files (%v)", err)}
	}
	var attributes []string
	for _, pattern := range p.Attributes {
		found, _ := filepath.Glob(pattern)
		attributes = append(attributes, found...)
	}
	var rules []landlock.Rule
	for _, list := range []struct {
		paths  []string
		rights landlock.AccessFSSet
	}{
		{p.Read, readDir},
		{p.Devices, devices},
		{attributes, attribute},
		{[]string{"/sys"}, syscall.AccessFSReadDir},
		{loaded(), program},
		{sockets(), syscall.AccessFSResolveUnix},
	} {
		for _, path := range list.paths {
			rules = append(rules, allow(path, list.rights)...)
		}
	}
	for _, dir := range slices.Concat(p.Write, p.Private) {
		// What the rule refers to is what was checked: the path may lead elsewhere by now. An error shows when the
		// directory is used.
		if opened, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
			defer opened.Close()
			path := descriptor(int(opened.Fd()))
			if real, err := os.Readlink(path); err == nil && !misleads(dir, real) {
				rules = append(rules, landlock.PathAccess(writeDir, path))
			}
		}
	}
	config := landlock.MustConfig(landlock.AccessFSSet(everything), landlock.ScopedSet(scopes))
	if abi == abiScopes && !signalsItself() {
		config.Scoped &^= syscall.ScopeSignal
	}
	const abstract = "connections to abstract UNIX sockets are not restricted, because "
	if strings.HasPrefix(os.Getenv("NOTIFY_SOCKET"), "@") {
		config.Scoped &^= syscall.ScopeAbstractUnixSocket
		missing = append(missing, abstract+"the service manager's socket (NOTIFY_SOCKET) is one")
	}
	if err := config.BestEffort().Restrict(rules...); err != nil {
		return 0, []string{fmt.Sprintf("access to files is not restricted: %v", err)}
	}
	if abi < abiScopes {
		missing = append(missing, abstract+"the kernel is older than Linux 6.12")
	}
	if root := os.Geteuid() == 0; root && abi < abiUnixSockets {
		missing = append(missing, "connections to UNIX sockets of root are not restricted, "+
			"because the daemon runs as root and the kernel's Landlock is older than ABI 9")
	}
	return abi, missing
}

// signalsItself reports whether a thread in the sandbox may signal one of its own process that is not in
// it yet, as the runtime does to restrict them one after the other. Early kernels with ABI 6 forbid
// it (erratum 2 of Documentation/userspace-api/landlock.rst), and the runtime would wait for ever. The
// seccomp filter refuses signals to other processes as well.
func signalsItself() bool {
	const errata, second = 1 << 1, 1 << 1 // LANDLOCK_CREATE_RULESET_ERRATA
	fixed, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, errata)
	return errno == 0 && fixed&second != 0
}

// sockets returns the sockets of the system to which the daemon connects: systemd's and D-Bus's, and
// those by which the C library resolves names.
func sockets() []string {
	bus, _ := strings.CutPrefix(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), "unix:path=")
	bus, _, _ = strings.Cut(bus, ",")
	paths := []string{
		cmp.Or(bus, "/run/dbus/system_bus_socket"),
		"/run/nscd", "/run/systemd/resolve", "/run/systemd/notify",
	}
	if notify := os.Getenv("NOTIFY_SOCKET"); filepath.IsAbs(notify) {
		paths = append(paths, notify)
	}
	return paths
}

// allow returns the rules that grant rights to a directory or a file; none if it does not exist.
// If it is a link to a file, they include the directory of that file, which may be replaced.
func allow(path string, rights landlock.AccessFSSet) (rules []landlock.Rule) {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	if !info.IsDir() {
		real, err := filepath.EvalSymlinks(path)
		dir := filepath.Dir(real)
		trusted := own(dir) || slices.Contains(resolver, path) && !shared(dir)
		if err == nil && real != path && rights == readDir && trusted {
			rules = append(rules, landlock.PathAccess(rights, dir).IgnoreIfMissing())
		}
		// What a file can have.
		rights &= program | syscall.AccessFSWriteFile | syscall.AccessFSTruncate | syscall.AccessFSResolveUnix
	}
	return append(rules, landlock.PathAccess(rights, path).IgnoreIfMissing())
}

// loaded returns the files of which this program consists, so that it can be executed again: itself,
// also if it was deleted, the dynamic linker and libraries.
func loaded() []string {
	paths := []string{self}
	maps, err := os.Open("/proc/self/maps") // proc_pid_maps(5)
	if err != nil {
		return paths
	}
	defer maps.Close()
	seen := map[string]bool{}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if at := strings.IndexByte(lines.Text(), '/'); at >= 0 && !seen[lines.Text()[at:]] {
			seen[lines.Text()[at:]] = true
			paths = append(paths, lines.Text()[at:])
		}
	}
	return paths
}

// makeDirs creates the directories that the daemon writes to, since a rule needs an existing one. An
// error shows later, when the directory is used.
func (p Policy) makeDirs() {
	for _, dir := range p.Write {
		_ = os.MkdirAll(dir, 0o755)
	}
	for _, dir := range p.Private {
		_ = os.MkdirAll(filepath.Dir(dir), 0o755)
		_ = os.Mkdir(dir, 0o700)
	}
}

// keepDevices makes sure that the directory of the HCAs' devices stays when a reset removes the last device in
// it: devtmpfs removes an empty directory, and the rule would not apply to a new one of the same name.
// If it cannot, the policy names the directory above, and missing says so.
func (p *Policy) keepDevices() (missing []string) {
	at := slices.Index(p.Devices, verbsDir)
	if at < 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(verbsDir, "rdma_cm")); err == nil {
		return nil // it belongs to no HCA
	}
	_ = os.MkdirAll(verbsDir, 0o755)
	file, err := os.OpenFile(filepath.Join(verbsDir, ".ipoibd"), os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		file.Close()
		return nil
	}
	p.Devices = slices.Clone(p.Devices)
	p.Devices[at] = filepath.Dir(verbsDir)
	return []string{fmt.Sprintf("the daemon can open all devices that its user may open, "+
		"because %s may be replaced in a reset (%v); load the module rdma_ucm before the start", verbsDir, err)}
}
