package holders

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is a process that holds a socket.
type Process struct {
	PID  int
	Name string // of its program
}

func (p Process) String() string { return fmt.Sprintf("%s (pid %d)", p.Name, p.PID) }

// Processes returns the processes with a descriptor of one of the sockets, as far as this process may
// inspect them. It returns this process only if there is no other one, because a child may hold a
// descriptor that it inherited.
func Processes(inodes []uint64) []Process { return processes("/proc", inodes) }

func processes(proc string, inodes []uint64) (found []Process) {
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
			found = append(found, processIn(dir))
		}
	}
	if dir := filepath.Join(proc, own); len(found) == 0 && own != "" && holdsAny(dir, links) {
		found = append(found, processIn(dir))
	}
	return found
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

// processIn returns the process of a directory of /proc.
func processIn(dir string) Process {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	if err != nil {
		comm = []byte("a process")
	}
	pid, _ := strconv.Atoi(filepath.Base(dir))
	return Process{pid, strings.TrimSpace(string(comm))}
}
