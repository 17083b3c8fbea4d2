package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Processes names the processes with a descriptor of one of the sockets, each as
// "name (pid 123)", as far as this process may inspect them. It names this process only if there
// is no other one, because a child may hold a descriptor that it inherited.
func Processes(inodes []uint64) []string { return processes("/proc", inodes) }

func processes(proc string, inodes []uint64) (names []string) {
	if len(inodes) == 0 {
		return nil
	}
	links := map[string]bool{} // targets of the links in /proc/PID/fd
	for _, inode := range inodes {
		links[fmt.Sprintf("socket:[%d]", inode)] = true
	}
	own, _ := os.Readlink(filepath.Join(proc, "self"))
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, dir := range dirs {
		if filepath.Base(dir) != own && holdsAny(dir, links) {
			names = append(names, processName(dir))
		}
	}
	if dir := filepath.Join(proc, own); len(names) == 0 && own != "" && holdsAny(dir, links) {
		names = append(names, processName(dir))
	}
	return names
}

func holdsAny(dir string, links map[string]bool) bool {
	fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && links[target] {
			return true
		}
	}
	return false
}

// processName returns "name (pid 123)" for a directory of /proc.
func processName(dir string) string {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		comm = []byte("a process")
	}
	return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), filepath.Base(dir))
}
