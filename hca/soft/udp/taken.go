package udp

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrPortTaken means that another process, or the kernel, receives on UDP port 4791.
var ErrPortTaken = errors.New("port taken")

// PortTakenError names the holders of the port; it wraps ErrPortTaken.
type PortTakenError struct {
	Port    uint16
	Holders []string // "name (pid 123)"; empty if no process was found
	Kernel  string   // the kernel module that probably uses it
}

func (e *PortTakenError) Error() string {
	holder, remedy := "a process that cannot be seen from here, or the kernel", "stop it"
	switch {
	case len(e.Holders) > 0:
		holder = strings.Join(e.Holders, ", ")
	case e.Kernel != "":
		holder, remedy = "the kernel module "+e.Kernel, "remove the module"
	}
	return fmt.Sprintf("UDP port %d: %v by %s; %s, or run in another network namespace", e.Port, ErrPortTaken, holder, remedy)
}

// Unwrap makes errors.Is find ErrPortTaken.
func (e *PortTakenError) Unwrap() error { return ErrPortTaken }

// bindError adds the holders of the port to an error of binding the receiving socket.
func bindError(err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return os.NewSyscallError("bind", err)
	}
	return takenBy("/proc")
}

func takenBy(proc string) *PortTakenError {
	e := &PortTakenError{Port: Port, Holders: portHolders(proc)}
	if _, err := os.Stat("/sys/module/rdma_rxe"); err == nil {
		e.Kernel = "rdma_rxe"
	}
	return e
}

// portHolders names the processes with a UDP socket on port 4791 of the calling thread's
// network namespace, as far as this process may inspect them.
func portHolders(proc string) []string {
	return socketHolders(proc, sockets(proc, Port))
}

// sockets returns the sockets on a local port, in the form of links in /proc/PID/fd.
func sockets(proc string, port uint16) map[string]bool {
	found := make(map[string]bool)
	for _, name := range []string{"udp", "udp6"} {
		table, err := os.ReadFile(filepath.Join(proc, "thread-self/net", name))
		if err != nil {
			continue
		}
		for _, inode := range portInodes(string(table), port) {
			found["socket:["+inode+"]"] = true
		}
	}
	return found
}

// portInodes returns the inodes of the sockets on a local port, from a table in the format
// of /proc/net/udp (Documentation/networking/proc_net_tcp.rst). It skips malformed lines.
func portInodes(table string, port uint16) (inodes []string) {
	const localAddr, inode = 1, 9
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > inode && strings.HasSuffix(f[localAddr], suffix) {
			inodes = append(inodes, f[inode])
		}
	}
	return inodes
}

// socketHolders names the processes with a descriptor of one of the sockets. It names
// this process only if there is no other one: this process may use the port on another
// netdev.
func socketHolders(proc string, sockets map[string]bool) (names []string) {
	if len(sockets) == 0 {
		return nil
	}
	own, _ := os.Readlink(filepath.Join(proc, "self"))
	dirs, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, dir := range dirs {
		if filepath.Base(dir) != own && holdsAny(dir, sockets) {
			names = append(names, processName(dir))
		}
	}
	if dir := filepath.Join(proc, own); len(names) == 0 && own != "" && holdsAny(dir, sockets) {
		names = append(names, processName(dir))
	}
	return names
}

func holdsAny(dir string, sockets map[string]bool) bool {
	fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && sockets[target] {
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
