package sandbox

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Rights of Landlock (Documentation/userspace-api/landlock.rst).
const (
	readFile = syscall.AccessFSReadFile
	readDir  = readFile | syscall.AccessFSReadDir
	writeDir = readDir | syscall.AccessFSWriteFile | syscall.AccessFSTruncate | syscall.AccessFSRemoveFile | syscall.AccessFSRemoveDir |
		syscall.AccessFSMakeDir | syscall.AccessFSMakeReg | syscall.AccessFSMakeSock
	devices = readDir | syscall.AccessFSWriteFile | syscall.AccessFSIoctlDev
	program = readFile | syscall.AccessFSExecute

	// everything is what needs a right: all that the kernel knows up to ABI 5. Later ABIs also
	// cover sockets and signals.
	everything = syscall.AccessFSIoctlDev<<1 - 1
)

// restrictFiles forbids all threads, for good, to open files outside the policy. It returns the
// version of the kernel's Landlock; 0: the kernel has none.
func (p Policy) restrictFiles() (abi int, err error) {
	if abi, err = syscall.LandlockGetABIVersion(); err != nil {
		return 0, fmt.Errorf("the kernel has no Landlock, which restricts access to files (%w)", err)
	}
	var rules []landlock.Rule
	for _, list := range []struct {
		paths  []string
		rights landlock.AccessFSSet
	}{{p.Read, readDir}, {p.Write, writeDir}, {p.Private, writeDir}, {p.Devices, devices}, {loaded(), program}} {
		for _, path := range list.paths {
			rules = append(rules, allow(path, list.rights)...)
		}
	}
	if err := landlock.MustConfig(landlock.AccessFSSet(everything)).BestEffort().Restrict(rules...); err != nil {
		return 0, fmt.Errorf("access to files is not restricted: %w", err)
	}
	return abi, nil
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
		if dir := filepath.Dir(real); err == nil && real != path && rights == readDir && dir != outside {
			rules = append(rules, landlock.PathAccess(rights, dir).IgnoreIfMissing())
		}
		rights &= program | syscall.AccessFSWriteFile | syscall.AccessFSTruncate // what a file can have
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

// makeDirs creates the directories that the daemon writes to, and that of namespaces, since a rule needs
// an existing one. An error shows later, when the directory is used.
func (p Policy) makeDirs() {
	for _, dir := range p.Write {
		_ = os.MkdirAll(dir, 0o755)
	}
	if slices.Contains(p.Read, netnsDir) { // runtimes create it with the first namespace
		_ = os.Mkdir(netnsDir, 0o755)
	}
	for _, dir := range p.Private {
		_ = os.MkdirAll(filepath.Dir(dir), 0o755)
		_ = os.Mkdir(dir, 0o700)
	}
}
